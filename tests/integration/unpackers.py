"""Programs that unpack images, and the file trees that they make."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from real_engine import RealEngine
from tools import missing, program

_LEFT_OUT = {"dev", "proc", "sys", ".dockerenv"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a path shows: its type, permission bits and owner (of files and folders), link target or sha256."""

    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    content: str = ""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


def tree(root: Path) -> dict[str, Seen]:
    """Every path below a folder."""
    out = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            try:
                at = os.lstat(path)
            except FileNotFoundError:
                # A whiteout of what was never there: overlayfs lists its name, and finds nothing under it.
                continue
            mode = stat.S_IMODE(at.st_mode)
            where = str(path.relative_to(root))
            if stat.S_ISLNK(at.st_mode):
                out[where] = Seen("link", content=os.readlink(path))
            elif stat.S_ISDIR(at.st_mode):
                out[where] = Seen("folder", mode, at.st_uid, at.st_gid)
            elif stat.S_ISREG(at.st_mode):
                out[where] = Seen("file", mode, at.st_uid, at.st_gid, sha256(path.read_bytes()).hexdigest())
            else:
                out[where] = Seen("other", mode, at.st_uid, at.st_gid)
    return out


def umoci(layout: Path, name: str, scratch: Path) -> Path:
    """The root folder that umoci makes of an image in a layout."""
    run(program("umoci"), "unpack", "--image", f"{layout}:{name}", str(scratch / "bundle"))
    return scratch / "bundle" / "rootfs"


@contextmanager
def podman(layout: Path, name: str, scratch: Path, driver: str) -> Iterator[Path]:
    """The root folder that podman makes of it, with a storage of its own."""
    base = [program("podman"), "--root", f"{scratch}/{driver}", "--runroot", f"{scratch}/{driver}-run"]
    base += ["--storage-driver", driver]
    pulled = subprocess.run([*base, "pull", "-q", f"oci:{layout}:{name}"], capture_output=True, text=True, check=False)
    if pulled.returncode != 0 and "driver" in pulled.stderr:
        missing(f"podman has no {driver} storage here: {pulled.stderr[-300:]}")
    assert pulled.returncode == 0, pulled.stderr[-2000:]
    image = pulled.stdout.split()[-1]
    yield Path(run(*base, "image", "mount", image).split()[-1])
    run(*base, "image", "umount", "-f", image)
    # The storage itself is bind-mounted onto itself while podman uses it.
    subprocess.run(["umount", f"{scratch}/{driver}/{driver}"], capture_output=True, check=False)


def docker_tree(engine: RealEngine, archive: Path, name: str, scratch: Path) -> dict[str, Seen]:
    """Every path of a container of a docker-archive's image."""
    engine.run("load", "-q", "-i", str(archive))
    container = engine.run("create", name, "x").strip()
    engine.run("export", "-o", str(scratch / "export"), container)
    engine.run("rm", container)
    out: dict[str, Seen] = {}
    with tarfile.open(scratch / "export") as archive_file:
        for member in archive_file:
            if member.name.split("/")[0] in _LEFT_OUT or member.name.startswith("etc/"):
                continue
            owner = (member.mode & 0o7777, member.uid, member.gid)
            if member.issym():
                out[member.name] = Seen("link", content=member.linkname)
            elif member.isdir():
                out[member.name] = Seen("folder", *owner)
            elif member.isreg():
                stream = archive_file.extractfile(member)
                assert stream is not None
                out[member.name] = Seen("file", *owner, sha256(stream.read()).hexdigest())
            elif member.islnk():
                out[member.name] = out[member.linkname]
            else:
                out[member.name] = Seen("other", *owner)
    return out
