"""An image's layers as one folder, made from their merged view (image-spec layer.md, Applying Changesets).

What every path is, is decided before anything is written: layers are read once for their facts, under all the rules that
hold for a base, and merged.  Then folders are made, files written into folders that we made ourselves, hard links, and
symbolic links last: so nothing is ever written through a link, whatever a layer says, and nothing that a higher layer hides
is written at all.  The bytes of every layer are checked by its digest, its diff_id by the config, every file by its sha256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagebuild.check.runner import CheckedImage
from imagebuild.check.runners.loading import child_of
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.layer.compression import DecompressingReader, uncompressed_limit
from imagebuild.layer.entry import Entry, Found, Kind, LayerFacts
from imagebuild.layer.facts_store import FactsStore
from imagebuild.layer.sparse import SPARSE_OFFSET
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import layer_compression
from imagebuild.oci.layout import opened_blob
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import Child

SPARSE_LIMIT = 1 << 30
"""Bytes of all sparse files of a layer, which go through memory."""
_PIECE = 1 << 20
_RESERVE = 64 << 20
"""Bytes that must stay free on the disk."""
_CAPABILITY = "security.capability"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was written: number of paths, bytes of files, and the paths of device nodes, which are never made."""

    paths: int
    size: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    """One file of the merged view: where its data lies, and all its names, the first of which is written."""

    layer: int
    entry: Entry
    names: tuple[str, ...]


def unpack_image(
    image: CheckedImage,
    folder: Path,
    *,
    owners: bool | None = None,
    facts: FactsStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Makes `folder`, which must not exist, the root file system of an image.

    `owners` says whether owners, capabilities and set-id bits are kept; None: where this process is root's.  `facts` spares
    reading layers that are known.  `progress` gets the bytes of every piece written.

    Raises what reading the image raises, among it RefusedError `base.…` for a layer that breaks a rule and
    `content.digest-mismatch`; UnavailableError `content.disk-full`, `content.io`.  After an error the folder holds a part.
    """
    child = child_of(image)
    layers = layer_facts(image.source, child, facts)
    view = MergedView(layers)
    shown = view.walk()
    keep = os.geteuid() == 0 if owners is None else owners
    writer = _Writer(folder, keep, progress)
    with io_faults(folder, "unpacking an image into"):
        return writer.write(image.source, child.manifest.layers, layers, view, shown)


def layer_facts(source: ImageSource, child: Child, known: FactsStore | None = None) -> list[LayerFacts]:
    """Facts of every layer, lowest first.  Raises what read_layer raises, and RefusedError `content.digest-mismatch` where
    the config says another diff_id."""
    out = []
    for layer, diff_id in zip(child.manifest.layers, child.config.diff_ids, strict=True):
        facts = None if known is None else known.load(layer.digest)
        if facts is None:
            with opened_blob(source, layer, "layer") as stream:
                facts = read_layer(stream, layer)
            if known is not None:
                with suppress(UnavailableError):
                    known.store(facts)
        if facts.diff_id != diff_id:
            raise RefusedError(
                "content.digest-mismatch",
                f"the layer {layer.digest} does not hold what its config says",
                expected=f"diff_id {diff_id}",
                found=str(facts.diff_id),
            )
        out.append(facts)
    return out


class _Writer:
    def __init__(self, root: Path, owners: bool, progress: Callable[[int], None] | None) -> None:
        self._root = os.fsencode(root)
        self._owners = owners
        self._progress = progress
        self._size = 0

    def write(
        self,
        source: ImageSource,
        descriptors: Sequence[Descriptor],
        layers: Sequence[LayerFacts],
        view: MergedView,
        shown: Sequence[tuple[str, Found]],
    ) -> Unpacked:
        folders, links, left_out = [], [], []
        files: dict[tuple[int, str], list[str]] = {}
        entries: dict[tuple[int, str], Entry] = {}
        for path, found in shown:
            _check(path)
            origin = view.origin(found)
            if found.entry.kind is Kind.DIRECTORY:
                folders.append((path, found.entry))
            elif origin is None or origin[1].kind in (Kind.CHARACTER, Kind.BLOCK):
                left_out.append(path)
            elif origin[1].kind is Kind.SYMLINK:
                links.append((path, origin[1]))
            else:
                key = (origin[0], origin[1].path)
                files.setdefault(key, []).append(path)
                entries[key] = origin[1]
        wanted = [_File(key[0], entries[key], tuple(names)) for key, names in files.items()]
        self._room(wanted)
        os.mkdir(self._root, 0o700)
        for path, _ in folders:
            if path:
                os.mkdir(self._at(path), 0o700)
        for number, descriptor in enumerate(descriptors):
            self._files(source, descriptor, [file for file in wanted if file.layer == number])
        for file in wanted:
            for name in file.names[1:]:
                os.link(self._at(file.names[0]), self._at(name), follow_symlinks=False)
        for path, entry in links:
            os.symlink(os.fsencode(entry.link), self._at(path))
            self._attributes(path, entry)
        for path, entry in reversed(folders):
            self._attributes(path, entry)
        return Unpacked(len(shown) - len(left_out), self._size, tuple(left_out))

    def _at(self, path: str) -> bytes:
        return os.path.join(self._root, path.encode("utf-8", "surrogateescape")) if path else self._root

    def _room(self, files: Iterable[_File]) -> None:
        needed = sum(file.entry.size for file in files) + _RESERVE
        free = shutil.disk_usage(os.path.dirname(self._root) or b".").free
        if needed > free:
            raise UnavailableError(
                "content.disk-full",
                f"no room for the unpacked image in {os.fsdecode(self._root)}",
                expected=f"{needed} bytes",
                found=f"{free} bytes free",
                hint="free some space, or name another folder as scratch",
            )

    def _files(self, source: ImageSource, descriptor: Descriptor, files: Sequence[_File]) -> None:
        """Writes the files whose data lies in one layer, in the order in which it comes."""
        pieces = [file for file in files if file.entry.offset == SPARSE_OFFSET]
        plain = sorted((f for f in files if f.entry.offset != SPARSE_OFFSET), key=lambda file: file.entry.offset)
        if pieces:
            self._sparse(source, descriptor, {file.entry.path: file for file in pieces})
        if not plain:
            return
        what = f"layer {descriptor.digest}"
        with opened_blob(source, descriptor, "layer") as stream:
            verified = VerifiedReader(stream, descriptor.digest, descriptor.size, what)
            reader = DecompressingReader(
                verified, layer_compression(descriptor, what), uncompressed_limit(descriptor.size), what
            )
            tar = _Forward(reader, what)
            for file in plain:
                if file.entry.kind is Kind.FIFO:
                    os.mkfifo(self._at(file.names[0]), 0o600)
                    self._attributes(file.names[0], file.entry)
                else:
                    if file.entry.size:
                        tar.skip_to(file.entry.offset)
                    self._file(file, tar.parts(file.entry.size))

    def _sparse(self, source: ImageSource, descriptor: Descriptor, files: Mapping[str, _File]) -> None:
        data: dict[str, bytes] = {}
        with opened_blob(source, descriptor, "layer") as stream:
            read_layer(
                stream,
                descriptor,
                capture=lambda path, size: path in files,
                captured=lambda entry, found: data.update({entry.path: found}),
                capture_limit=SPARSE_LIMIT,
            )
        for path, file in files.items():
            self._file(file, iter((data[path],)))

    def _file(self, file: _File, parts: Iterable[bytes]) -> None:
        hasher = hashlib.sha256()
        path = self._at(file.names[0])
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            for part in parts:
                hasher.update(part)
                out.write(part)
                self._size += len(part)
                if self._progress is not None:
                    self._progress(len(part))
        if file.entry.sha256 is not None and hasher.hexdigest() != file.entry.sha256.hex:
            raise RefusedError(
                "content.digest-mismatch",
                f"the file {file.entry.path!r} of an image came out other than its layer was read before",
                expected=str(file.entry.sha256),
                found=str(Digest(hasher.hexdigest())),
            )
        self._attributes(file.names[0], file.entry)

    def _attributes(self, path: str, entry: Entry) -> None:
        """Owner before mode, since a change of owner takes set-id bits away; the time last."""
        at = self._at(path)
        link = entry.kind is Kind.SYMLINK
        if self._owners:
            os.chown(at, entry.uid, entry.gid, follow_symlinks=False)
        for name, value in entry.xattrs:
            if name.startswith("user.") or (self._owners and name == _CAPABILITY):
                with suppress(OSError):  # a file system without such attributes
                    os.setxattr(at, name, value, follow_symlinks=False)
        if not link:
            os.chmod(at, entry.mode if self._owners else entry.mode & 0o777 | (0o700 if path == "" else 0))
        if not is_implied(entry):
            with suppress(OverflowError):
                os.utime(at, (entry.mtime, entry.mtime), follow_symlinks=False)


class _Forward:
    """The uncompressed tar, read forward only."""

    def __init__(self, reader: DecompressingReader, what: str) -> None:
        self._reader = reader
        self._what = what
        self._held = b""
        self._at = 0

    def skip_to(self, offset: int) -> None:
        for _ in self.parts(offset - self._at):
            pass

    def parts(self, size: int) -> Iterable[bytes]:
        while size > 0:
            data = self._held or self._reader.read(_PIECE)
            if not data:
                raise RefusedError("base.bad-tar", f"{self._what} ends before its last file")
            part, self._held = data[:size], data[size:]
            self._at += len(part)
            size -= len(part)
            yield part


def _check(path: str) -> None:
    """The reader of layers refuses such names; what is written never depends on that alone."""
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise RefusedError("base.bad-path", f"the path {path[:200]!r} cannot be unpacked")
