"""Whole OCI layouts of built images, pinned for ever: `python tests/golden/whole_layouts.py [--check]`.

Without --check layouts.json is written anew, which a change of published bytes alone may call for; with it the program
ends with 1 and names what differs.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from imagebuild.cli.main import main as imagebuild
from imagebuild.oci import media_types as mt
from imagebuild.testing.small_engine import CHANGES, SmallWorkspace, engine_base

PINNED = Path(__file__).parent / "layouts.json"
LARGE = b"".join(b"row %d of a table that makes the layer larger than eight MiB\n" % n for n in range(150_000))

CASES = {
    f"{family.name}-{len(platforms)}-{compressor}": (family, platforms, compressor)
    for family in (mt.OCI, mt.DOCKER)
    for platforms in (("linux/amd64",), ("linux/amd64", "linux/arm64"))
    for compressor in ("stored", "deflate")
}


def _run(*words: str | Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = imagebuild([str(word) for word in words])
    if code != 0:
        raise SystemExit(f"{words}: {code}\n{err.getvalue()}")


def make(name: str, folder: Path) -> dict[str, Any]:
    """Builds one case below `folder`; the sha256 of every file of its layout, with what the lock says of it."""
    family, platforms, compressor = CASES[name]
    base = engine_base(platforms, family, "stored")
    space = SmallWorkspace(folder / "ws", base)
    space.write_target(env={"ENGINE_PORT": "9000"})
    changes = CHANGES + "  - symlink: {path: engine/table, to: data/table.json}\n"
    if compressor == "deflate":
        changes += "  - file: files/large.txt\n    to: engine/data/large.txt\n"
    space.write_overlay(changes=changes)
    (space.root / "overlays" / "tune" / "files" / "large.txt").write_bytes(LARGE)
    common = ("-C", space.root, "--cache", space.cache, "-q")
    _run("lock", "tuned", "--complete", *common)
    _run("build", "tuned", "--output", f"oci:{folder}/layout:v1", "--complete", *common)
    lock = space.lock()
    used = {x for platform in lock["inputs"]["platforms"].values() for x in platform["compressors"].values()}
    assert {x.partition("-")[0] for x in used} == {compressor}
    files = {}
    for path in sorted((folder / "layout").rglob("*")):
        if path.is_file():
            files[str(path.relative_to(folder / "layout"))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "base": str(base.digest),
        "content_id": lock["result"]["content_id"],
        "digest": lock["result"]["digest"],
        "layout": files,
    }


def make_all() -> dict[str, Any]:
    made = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            made[name] = make(name, Path(folder))
    return made


def text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main(words: list[str]) -> int:
    made = make_all()
    if words != ["--check"]:
        PINNED.write_text(text(made))
        return 0
    pinned = json.loads(PINNED.read_text())
    different = sorted(name for name in {*made, *pinned} if made.get(name) != pinned.get(name))
    sys.stdout.write("".join(f"{name} differs\n" for name in different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
