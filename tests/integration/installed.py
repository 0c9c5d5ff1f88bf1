"""imagebuild as a user gets it: the wheel, installed into an environment of its own by what a workflow's script says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools import missing

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built beside it so that nothing is left in it."""
    source = folder / "source"
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "imagebuild"]
    names = subprocess.run(words, capture_output=True, check=True).stdout.decode().split("\0")
    for name in [*filter(None, names), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "--wheel-dir", str(folder), str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"the wheel could not be built: {done.stderr[-400:]}")
    (wheel,) = folder.glob("imagebuild-*.whl")
    return wheel


def bare_environment(home: Path, **more: str) -> dict[str, str]:
    """No setting of the tests' own: PATH, pip's configuration, and a home."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE") or name.startswith(("PIP_", "HTTP", "http"))
    }
    return {**kept, "HOME": str(home), "PYTHONUTF8": "1", **more}
