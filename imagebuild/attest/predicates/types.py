"""Predicate types by the words that policies and `--type` use, and what every kind of predicate can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuild import PROJECT_URL
from imagebuild.attest.predicates import image_signature
from imagebuild.errors import InputError
from imagebuild.host.clock import parse_rfc3339

PROVENANCE = "https://slsa.dev/provenance/v1"
SBOM = "https://cyclonedx.org/bom"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
VEX = "https://openvex.dev/ns/v0.2.0"
RELEASE = f"{PROJECT_URL}/release/v1"
BUILD_TYPE = f"{PROJECT_URL}/build-types/overlay/v1"

TYPES: Mapping[str, str] = {
    "image": image_signature.TYPE,
    "provenance": PROVENANCE,
    "sbom": SBOM,
    "smoke": TEST_RESULT,
    "gsm8k": TEST_RESULT,
    "vex": VEX,
    "release": RELEASE,
}
TEST_RESULTS = ("PASSED", "WARNED", "FAILED")
"""Every result that the type test-result/v0.1 knows."""
RESULTS: Mapping[str, str] = {
    "passed": "PASSED", "non-inferior": "PASSED", "failed": "FAILED", "inferior": "FAILED",
}  # fmt: skip
"""Verdicts that are test results (cli.md); all others are no answer, and nothing is attested of them."""


def predicate_type(word: str) -> str:
    """The type for a word or a URI.  Raises InputError `attest.bad-predicate`."""
    if word in TYPES:
        return TYPES[word]
    if "://" not in word or any(ord(c) < 33 or ord(c) > 126 for c in word):
        raise InputError(
            "attest.bad-predicate", f"{word!r} is no predicate type", expected=", ".join(TYPES) + ", or a URI"
        )
    return word


def at(value: Any, *path: str) -> Any:
    """What stands at a path of keys; None where something on it is missing or of another kind."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


_TIMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    PROVENANCE: (("runDetails", "metadata", "finishedOn"), ("runDetails", "metadata", "startedOn")),
    SBOM: (("metadata", "timestamp"),),
    TEST_RESULT: (("finishedOn",),),
    VEX: (("last_updated",), ("timestamp",)),
    RELEASE: (("created",),),
}


def stated_time(kind: str, predicate: Mapping[str, Any]) -> int | None:
    """When its signer says that it was made, in seconds since 1970; None where nothing is said."""
    for path in _TIMES.get(kind, ()):
        text = at(predicate, *path)
        if isinstance(text, str):
            return parse_rfc3339(text)
    return None


def verdict_of(word: str, predicate: Mapping[str, Any]) -> str | None:
    """The verdict of a test result of the check that `word` names; None where it is of another check.

    A result that contradicts the verdict beside it (PASSED with `inferior`) or its list of failed tests is `invalid`.
    """
    check, verdict, result = predicate.get("check"), predicate.get("verdict"), predicate.get("result")
    if check != word:
        return None
    if result == "PASSED" and predicate.get("failedTests"):
        return "invalid"
    if verdict is None:
        return {"PASSED": "passed", "FAILED": "failed"}.get(str(result), "invalid")
    return str(verdict) if RESULTS.get(str(verdict)) == result else "invalid"
