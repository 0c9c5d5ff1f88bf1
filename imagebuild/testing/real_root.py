"""Roots that really run, for bases whose containers are started: a folder or an archive of a Debian system as a layer.

Such a base is not pinned by any committed lock: its bytes follow from what the package mirror gave on that day.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, cast

from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import InputError, UnavailableError, clean
from imagebuild.host import environment, process
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import GetWheel
from imagebuild.testing.base_tar import DIRECTORY, HARDLINK, REGULAR, SYMLINK, Item, tar_chunks
from imagebuild.testing.wheel_fetch import WheelPin, sha256_of

LEFT_OUT = (
    "dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/tmp/*", "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "debootstrap*",
    "etc/machine-id", "etc/resolv.conf", "etc/hostname", "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "*/.imagebuild-tmp-*",
)  # fmt: skip
"""What is another one on every machine, or what a container gets from its engine, or prose."""

_XATTRS = ("security.capability",)
DEADLINE = 1800.0


@dataclass(frozen=True, slots=True)
class TreeLayer:
    """A whole root file system: `path` is a folder or a tar archive.

    Owners, modes, links and capabilities stay; times later than the layer's become the layer's.  Device nodes, pipes and
    sockets are left out, as is what `left_out` (shell patterns over paths without leading `/`) names.
    """

    path: Path
    left_out: tuple[str, ...] = LEFT_OUT
    created_by: str = "/bin/sh -c #(nop) ADD root in /"

    def describe(self, platform: Platform) -> Any:
        """The archive's own digest; a folder is described by the digest of what it becomes."""
        if self.path.is_dir():
            digest = Digest.of(b"".join(b"%r\n" % (row,) for row in self._rows()))
        else:
            digest = sha256_of(self.path)
        return {"kind": "tree", "content": str(digest), "left_out": list(self.left_out)}

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for item in self._folder():
            data = ""
            if item.open is not None:
                with item.open() as stream:
                    data = str(Digest.of(stream.read()))
            yield item.path, item.type, item.mode, item.uid, item.gid, item.mtime, item.link, item.xattrs, data

    def expected_size(self, platform: Platform) -> int:
        return 0 if self.path.is_dir() else self.path.stat().st_size

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        found = self._folder() if self.path.is_dir() else self._archive()
        for item in found:
            late = item.mtime is None or item.mtime > layer_time
            yield replace(item, mtime=layer_time if late else item.mtime)

    def _kept(self, path: str) -> bool:
        return bool(path) and not any(fnmatchcase(path, pattern) for pattern in self.left_out)

    def _folder(self) -> Iterator[Item]:
        """Everything below the folder, sorted; the second name of a file is a hard link to the first."""
        inodes: dict[tuple[int, int], str] = {}
        with io_faults(self.path, "reading"):
            for folder, folders, files in os.walk(self.path):
                folders.sort()
                for name in sorted([*folders, *files]):
                    full = Path(folder, name)
                    path = str(full.relative_to(self.path))
                    if self._kept(path):
                        item = _item(full, path, inodes)
                        if item is not None:
                            yield item

    def _archive(self) -> Iterator[Item]:
        with io_faults(self.path, "reading"), tarfile.open(self.path) as archive:
            for member in archive:
                path = _relative(member.name)
                if not self._kept(path):
                    continue
                at = Item(path, mode=member.mode & 0o7777, uid=member.uid, gid=member.gid, mtime=int(member.mtime))
                if member.isdir():
                    yield replace(at, type=DIRECTORY)
                elif member.issym():
                    yield replace(at, type=SYMLINK, link=member.linkname, mode=0o777)
                elif member.islnk():
                    yield replace(at, type=HARDLINK, link=_relative(member.linkname))
                elif member.isreg():
                    stream = archive.extractfile(member)
                    assert stream is not None
                    opened = cast(BinaryIO, stream)
                    caps = [(k, v) for k, v in member.pax_headers.items() if k == "SCHILY.xattr.security.capability"]
                    xattrs = tuple(
                        (k.removeprefix("SCHILY.xattr."), v.encode("utf-8", "surrogateescape")) for k, v in caps
                    )
                    yield replace(at, type=REGULAR, size=member.size, open=lambda stream=opened: stream, xattrs=xattrs)  # type: ignore[misc]


def _relative(name: str) -> str:
    """`./a/b/` and `/a/b` -> `a/b`; the root itself is ""."""
    return os.path.normpath("/" + name).lstrip("/")


def _item(full: Path, path: str, inodes: dict[tuple[int, int], str]) -> Item | None:
    at = os.lstat(full)
    item = Item(path, mode=stat.S_IMODE(at.st_mode), uid=at.st_uid, gid=at.st_gid, mtime=int(at.st_mtime))
    if stat.S_ISDIR(at.st_mode):
        return replace(item, type=DIRECTORY)
    if stat.S_ISLNK(at.st_mode):
        return replace(item, type=SYMLINK, link=os.readlink(full), mode=0o777)
    if not stat.S_ISREG(at.st_mode):
        return None
    if at.st_nlink > 1:
        first = inodes.setdefault((at.st_dev, at.st_ino), path)
        if first != path:
            return replace(item, type=HARDLINK, link=first)
    names = [name for name in os.listxattr(full, follow_symlinks=False) if name in _XATTRS]
    xattrs = tuple((name, os.getxattr(full, name, follow_symlinks=False)) for name in names)
    return replace(item, size=at.st_size, open=lambda: open(full, "rb"), xattrs=xattrs)


def python_of(root: Path) -> str:
    """The version, as 3.11, of the Python that `/usr/bin/python3` of a root is.  Raises InputError `testing.no-python`."""
    link = ""
    if root.is_dir():
        link = os.readlink(root / "usr/bin/python3") if (root / "usr/bin/python3").is_symlink() else ""
    else:
        with io_faults(root, "reading"), tarfile.open(root) as archive:
            for member in archive:
                if member.name.removeprefix("./") == "usr/bin/python3":
                    link = member.linkname
                    break
    name = os.path.basename(link)
    if not name.startswith("python3."):
        raise InputError(
            "testing.no-python", f"{root}: /usr/bin/python3 is no link to a python3.N", found=link or "nothing"
        )
    return name.removeprefix("python")


def _mirror(suite: str) -> list[str]:
    """The package mirror that this machine's apt uses for the suite; none: debootstrap's own default."""
    try:
        shown = process.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"], deadline=60
        )
    except UnavailableError:
        return []
    for line in shown.stdout.decode("utf-8", "replace").splitlines():
        address, _, release = line.partition(" ")
        if release == suite:
            return [address]
    return []


def debian_root(
    suite: str = "bookworm",
    include: tuple[str, ...] = ("python3",),
    *,
    architecture: str = "amd64",
    folder: Path | None = None,
) -> Path:
    """A minimal Debian system as a tar archive in `folder` (default: `IMAGEBUILD_TEST_ROOTS`, else `roots` in the cache), made once.

    debootstrap fetches the packages, and they are unpacked without running anything of theirs: so no emulation is needed for
    another architecture, and the bytes follow from the packages.  Raises UnavailableError `testing.no-root` where a program is
    missing or fails, or the process is not root's.
    """
    name = f"debian-{suite}-{architecture}-{'-'.join(include)}-{MAKER}.tar"
    named = environment.variable("IMAGEBUILD_TEST_ROOTS")
    place = (folder or (Path(named) if named else environment.cache_folder() / "roots")) / name
    if place.is_file():
        return place
    with io_faults(place.parent, "making"):
        place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=place.parent) as scratch:
        packages, root = Path(scratch, "packages"), Path(scratch, "root")
        command = ["debootstrap", "--download-only", f"--arch={architecture}", "--variant=minbase"]
        _run([*command, f"--include={','.join(include)}", suite, str(packages), *_mirror(suite)])
        for link in ("bin", "sbin", "lib", *(("lib64",) if architecture == "amd64" else ())):
            (root / "usr" / link).mkdir(parents=True)
            (root / link).symlink_to(f"usr/{link}")
        for package in sorted((packages / "var" / "cache" / "apt" / "archives").glob("*.deb")):
            unpacked = Path(scratch, "package.tar")
            _run(["dpkg-deb", "--fsys-tarfile", str(package)], unpacked)
            _run(["tar", "-x", "-C", str(root), "--keep-directory-symlink", "-f", str(unpacked)])
        for file, text in _ACCOUNTS.items():
            (root / "etc" / file).write_text(text, encoding="ascii")
        made = Path(scratch, "root.tar")
        with io_faults(made, "writing"), open(made, "wb") as out:
            for chunk in tar_chunks(
                TreeLayer(root).items(Platform("linux", architecture), _LATEST, _no_wheel), _LATEST
            ):
                out.write(chunk)
        with io_faults(place, "writing"):
            os.replace(made, place)
    return place


MAKER = 1
"""Counts up when roots are made in another way."""
_ACCOUNTS = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}
"""What the packages' own scripts would have made, as far as programs ask for it."""
_LATEST = 1_700_000_000
"""No entry of a root is later than this, so that it is older than whatever is put on it."""


def _no_wheel(pin: WheelPin) -> Path:
    raise AssertionError(f"a root needs no wheel, and {pin.filename} was asked for")


def _run(command: list[str], output: Path | None = None) -> None:
    path = environment.variables().get("PATH", "") + ":/usr/sbin:/sbin"
    done = process.run(command, deadline=DEADLINE, environment={**environment.variables(), "PATH": path})
    if done.code != 0:
        said = (done.stdout if output is None else b"") + done.stderr
        shown = said.decode("utf-8", "replace").strip().splitlines()
        raise UnavailableError(
            "testing.no-root",
            f"{command[0]} could not do its part of a root: {clean(' / '.join(shown[-3:]), 400)}",
            hint="run as root with debootstrap installed, or name a root of your own, a folder or tar, with --root",
        )
    if output is not None:
        with io_faults(output, "writing"):
            output.write_bytes(done.stdout)
