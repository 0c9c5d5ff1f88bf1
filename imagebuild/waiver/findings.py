"""What a check of a waiver finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagebuild.content.text import table
from imagebuild.errors import clean

BLOCKING = "blocking"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (BLOCKING, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable and explained (`imagebuild explain CODE`); `file` and `line` say where, "" and 0 where a finding is
    of no file or line."""

    code: str
    severity: str
    message: str
    file: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"{self.severity} is no severity")
        object.__setattr__(self, "message", clean(self.message, 600))

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"code": self.code, "severity": self.severity, "message": self.message}
        if self.file:
            out["file"] = self.file
        if self.line:
            out["line"] = self.line
        return out

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file or "-"


def sort_findings(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first, then by place; equal ones once."""
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: (order[f.severity], f.file, f.line, f.code, f.message)))


@dataclass(frozen=True, slots=True)
class WaiverReport:
    """The answer for one waiver: `findings`, what no waiver cures apart from them, and what can be done about it."""

    subject: str
    number: int | None
    targets: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_cured: tuple[Finding, ...] = ()
    ways_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not any(finding.severity == BLOCKING for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "number": self.number,
            "targets": list(self.targets),
            "passed": self.passed,
            "findings": [finding.to_json() for finding in self.findings],
            "not_cured": [finding.to_json() for finding in self.not_cured],
            "ways_out": list(self.ways_out),
        }

    def to_text(self) -> str:
        """For people; the verdict is the last line."""
        parts = []
        if self.findings:
            parts.append(_listed(self.findings))
        if self.not_cured:
            parts.append("Not cured by any waiver:\n" + _listed(self.not_cured))
        if self.ways_out:
            parts.append("What can be done:\n" + "\n".join(f"  {n}. {way}" for n, way in enumerate(self.ways_out, 1)))
        count = sum(1 for finding in self.findings if finding.severity == BLOCKING)
        parts.append(f"{self.subject}: " + ("passed" if self.passed else f"refused ({count} blocking)"))
        return "\n".join(parts)


def _listed(findings: tuple[Finding, ...]) -> str:
    rows = [[f.severity, f.code, f.place] for f in findings]
    lines = table(rows, ["severity", "code", "place"]).splitlines()
    out = [lines[0]]
    for line, finding in zip(lines[1:], findings, strict=True):
        out += [line, *(f"          {part}" for part in finding.message.splitlines())]
    return "\n".join(out)
