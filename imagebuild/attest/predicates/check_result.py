"""in-toto test results (test-result/v0.1): what a check found, for one image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuild.attest.predicates.types import RESULTS
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.host.clock import rfc3339


def resource(name: str, digest: Digest) -> dict[str, Any]:
    """A resource descriptor (in-toto: name and digest)."""
    return {"name": name, "digest": {"sha256": digest.hex}}


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
) -> dict[str, Any]:
    """The predicate for a check (`smoke`, `gsm8k`) with a verdict of cli.md's table.

    `configuration` names what decided how it ran (lock, task file, checks), `evidence` what it left; `finished` is in
    seconds since 1970.  Verdicts that are no answer (inconclusive, invalid, not-run, infrastructure) are never attested:
    InputError `attest.bad-predicate`.  Besides the type's fields there are `check`, `verdict`, `evidence`, `finishedOn`.
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
    }
