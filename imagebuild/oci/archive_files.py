"""The files inside an image archive, by name: a tar, plain or gzip (cli.md, `oci-archive:`)."""

from __future__ import annotations

import gzip
import io
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from imagebuild.content.files import io_faults
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.plain_tar import Forward, Member, index_members

GIGABYTE = 1 << 30
RATIO = 1100
"""Uncompressed bytes for one compressed byte at most, above GIGABYTE (images.md, Bounds)."""
_OTHERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz", b"BZh": "bzip2"}


@contextmanager
def _faults(what: str) -> Iterator[None]:
    """Damage of a gzip stream as RefusedError `oci.bad-archive`."""
    from isal import isal_zlib

    broken: type[Exception] = isal_zlib.error  # type: ignore[assignment]
    try:
        with io_faults(what, "reading"):
            try:
                yield
            except gzip.BadGzipFile as error:
                raise EOFError(str(error)) from error
    except (EOFError, broken) as error:
        raise RefusedError("oci.bad-archive", f"{what} cannot be read: its gzip stream is damaged ({error})") from error


class _Window(io.RawIOBase):
    """The bytes of one member, out of a stream that it owns."""

    def __init__(self, stream: Forward, member: Member, close: Callable[[], None], what: str) -> None:
        self._stream, self._left, self._close, self._what = stream, member.size, close, what
        with _faults(what):
            stream.skip_to(member.offset)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        with _faults(self._what):
            data = self._stream.read(min(len(view), self._left))
        self._left -= len(data)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


class ArchiveFiles:
    """The members of a tar by name, in the form that LayoutReader asks for.

    One pass at the first question lists the members.  A plain tar is then read at random; a gzip one is inflated again
    from its start for each large member, which costs time but neither disk nor memory.
    """

    def __init__(self, path: Path, transport: str) -> None:
        self.path = path
        self._transport = transport
        self._members: dict[str, Member] | None = None
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return f"{self._transport}:{self.path}"

    def open(self, name: str) -> tuple[BinaryIO, int] | None:
        member = self.members().get(name)
        if member is None:
            return None
        if name in self._kept:
            return io.BytesIO(self._kept[name]), member.size
        stream, close, _ = self._start()
        return io.BufferedReader(_Window(stream, member, close, self.location), 1 << 17), member.size

    def size(self, name: str) -> int | None:
        member = self.members().get(name)
        return None if member is None else member.size

    def members(self) -> dict[str, Member]:
        """Raises InputError `oci.not-an-archive`, RefusedError `oci.bad-archive`."""
        with self._lock:
            if self._members is None:
                stream, close, limit = self._start()
                try:
                    with _faults(self.location):
                        keep = None if stream.seekable else self._kept
                        self._members = index_members(stream, limit, self.location, keep)
                finally:
                    close()
            return self._members

    def _start(self) -> tuple[Forward, Callable[[], None], int]:
        """The tar from its start, what closes it, and the bytes that it may hold."""
        with io_faults(self.path, "reading"):
            try:
                handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise InputError("oci.not-an-archive", f"there is no file {self.path}") from None
            raw = os.fdopen(handle, "rb") if stat.S_ISREG(os.fstat(handle).st_mode) else None
            if raw is None:
                os.close(handle)
                raise InputError("oci.not-an-archive", f"{self.path} is not a regular file")
            size = os.fstat(handle).st_size
            magic = raw.read(4)
            raw.seek(0)
        if magic[:2] == b"\x1f\x8b":
            from isal import igzip

            inflated: Any = igzip.IGzipFile(fileobj=raw)  # type: ignore[no-untyped-call]
            return Forward(inflated, False), raw.close, max(GIGABYTE, RATIO * size)
        for mark, name in _OTHERS.items():
            if magic.startswith(mark):
                raw.close()
                raise InputError(
                    "oci.not-an-archive",
                    f"{self.path} is compressed with {name}, which is not read here",
                    expected="a plain or gzip tar",
                    hint=f"decompress {self.path} first",
                )
        return Forward(raw, True), raw.close, size
