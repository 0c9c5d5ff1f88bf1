"""Recomputing what an image claims: base layers a verbatim prefix, our layers exactly as declared, config likewise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.attest.check import Check as Check
from imagebuild.content.digest import Digest


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of one image.  `recompressed` says that layers were found by diff_id, stored in other bytes."""

    reference: str
    digest: Digest
    checks: tuple[Check, ...]
    recompressed: bool = False

    @property
    def passed(self) -> bool | None:
        """False where a check failed, None where one could not be made, else True."""
        if any(check.passed is False for check in self.checks):
            return False
        return None if any(check.passed is None and check.required for check in self.checks) else True

    @property
    def exit_code(self) -> int:
        return {True: 0, False: 1, None: 3}[self.passed]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "verification",
            "schemaVersion": 1,
            "reference": self.reference,
            "digest": str(self.digest),
            "passed": self.passed is True,
            "recompressed": self.recompressed,
            "checks": [check.to_json() for check in self.checks],
        }


def equal(code: str, message: str, expected: object, found: object) -> Check:
    """A check that two values are one."""
    same = expected == found
    return Check(code, same, message, None if same else str(expected), None if same else str(found))


def json_differences(expected: Any, found: Any, path: str = "$") -> Iterator[tuple[str, str, str]]:
    """(path, expected, found) of each leaf in which two JSON values differ; object key order does not count."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            where = f"{path}.{key}"
            if key not in expected:
                yield where, "absent", repr(found[key])
            elif key not in found:
                yield where, repr(expected[key]), "absent"
            else:
                yield from json_differences(expected[key], found[key], where)
    elif isinstance(expected, list) and isinstance(found, list):
        for number in range(max(len(expected), len(found))):
            where = f"{path}[{number}]"
            if number >= len(expected):
                yield where, "absent", repr(found[number])
            elif number >= len(found):
                yield where, repr(expected[number]), "absent"
            else:
                yield from json_differences(expected[number], found[number], where)
    elif expected != found:
        yield path, repr(expected), repr(found)


def difference_checks(
    code: str, what: str, differences: Sequence[tuple[str, str, str]], limit: int = 20
) -> list[Check]:
    """One failed check a difference (the first `limit`), or one passed check."""
    if not differences:
        return [Check(code, True, what)]
    out = [Check(code, False, f"{what}: {where}", expected, found) for where, expected, found in differences[:limit]]
    if len(differences) > limit:
        out.append(Check(code, False, f"{what}: {len(differences) - limit} more differences"))
    return out
