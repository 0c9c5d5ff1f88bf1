"""What an examination of an image has to say without refusing it (cli.md: code, severity, path, message)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from imagebuild.errors import clean


class Severity(str, Enum):
    """The one scale of severity of the command line."""

    BLOCKING = "blocking"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark: `code` as explained in codes.yaml, `path` an image path without a leading `/`."""

    code: str
    severity: Severity
    path: str
    message: str

    def document(self) -> dict[str, str]:
        """The JSON object of cli.md, path as people write it, text made safe to show."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "path": clean("/" + self.path),
            "message": clean(self.message),
        }
