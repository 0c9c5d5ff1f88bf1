"""Verdict values, and what each is called elsewhere: exit code, JUnit outcome, in-toto test-result (cli.md, Exit codes).

"Could not check" is never shown as "passed": only `passed` and `non-inferior` are good, and a verdict that is neither
good nor a plain no has exit code 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from imagebuild.attest.predicates.types import RESULTS


class Verdict(StrEnum):
    """The outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NON_INFERIOR = "non-inferior"
    INFERIOR = "inferior"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    """The run does not count: wrong image digest, too many null answers, unequal prompts."""
    NOT_RUN = "not-run"
    NOT_PROVEN = "not-proven"
    INFRASTRUCTURE = "infrastructure"
    """The machine is at fault: a hung GPU, busy memory, a driver that does not fit, a lost node."""

    @property
    def good(self) -> bool:
        """True for `passed` and `non-inferior` alone."""
        return _MAPPINGS[self].exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 good, 1 the answer is no, 3 could not find out."""
        return _MAPPINGS[self].exit_code

    @property
    def junit(self) -> str:
        """The child element of a JUnit `testcase`: `failure`, `error` or `skipped`; `pass` for none."""
        return _MAPPINGS[self].junit

    @property
    def test_result(self) -> str | None:
        """`result` of an in-toto test-result predicate; None where none may be stated."""
        return RESULTS.get(self)


@dataclass(frozen=True, slots=True)
class _Mapping:
    exit_code: int
    junit: str


_GOOD = _Mapping(0, "pass")
_BAD = _Mapping(1, "failure")
_ERROR = _Mapping(3, "error")
_SKIPPED = _Mapping(3, "skipped")
_MAPPINGS = MappingProxyType(
    {
        Verdict.PASSED: _GOOD,
        Verdict.NON_INFERIOR: _GOOD,
        Verdict.FAILED: _BAD,
        Verdict.INFERIOR: _BAD,
        Verdict.INCONCLUSIVE: _ERROR,
        Verdict.INVALID: _ERROR,
        Verdict.INFRASTRUCTURE: _ERROR,
        Verdict.NOT_RUN: _SKIPPED,
        Verdict.NOT_PROVEN: _SKIPPED,
    }
)

_WORST_FIRST = (
    Verdict.INVALID,
    Verdict.INFRASTRUCTURE,
    Verdict.FAILED,
    Verdict.INFERIOR,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_RUN,
    Verdict.NOT_PROVEN,
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that several make together; of good ones the last.  A run that does not count says nothing of the
    patch, so `invalid` and `infrastructure` come before `failed`.  Raises ValueError for none."""
    given = list(verdicts)
    if not given:
        raise ValueError("no verdict was given")
    for one in _WORST_FIRST:
        if one in given:
            return one
    return given[-1]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the reason for it in words; `not-run` always has one."""

    verdict: Verdict
    reason: str

    def __post_init__(self) -> None:
        if not self.reason and self.verdict is not Verdict.PASSED:
            raise ValueError(f"{self.verdict} needs a reason")

    def to_json(self) -> dict[str, Any]:
        return {"verdict": str(self.verdict), "reason": self.reason}
