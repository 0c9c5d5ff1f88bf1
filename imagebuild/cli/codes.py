"""The catalogue of error codes: `codes.yaml` beside the package that raises them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

PACKAGES = (
    "content", "oci", "layer", "overlay", "target", "registry", "attest", "build", "check", "waiver", "release", "host", "cli", "testing",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """What `explain` tells: a line, what it means, what to do."""

    code: str
    title: str
    meaning: str
    do: str


def load_codes() -> dict[str, CodeEntry]:
    """Every code that imagebuild can raise or report, by code."""
    import yaml

    out: dict[str, CodeEntry] = {}
    root = resources.files("imagebuild")
    for package in PACKAGES:
        file = root / package / "codes.yaml"
        if not file.is_file():
            continue
        for code, entry in (yaml.safe_load(file.read_text("utf-8")) or {}).items():
            out[code] = CodeEntry(code, entry["title"], entry["meaning"], entry["do"])
    return dict(sorted(out.items()))
