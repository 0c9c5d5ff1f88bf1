"""Carries files to a machine that nothing reaches but one small copy at a time.

    python benchmarks/gpu/carry.py pack FOLDER PIECES [--limit 50]     files below FOLDER -> PIECES/1, PIECES/2, …
    python benchmarks/gpu/carry.py unpack PIECES FOLDER                what has arrived so far, again and again

A piece is an xz file of up to 48 MiB of one file; `pieces.json`, in the first folder, says what belongs where, with the
sha256 of every file. `unpack` writes a file once all of its pieces are there, and checks it; it says what is missing.
Exit status: 0 everything is there, 3 pieces are missing, 1 a file came out with other bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

PIECE = 48 << 20
LIST = "pieces.json"


def compressed(source: Path, offset: int, target: Path) -> int:
    with open(source, "rb") as stream:
        stream.seek(offset)
        data = stream.read(PIECE)
    target.write_bytes(lzma.compress(data, preset=6))
    return target.stat().st_size


def pack(folder: Path, pieces: Path, limit: int, first: list[str]) -> int:
    """Files whose path begins with one of `first`, in that order, are in the first folders."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]

    def rank(path: Path) -> tuple[int, str]:
        name = path.relative_to(folder).as_posix()
        return next((at for at, start in enumerate(first) if name.startswith(start)), len(first)), name

    files.sort(key=rank)
    pieces.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    work = []
    for number, path in enumerate(files):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        row: dict[str, Any] = {"path": path.relative_to(folder).as_posix(), "sha256": digest, "pieces": []}
        row["mode"] = path.stat().st_mode & 0o777
        for offset in range(0, max(path.stat().st_size, 1), PIECE):
            name = f"{number:03d}-{offset // PIECE:03d}.xz"
            row["pieces"].append(name)
            work.append((path, offset, pieces / name))
        rows.append(row)
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(compressed, *zip(*work, strict=True)))
    box, used = 1, 0
    for (_, _, piece), size in zip(work, sizes, strict=True):
        if used and used + size > limit:
            box, used = box + 1, 0
        (pieces / str(box)).mkdir(exist_ok=True)
        piece.rename(pieces / str(box) / piece.name)
        used += size
    (pieces / "1" / LIST).write_text(json.dumps(rows, indent=1) + "\n")
    for number in range(1, box + 1):
        print(f"{pieces / str(number)}: {sum(file.stat().st_size for file in (pieces / str(number)).iterdir())} bytes")
    return 0


def restored(sources: list[Path], target: Path, sha256: str, mode: int) -> bool:
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with open(part, "wb") as stream:
        for source in sources:
            data = lzma.decompress(source.read_bytes())
            digest.update(data)
            stream.write(data)
    part.chmod(mode)
    if digest.hexdigest() != sha256:
        part.unlink()
        return False
    os.replace(part, target)
    return True


def unpack(pieces: Path, folder: Path) -> int:
    found = {path.name: path for path in pieces.rglob("*") if path.is_file()}
    if LIST not in found:
        print(f"{LIST} is not there yet", file=sys.stderr)
        return 3
    rows = json.loads(found[LIST].read_text())
    missing, bad, jobs = [], [], []
    for row in rows:
        if (folder / row["path"]).is_file():
            continue
        if all(name in found for name in row["pieces"]):
            jobs.append(row)
        else:
            missing.append(row["path"])
    with ProcessPoolExecutor() as pool:
        done = pool.map(
            restored,
            [[found[name] for name in row["pieces"]] for row in jobs],
            [folder / row["path"] for row in jobs],
            [row["sha256"] for row in jobs],
            [row["mode"] for row in jobs],
        )
        for row, good in zip(jobs, done, strict=True):
            if not good:
                bad.append(row["path"])
    for name in bad:
        print(f"{name}: other bytes than were packed", file=sys.stderr)
    print(f"{len(jobs) - len(bad)} files written, {len(missing)} still incomplete: {' '.join(missing[:10])}")
    return 1 if bad else 3 if missing else 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="carries files in pieces")
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--limit", type=float, default=50.0, help="MiB of one folder of pieces")
    parser.add_argument("--first", action="append", default=[], help="start of paths that go first")
    options = parser.parse_args(argv)
    if options.what == "pack":
        return pack(options.source, options.target, int(options.limit * (1 << 20)), options.first)
    return unpack(options.source, options.target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
