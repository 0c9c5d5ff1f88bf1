"""Packing entries into a layer blob whose bytes depend on the entries and the named compressor alone."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.layer.entry import NewEntry
from imagebuild.layer.stored import GZIP_HEADER, StoredGzip, gzip_trailer
from imagebuild.layer.tar_writer import tar_size, write_tar
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor

STORED = "stored"
NONE = "none"
DEFLATE_VERSION = "0.9.0"
DEFLATE = f"deflate-{DEFLATE_VERSION}-6"
ZSTD_LEVEL = 3
STORED_LIMIT = 8 << 20
"""Bytes of tar up to which a layer is stored (images.md, Writing 3)."""

__all__ = ["DEFLATE", "NONE", "STORED", "PackedLayer", "choose_compressor", "pack_layer", "tar_size", "zstd_name"]


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer blob on disk.  `descriptor` speaks of the stored bytes, `diff_id` and `tar_size` of the tar inside;
    `path` is the file, named by its digest."""

    descriptor: Descriptor
    diff_id: Digest
    tar_size: int
    path: Path


def choose_compressor(size: int) -> str:
    """The compressor for a tar of `size` bytes where nobody asked for one: `stored`, above STORED_LIMIT deflate."""
    return STORED if size <= STORED_LIMIT else DEFLATE


def zstd_name() -> str:
    """The name of the zstd compressor that is installed: `zstd-LIBRARY-LEVEL`."""
    import zstandard

    return f"zstd-{'.'.join(map(str, zstandard.ZSTD_VERSION))}-{ZSTD_LEVEL}"


def pack_layer(entries: Iterable[NewEntry], *, family: mt.Family, compressor: str, workdir: Path) -> PackedLayer:
    """Writes the layer into `workdir` (made where missing) as `sha256-HEX`, whole or not at all.

    `compressor` is `stored`, `deflate-0.9.0-6`, the installed `zstd_name()`, or `none` (plain tar, which schema 2 has
    no media type for: the Docker family gets `stored`).  Raises RefusedError `layer.…` for entries that break a rule
    and for zstd in the Docker family (`layer.compressor-family`), UnavailableError `layer.compressor-version` where
    another version is installed, InputError `layer.unknown-compressor`, and UnavailableError `content.…` of the disk.
    """
    kind, media_type = _select(compressor, family)
    with io_faults(workdir, "writing into"):
        workdir.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=workdir)
    try:
        # closing writes what is still held, once more after a disk was full
        with io_faults(workdir, "writing into"), os.fdopen(handle, "w+b") as file:
            out = _Out(file, workdir)
            diff_id, size = _PACKERS[kind](entries, out, workdir)
            with io_faults(workdir, "writing into"):
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
        digest = Digest(out.hash.hexdigest())
        path = workdir / f"sha256-{digest.hex}"
        with io_faults(path, "writing"):
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return PackedLayer(Descriptor(media_type, digest, out.size), diff_id, size, path)


class _Out:
    """Hashes and counts what goes into a file."""

    def __init__(self, file: BinaryIO, where: Path) -> None:
        self._file = file
        self._where = where
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray) -> None:
        with io_faults(self._where, "writing into"):
            self._file.write(data)
        self.hash.update(data)
        self.size += len(data)


def _select(compressor: str, family: mt.Family) -> tuple[str, str]:
    """What to do and the media type of the result."""
    if compressor == NONE:
        return (NONE, mt.OCI_LAYER) if family is mt.OCI else (STORED, family.layer_gzip)
    if compressor == STORED:
        return STORED, family.layer_gzip
    kind = compressor.partition("-")[0]
    if kind == "deflate":
        _same(compressor, _installed_deflate())
        return "deflate", family.layer_gzip
    if kind == "zstd":
        if family.layer_zstd is None:
            raise RefusedError(
                "layer.compressor-family",
                "a Docker schema 2 image cannot have a zstd layer",
                hint="leave the choice of the compressor to imagebuild, or name an OCI base",
            )
        _same(compressor, zstd_name())
        return "zstd", family.layer_zstd
    raise InputError(
        "layer.unknown-compressor",
        f"there is no compressor {compressor!r}",
        expected=f"{STORED}, {DEFLATE}, {zstd_name()} or {NONE}",
        found=compressor,
    )


def _installed_deflate() -> str:
    """The compressor that is installed, or words that say that none is."""
    from importlib import metadata  # costs as much as a tenth of a locked build, which stores its layers

    try:
        import deflate  # noqa: F401

        return f"deflate-{metadata.version('deflate')}-6"
    except (ImportError, metadata.PackageNotFoundError):
        return "the package deflate is not installed"


def _same(wanted: str, installed: str) -> None:
    if wanted != installed:
        raise UnavailableError(
            "layer.compressor-version",
            "the layer was locked with another compressor than the one installed, whose bytes may differ",
            expected=wanted,
            found=installed,
            hint=f"install the version that the name {wanted!r} tells, or lock again",
        )


class _Measure:
    """Hashes and counts the tar on its way into a gzip."""

    def __init__(self, gzip: StoredGzip) -> None:
        self._gzip = gzip
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self.hash.update(data)
        self.size += len(data)
        self._gzip.write(data)


def _stored(entries: Iterable[NewEntry], out: _Out, _: Path) -> tuple[Digest, int]:
    gzip = StoredGzip(out.write)
    tar = _Measure(gzip)
    write_tar(entries, tar)
    gzip.close()
    return Digest(tar.hash.hexdigest()), tar.size


def _plain(entries: Iterable[NewEntry], out: _Out, _: Path) -> tuple[Digest, int]:
    write_tar(entries, out)
    return Digest(out.hash.hexdigest()), out.size


def _deflate(entries: Iterable[NewEntry], out: _Out, workdir: Path) -> tuple[Digest, int]:
    import deflate

    with _tar_file(entries, workdir) as (data, diff_id, size):
        out.write(GZIP_HEADER)
        # The whole buffer at once: libdeflate has no other way, and its bytes cannot depend on how data was cut.
        out.write(deflate.deflate_compress(data, 6))
        out.write(gzip_trailer(zlib.crc32(data), size))
    return diff_id, size


def _zstd(entries: Iterable[NewEntry], out: _Out, workdir: Path) -> tuple[Digest, int]:
    import zstandard

    with _tar_file(entries, workdir) as (data, diff_id, size), memoryview(data) as view:
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True, write_content_size=True, threads=0)
        out.write(compressor.compress(view))
    return diff_id, size


@contextmanager
def _tar_file(entries: Iterable[NewEntry], workdir: Path) -> Iterator[tuple[mmap.mmap, Digest, int]]:
    """The tar in a nameless file, mapped into memory; gone afterwards."""
    with tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX, dir=workdir) as file:
        tar = _Out(file, workdir)
        diff_id, size = _plain(entries, tar, workdir)
        with io_faults(workdir, "writing into"):
            file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data, diff_id, size


_PACKERS = {NONE: _plain, STORED: _stored, "deflate": _deflate, "zstd": _zstd}
