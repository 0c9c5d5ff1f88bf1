"""A predicate that somebody hands in, held against what its type must have before a key is put to it."""

from __future__ import annotations

from typing import Any

from imagebuild.attest.dsse import ENVELOPE_LIMIT
from imagebuild.attest.predicates.types import SBOM, TEST_RESULT, TEST_RESULTS, TYPES, at, predicate_type, verdict_of
from imagebuild.errors import InputError
from imagebuild.oci.json_text import parse, plain


def _bad(what: str, why: str, expected: str | None = None, found: str | None = None) -> InputError:
    return InputError("attest.bad-predicate", f"{what}: {why}", expected=expected, found=found)


def parse_predicate(word: str, raw: bytes, what: str) -> tuple[str, dict[str, Any]]:
    """The predicate type that `word` means, and the predicate with key order and numbers kept.

    Raises InputError `attest.bad-predicate`.
    """
    kind = predicate_type(word)
    if word == "image":
        raise _bad(what, "a signature of an image has no predicate", "imagebuild sign")
    if len(raw) > ENVELOPE_LIMIT // 2:
        raise _bad(what, "too large", f"at most {ENVELOPE_LIMIT // 2} bytes", f"{len(raw)} bytes")
    try:
        value = parse(raw, what)
    except InputError as error:
        raise InputError("attest.bad-predicate", error.message) from error
    if not isinstance(value, dict):
        raise _bad(what, "not a JSON object")
    if "_type" in value and "predicateType" in value:
        raise _bad(what, "this is a whole statement, of which the predicate alone is wanted")
    plainly = plain(value)
    for path in _REQUIRED.get(word, ()):
        if at(plainly, *path) is None:
            raise _bad(what, f"{'.'.join(path)} is missing", f"a predicate of type {kind}")
    if kind == SBOM and plainly.get("bomFormat") != "CycloneDX":
        raise _bad(what, "not a CycloneDX document", "CycloneDX", str(plainly.get("bomFormat")))
    if kind == TEST_RESULT and word in TYPES:
        if plainly["result"] not in TEST_RESULTS:
            raise _bad(what, "result", "PASSED, WARNED or FAILED", str(plainly["result"]))
        if verdict_of(word, plainly) in (None, "invalid"):
            raise _bad(what, "check, verdict and result do not fit together", f"the result of {word}")
    return kind, value


_REQUIRED: dict[str, tuple[tuple[str, ...], ...]] = {
    "provenance": (
        ("buildDefinition", "buildType"),
        ("buildDefinition", "externalParameters"),
        ("runDetails", "builder", "id"),
    ),
    "sbom": (("bomFormat",), ("specVersion",)),
    "smoke": (("result",), ("configuration",), ("check",)),
    "gsm8k": (("result",), ("configuration",), ("check",)),
    "vex": (("@context",), ("author",), ("statements",)),
    "release": (("target",), ("counter",), ("base", "reference"), ("contentId",)),
}
