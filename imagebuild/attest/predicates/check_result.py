"""in-toto test results (test-result/v0.1): what a check found, for one image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuild.attest.predicates.types import RESULTS, at
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.host.clock import rfc3339

CONTENT_ID = "content-id"
"""What `configuration` calls the content id of the image."""


def resource(name: str, digest: Digest) -> dict[str, Any]:
    """A resource descriptor (in-toto: name and digest)."""
    return {"name": name, "digest": {"sha256": digest.hex}}


def content_of_result(predicate: Mapping[str, Any]) -> tuple[str, str] | None:
    """The content id and the platform that a result says it is of; None where it leaves out either, or says it twice."""
    listed, platform = predicate.get("configuration"), predicate.get("platform")
    named = [
        at(item, "digest", "sha256")
        for item in (listed if isinstance(listed, list) else [])
        if at(item, "name") == CONTENT_ID
    ]
    if len(named) != 1 or not isinstance(named[0], str) or not isinstance(platform, str):
        return None
    return f"sha256:{named[0]}", platform


def check_result(
    check: str,
    verdict: str,
    *,
    configuration: Mapping[str, Digest],
    evidence: Mapping[str, Digest],
    finished: int,
    passed: Sequence[str] = (),
    warned: Sequence[str] = (),
    failed: Sequence[str] = (),
    platform: str | None = None,
) -> dict[str, Any]:
    """The predicate for a check (`smoke`, `gsm8k`) with a verdict of cli.md's table.

    `configuration` names what decided how it ran (lock, task file, checks), `evidence` what it left; `finished` is in
    seconds since 1970.  Verdicts that are no answer (inconclusive, invalid, not-run, infrastructure) are never attested:
    InputError `attest.bad-predicate`.  Besides the type's fields there are `check`, `verdict`, `evidence`, `finishedOn`, and the
    `platform` of the image, where it is known.
    """
    result = RESULTS.get(verdict)
    if result is None:
        raise InputError(
            "attest.bad-predicate",
            f"{check}: {verdict} is no result that could be attested",
            expected=" or ".join(sorted(RESULTS)),
            found=verdict,
        )
    out: dict[str, Any] = {
        "result": result,
        "configuration": [resource(name, digest) for name, digest in sorted(configuration.items())],
    }
    for key, names in (("passedTests", passed), ("warnedTests", warned), ("failedTests", failed)):
        if names:
            out[key] = list(names)
    return {
        **out,
        "check": check,
        "verdict": verdict,
        "evidence": [resource(name, digest) for name, digest in sorted(evidence.items())],
        "finishedOn": rfc3339(finished),
        **({"platform": platform} if platform is not None else {}),
    }
