"""A wheel as a value: its members, metadata and RECORD, read without trusting any of it (packaging.python.org, Binary
distribution format, Recording installed projects; PEP 427).

Nothing is unpacked here.  The archive's digest has been checked by whoever hands it over, and still every name, size
and hash in it is checked: a pinned wheel says who made it, not that it is well made.
"""

from __future__ import annotations

import hashlib
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import RefusedError, clean
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.record_rows import record_rows
from imagebuild.overlay.wheel_hashes import parse_hash

MEMBER_LIMIT = 200_000
"""Members of a wheel at most; the largest known ones have some ten thousand."""
FLOOR = 1 << 30
RATIO = 1100
"""Uncompressed bytes at most: the greater of FLOOR and RATIO times the wheel's own size, as for a layer."""
METADATA_LIMIT = 16 << 20
PATH_LIMIT = 4096
NAME_LIMIT = 255
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1


def bad_wheel(where: str, why: str, code: str = "overlay.wheel-malformed", **sides: str) -> RefusedError:
    """The refusal of a wheel that breaks a rule; `where` names it."""
    return RefusedError(
        code,
        f"{where}: {why}",
        hint=sides.pop("hint", "take another version of the wheel, or have it built again"),
        **sides,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file of a wheel: its name in the archive, size in bytes, sha256 as RECORD says it (checked while it is
    read), and whether an installer makes it executable."""

    name: str
    size: int
    sha256: Digest
    executable: bool


@dataclass(frozen=True, slots=True)
class WheelArchive:
    """A wheel on disk that keeps the rules.

    `where` names it in messages, `info` is its `.dist-info` folder, `tags` are the `Tag` lines of WHEEL, `purelib` what
    Root-Is-Purelib says.  `members` has every file by name, RECORD and its signatures apart, `texts` the raw bytes of
    the files directly in `info`.
    """

    path: Path
    archive: zipfile.ZipFile = field(repr=False, compare=False)
    where: str
    name: str
    version: str
    info: str
    tags: tuple[str, ...]
    purelib: bool
    members: Mapping[str, WheelMember] = field(repr=False)
    texts: Mapping[str, bytes] = field(repr=False)

    @property
    def metadata(self) -> str:
        """METADATA as text; bytes that are not UTF-8 stand as surrogate escapes."""
        return self.texts["METADATA"].decode("utf-8", "surrogateescape")

    def open(self, name: str) -> BinaryIO:
        """The bytes of one member, its end only told after size and digest were found right.  Raises RefusedError
        `overlay.wheel-malformed` where the archive is damaged, `overlay.wheel-record-mismatch` for other bytes than
        RECORD lists."""
        with io_faults(self.path, "reading"), _faults(self.where, name):
            return cast(BinaryIO, _MemberStream(self.archive.open(name), name, self))

    def read(self, name: str) -> bytes:
        """All bytes of one member, checked as in `open`."""
        with self.open(name) as stream:
            return stream.read()


class _MemberStream:
    """A member while it is read: hashed, and faults of the archive get a name."""

    def __init__(self, stream: IO[bytes], name: str, wheel: WheelArchive) -> None:
        self._stream = stream
        self._name = name
        self._wheel = wheel
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        with io_faults(self._wheel.path, "reading"), _faults(self._wheel.where, self._name):
            data = self._stream.read(size)
        self._hash.update(data)
        if size < 0 or (size and not data):
            expected, found = self._wheel.members[self._name].sha256, self._hash.hexdigest()
            if found != expected.hex:
                raise _mismatch(self._wheel.where, self._name, expected, Digest(found))
        return data

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _MemberStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def _faults(where: str, name: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise bad_wheel(where, f"{clean(name, 200)} cannot be read ({clean(str(error), 200)})") from error


def _mismatch(where: str, name: str, expected: Digest, found: Digest) -> RefusedError:
    return bad_wheel(
        where,
        f"{clean(name, 200)} is not the file that the wheel's RECORD lists",
        "overlay.wheel-record-mismatch",
        expected=str(expected),
        found=str(found),
    )


def open_wheel(path: Path, name: str, version: str) -> WheelArchive:
    """Reads a wheel's directory, metadata and RECORD, and checks that it is `name` in `version`.

    Raises RefusedError `overlay.wheel-malformed` (not a zip, encrypted, unsafe or double names, links, files over
    folders, wrong or missing metadata, another Wheel-Version than 1), `overlay.wheel-too-large`,
    `overlay.wheel-record-mismatch` (files without row or hash, rows without file), `overlay.wheel-identity` (another
    distribution or version).
    """
    where = f"the wheel {name} {version}"
    with io_faults(path, "reading"), _faults(where, "the archive"):
        archive = zipfile.ZipFile(path)
        try:
            return _read(archive, path, where, name, version)
        except BaseException:
            archive.close()
            raise


def _read(archive: zipfile.ZipFile, path: Path, where: str, name: str, version: str) -> WheelArchive:
    sizes, executables = _directory(archive, path.stat().st_size, where)
    info = _info_folder(sizes, name, where)
    texts: dict[str, bytes] = {}
    for member, size in sizes.items():
        folder, _, leaf = member.rpartition("/")
        if folder == info:
            if size > METADATA_LIMIT:
                raise _too_large(where, member, METADATA_LIMIT, size)
            texts[leaf] = archive.read(member)
    for leaf in ("METADATA", "WHEEL", "RECORD"):
        if leaf not in texts:
            raise bad_wheel(where, f"it has no {info}/{leaf}")
    members = _members(sizes, executables, texts["RECORD"], info, where)
    for leaf, data in texts.items():
        listed = members.get(f"{info}/{leaf}")
        if listed is not None and Digest.of(data) != listed.sha256:
            raise _mismatch(where, f"{info}/{leaf}", listed.sha256, Digest.of(data))
    _identity(texts["METADATA"], name, version, where)
    about = headers_of(texts["WHEEL"].decode("utf-8", "replace"))
    form = about.get("wheel-version", [""])[0]
    if form.split(".")[0] != "1":
        raise bad_wheel(where, "its format is not known", expected="Wheel-Version 1.x", found=form)
    purelib = about.get("root-is-purelib", ["false"])[0].lower() == "true"
    return WheelArchive(path, archive, where, name, version, info, tuple(about.get("tag", [])), purelib, members, texts)


def headers_of(text: str) -> dict[str, list[str]]:
    """The values of each header of WHEEL or METADATA (Core metadata), by lower-case name, up to the blank line."""
    out: dict[str, list[str]] = {}
    last: list[str] | None = None
    for line in text.splitlines():
        if not line.strip():
            break
        if line[:1].isspace():
            if last is not None:
                last[-1] += " " + line.strip()
            continue
        name, colon, value = line.partition(":")
        if colon:
            last = out.setdefault(name.strip().lower(), [])
            last.append(value.strip())
    return out


def _too_large(where: str, what: str, limit: int, found: int) -> RefusedError:
    return bad_wheel(
        where,
        f"{clean(what, 200)} is too large",
        "overlay.wheel-too-large",
        expected=f"at most {limit}",
        found=str(found),
    )


def _directory(archive: zipfile.ZipFile, stored: int, where: str) -> tuple[dict[str, int], set[str]]:
    """Size of each file by name, and the executable ones.  Folders are made from the names of what is in them."""
    listed = archive.infolist()
    if len(listed) > MEMBER_LIMIT:
        raise _too_large(where, "the number of its files", MEMBER_LIMIT, len(listed))
    sizes: dict[str, int] = {}
    executables: set[str] = set()
    total = 0
    for member in listed:
        name = member.filename
        mode = member.external_attr >> 16
        kind = stat.S_IFMT(mode)
        fault = _name_fault(name, member.orig_filename)
        if fault is None and name.rstrip("/") in sizes:
            fault = "stands in it twice"
        if fault is None and kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            fault = "is a link or a device"
        if fault is None and member.flag_bits & _ENCRYPTED:
            fault = "is encrypted"
        if fault is None and member.compress_type not in _METHODS:
            fault = f"is compressed in a way that wheels do not use ({member.compress_type})"
        if fault is not None:
            raise bad_wheel(where, f"{clean(name, 200)!r} {fault}")
        if name.endswith("/"):
            continue
        sizes[name] = member.file_size
        total += member.file_size
        if mode & 0o111 and kind in (0, stat.S_IFREG):
            executables.add(name)
    limit = max(FLOOR, RATIO * stored)
    if total > limit:
        raise _too_large(where, "its unpacked size in bytes", limit, total)
    _refuse_files_over_folders(sizes, where)
    return sizes, executables


def _name_fault(name: str, written: str) -> str | None:
    """Why no file may be made under this name; `written` is the name before zipfile cut it."""
    if name != written:
        return "has a name that readers take differently"
    path = name.removesuffix("/")
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    parts = path.split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "leads out of the folder that it is unpacked to"
    if "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "has a name with a backslash or a control character"
    if size > PATH_LIMIT or any(len(part.encode("utf-8")) > NAME_LIMIT for part in parts):
        return "has a name that is too long"
    if any(part.startswith(".wh.") for part in parts):
        return "has a name that a layer would read as a deletion"
    return None


def _refuse_files_over_folders(names: Mapping[str, int], where: str) -> None:
    for name in names:
        at = name.find("/")
        while at >= 0:
            if name[:at] in names:
                raise bad_wheel(where, f"{clean(name[:at], 200)!r} is a file and a folder")
            at = name.find("/", at + 1)


def _info_folder(names: Mapping[str, int], name: str, where: str) -> str:
    folders = {member.partition("/")[0] for member in names if ".dist-info/" in member}
    folders = {folder for folder in folders if folder.endswith(".dist-info")}
    if len(folders) != 1:
        raise bad_wheel(where, "it does not have one .dist-info folder", found=", ".join(sorted(folders)) or "none")
    (folder,) = folders
    if normalise_name(folder.partition("-")[0]) != normalise_name(name):
        raise bad_wheel(
            where, "it is another distribution", "overlay.wheel-identity", expected=name, found=folder.partition("-")[0]
        )
    return folder


def _members(
    sizes: Mapping[str, int], executables: set[str], record: bytes, info: str, where: str
) -> dict[str, WheelMember]:
    """Every file with its row of RECORD; PEP 427: each one but RECORD and its signatures is listed with a hash."""
    rows: dict[str, tuple[Digest, str]] = {}
    unlisted = {f"{info}/{leaf}" for leaf in ("RECORD", *_SIGNATURES)}
    for row in record_rows(record):
        if not row.path or row.path in unlisted:
            continue
        digest = parse_hash(row.hash)
        if digest is None:
            raise bad_wheel(
                where,
                f"its RECORD lists {clean(row.path, 200)} without a sha256",
                "overlay.wheel-record-mismatch",
                expected="sha256=…",
                found=clean(row.hash, 80) or "no hash",
            )
        rows[row.path] = (digest, row.size)
    out: dict[str, WheelMember] = {}
    for name, size in sizes.items():
        if name in unlisted:
            continue
        listed = rows.pop(name, None)
        if listed is None or (listed[1] and listed[1] != str(size)):
            raise bad_wheel(
                where,
                f"{clean(name, 200)} is not the file that the wheel's RECORD lists",
                "overlay.wheel-record-mismatch",
                expected=f"{listed[1]} bytes" if listed is not None else "a row for each file",
                found=f"{size} bytes" if listed is not None else "no row",
            )
        out[name] = WheelMember(name, size, listed[0], name in executables)
    if rows:
        raise bad_wheel(
            where,
            "its RECORD lists a file that is not in it",
            "overlay.wheel-record-mismatch",
            found=clean(next(iter(rows)), 200),
        )
    return out


def _identity(metadata: bytes, name: str, version: str, where: str) -> None:
    from imagebuild.overlay.identity import normalise_version

    about = headers_of(metadata.decode("utf-8", "replace"))
    found_name, found_version = about.get("name", [""])[0], about.get("version", [""])[0]
    if normalise_name(found_name) != normalise_name(name) or normalise_version(found_version) != normalise_version(
        version
    ):
        raise bad_wheel(
            where,
            "its METADATA speaks of another distribution",
            "overlay.wheel-identity",
            expected=f"{name} {version}",
            found=clean(f"{found_name} {found_version}", 200),
            hint="correct name and version in overlay.yaml, or the digest",
        )


def sha256_of(path: Path) -> Digest:
    """The digest of a file."""
    with io_faults(path, "reading"), open(path, "rb") as stream:
        return Digest(hashlib.file_digest(stream, "sha256").hexdigest())
