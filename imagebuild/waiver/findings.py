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
        # one line, whatever text of others it quotes: a CI runner obeys lines of a log that begin with `::`
        object.__setattr__(self, "message", " ".join(clean(self.message, 600).split("\n")))

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"code": self.code, "severity": self.severity, "message": self.message}
        if self.file:
            out["file"] = self.file
        if self.line:
            out["line"] = self.line
        return out

    @property
    def place(self) -> str:
        file = clean(self.file).replace("\n", "\N{REPLACEMENT CHARACTER}")
        return f"{file}:{self.line}" if self.line else file or "-"


def sort_findings(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first, then by place; equal ones once."""
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: (order[f.severity], f.file, f.line, f.code, f.message)))


@dataclass(frozen=True, slots=True)
class WaiverReport:
    """The answer for one waiver: `findings`, what no waiver cures apart from them, what can be done about it, and `unknown`,
    what was to be looked up and could not be, a line each."""

    subject: str
    number: int | None
    targets: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_cured: tuple[Finding, ...] = ()
    ways_out: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        return any(finding.severity == BLOCKING for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Nothing blocks, and nothing that was asked for is left open."""
        return not self.refused and not self.unknown

    @property
    def exit_code(self) -> int:
        return 1 if self.refused else 3 if self.unknown else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "number": self.number,
            "targets": list(self.targets),
            "passed": self.passed,
            "findings": [finding.to_json() for finding in self.findings],
            "not_cured": [finding.to_json() for finding in self.not_cured],
            "ways_out": list(self.ways_out),
            "unknown": list(self.unknown),
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
        verdict = f"refused ({count} blocking)" if self.refused else "passed"
        if self.unknown and not self.refused:
            verdict = f"could not find out ({len(self.unknown)} upstream links)"
        parts.append(f"{self.subject}: {verdict}")
        return "\n".join(parts)


def _listed(findings: tuple[Finding, ...]) -> str:
    rows = [[f.severity, f.code, f.place] for f in findings]
    lines = table(rows, ["severity", "code", "place"]).splitlines()
    out = [lines[0]]
    for line, finding in zip(lines[1:], findings, strict=True):
        out += [line, f"          {finding.message}"]
    return "\n".join(out)
