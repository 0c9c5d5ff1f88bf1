"""The whole exception tree.

One root, three families.  The family fixes the exit code of the command line, so a caller never has to
look into a message: `InputError` (2) what was written is wrong, `RefusedError` (1) it is well formed and the answer
is no, `UnavailableError` (3) it could not be found out.  Anything else that escapes is our bug (4).

Every raise site gives a stable code `area.slug`; `codes.yaml` beside the package that raises it explains the code
(`imagebuild explain CODE`), and a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

JSON = Any

_LIMIT = 2000


def clean(text: str, limit: int = _LIMIT) -> str:
    """Text from outside, made safe to show: bounded, control characters replaced, nothing interpreted.

    `limit` is in characters.  Tabs and newlines stay; every other C0, DEL and C1 character and the Unicode
    direction controls become U+FFFD, so that neither a terminal nor a log can be steered by a registry's answer.
    """
    shown = text[:limit]
    out = []
    for char in shown:
        point = ord(char)
        bad = (
            (point < 32 and char not in "\n\t")
            or 0x7F <= point <= 0x9F
            or 0x202A <= point <= 0x202E
            or 0x2066 <= point <= 0x2069
            or 0xD800 <= point <= 0xDFFF
        )
        out.append("\N{REPLACEMENT CHARACTER}" if bad else char)
    if len(text) > limit:
        out.append(f"… ({len(text) - limit} more characters)")
    return "".join(out)


class ImagebuildError(Exception):
    """Root of all errors that imagebuild raises on purpose.

    Fields: `code` stable identifier; `message` what is wrong and where; `expected` and `found` the two sides where
    there are two; `hint` what to do next, whole commands where possible; `details` JSON values for programs (paths,
    digests, line numbers, further findings).
    """

    exit_code: ClassVar[int] = 4

    def __init__(
        self,
        code: str,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        details: Mapping[str, JSON] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = clean(message)
        self.expected = None if expected is None else clean(expected)
        self.found = None if found is None else clean(found)
        self.hint = None if hint is None else clean(hint)
        self.details: dict[str, JSON] = dict(details or {})

    def __str__(self) -> str:
        lines = [f"{self.message} [{self.code}]"]
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.found is not None:
            lines.append(f"  found:    {self.found}")
        if self.hint is not None:
            lines.append(f"  hint:     {self.hint}")
        return "\n".join(lines)

    def document(self) -> dict[str, JSON]:
        """The `{"kind": "error", …}` document of cli.md."""
        details = dict(self.details)
        if self.expected is not None:
            details["expected"] = self.expected
        if self.found is not None:
            details["found"] = self.found
        return {
            "kind": "error",
            "schemaVersion": 1,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": details,
        }


class InputError(ImagebuildError):
    """What the user wrote is wrong: a file, an option, a reference (exit 2)."""

    exit_code = 2


class RefusedError(ImagebuildError):
    """Well formed, and the answer is no: guard, digest or policy (exit 1)."""

    exit_code = 1


class UnavailableError(ImagebuildError):
    """Could not find out: network, missing program, full disk (exit 3)."""

    exit_code = 3


class SeveralErrors(ImagebuildError):
    """Several faults reported at once; the exit code is the worst in the order 4, 2, 1, 3 (cli.md, exit codes)."""

    def __init__(self, errors: Sequence[ImagebuildError]) -> None:
        if not errors:
            raise ValueError("SeveralErrors needs at least one error")
        self.errors = tuple(errors)
        first = errors[0]
        super().__init__(
            first.code,
            "\n".join(str(error) for error in errors) if len(errors) > 1 else first.message,
            expected=first.expected if len(errors) == 1 else None,
            found=first.found if len(errors) == 1 else None,
            hint=first.hint if len(errors) == 1 else None,
            details=first.details if len(errors) == 1 else {"errors": [e.document() for e in errors]},
        )
        self.exit_code = worst_exit_code([e.exit_code for e in errors])  # type: ignore[misc]


def worst_exit_code(codes: Sequence[int]) -> int:
    """The exit code of several results: 4, then 2, then 1, then 3, then 0 (cli.md)."""
    for code in (4, 2, 1, 3):
        if code in codes:
            return code
    return 0
