"""One thing that was looked at when an image was verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagebuild.errors import clean


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.  `passed` is None where it could not be looked at (never shown as passed); the verdict
    depends on it unless `required` is False (what nobody asked for, or what the caller's policy decides)."""

    code: str
    passed: bool | None
    message: str
    expected: str | None = None
    found: str | None = None
    required: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "passed": self.passed,
            "message": clean(self.message),
            "expected": None if self.expected is None else clean(self.expected),
            "found": None if self.found is None else clean(self.found),
            "required": self.required,
        }

    @property
    def word(self) -> str:
        return {True: "passed", False: "failed", None: "not-checked"}[self.passed]
