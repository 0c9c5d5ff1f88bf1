"""`docker-daemon:NAME[:TAG]`: an image loaded into a Docker engine, as sink only (an engine pins nothing by manifest)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.docker_engine import DockerEngine, Engine, EngineImage
from imagebuild.oci.docker_image import (
    SingleImage,
    checked_parts,
    docker_tags,
    inflated_parts,
    layer_stream,
    single_image,
)
from imagebuild.oci.json_text import dump
from imagebuild.oci.plain_tar import BLOCK, member_header
from imagebuild.oci.source import Image, StoreResult

_PIECE = 1 << 20
_SECTION = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "ExposedPorts", "Volumes", "StopSignal")
"""What of a config decides how a container runs; compared where the engine does not name the config's digest."""


class DaemonSink:
    """A Docker engine as ImageSink: one platform's image under a name.

    Layers that the engine has (the same diff_ids from the bottom up, in any of its images) are left out of what is sent,
    where the engine accepts that; otherwise everything is sent.  The name is given by the engine at the very end, so an
    interrupted load leaves the old one.  Afterwards the engine is asked what it holds, and that must be our image.
    """

    def __init__(self, connect: Callable[[], Engine] = DockerEngine) -> None:
        self._connect = connect

    @property
    def location(self) -> str:
        return "docker-daemon:"

    def holds(self, name: str, config: Digest) -> bool:
        """Whether the name stands for the image with that config already."""
        with closing(self._connect()) as engine:
            found = engine.image(_tag(name))
        return found is not None and found.id == str(config)

    def store(
        self, image: Image, name: str | None = None, *, complete: bool = False, force: bool = False
    ) -> StoreResult:
        """Loads the image as `name`, moving it where it stood for another one (`previous` tells that one's id).

        `complete` sends every layer.  Raises InputError `oci.several-platforms`, `oci.bad-reference`; UnavailableError
        `oci.engine-unreachable`, `oci.engine-failed`, `oci.blob-missing`; RefusedError `oci.engine-differs`,
        `content.digest-mismatch`.
        """
        if name is None:
            raise InputError("oci.bad-reference", "an image in a Docker engine needs a name")
        tag = _tag(name)
        single = single_image(image, f"docker-daemon:{name}")
        with closing(self._connect()) as engine:
            before = engine.image(tag)
            known = 0 if complete or not engine.takes_part_archives() else _known(engine, single.config.diff_ids)
            archive = _Archive(image, single, tag, known)
            try:
                engine.load(archive.parts())
            except UnavailableError:
                if not known:
                    raise
                # another engine than those that are known to, or a layer that was removed meanwhile
                archive = _Archive(image, single, tag, 0)
                engine.load(archive.parts())
            _verify(engine, tag, single)
        moved = before is not None and before.id != str(single.manifest.config.digest)
        return StoreResult(
            f"docker-daemon:{name}",
            single.document.descriptor.digest,
            uploaded_bytes=archive.sent,
            previous=_digest(before) if moved else None,
        )


def _tag(name: str) -> str:
    return docker_tags(name)[0]


def _digest(found: EngineImage | None) -> Digest | None:
    return Digest.parse(found.id) if found is not None and found.id.startswith("sha256:") else None


def _known(engine: Engine, diff_ids: Sequence[Digest]) -> int:
    """How many layers from the bottom up one of the engine's images has in common with ours."""
    wanted = tuple(map(str, diff_ids))
    best = 0
    for stack in engine.layer_stacks():
        common = 0
        for have, want in zip(stack, wanted, strict=False):
            if have != want:
                break
            common += 1
        best = max(best, common)
        if best == len(wanted):
            break
    return best


class _Archive:
    """A docker-archive made while it is sent; the lowest `known` layers are named but not in it.  Every byte of a layer
    is checked by its digest; a fault ends the stream before its end, so the engine keeps nothing of it."""

    def __init__(self, image: Image, single: SingleImage, tag: str, known: int) -> None:
        self.image = image
        self.single = single
        self.tag = tag
        self.known = known
        self.sent = 0

    def parts(self) -> Iterator[bytes]:
        for part in self._members():
            self.sent += len(part)
            yield part

    def _members(self) -> Iterator[bytes]:
        manifest, config = self.single.manifest, self.single.config
        names = [f"{layer.digest.hex}.tar" for layer in manifest.layers]
        file = f"{manifest.config.digest.hex}.json"
        yield from _whole("manifest.json", dump([{"Config": file, "RepoTags": [self.tag], "Layers": names}]))
        yield from _whole(file, config.raw)
        done: set[str] = set()
        for number in range(self.known, len(names)):
            if names[number] not in done:
                done.add(names[number])
                yield from self._layer(number, names[number])
        yield bytes(2 * BLOCK)

    def _layer(self, number: int, name: str) -> Iterator[bytes]:
        layer, kind = self.single.manifest.layers[number], self.single.kinds[number]
        with layer_stream(self.image, layer) as stream:
            reader = VerifiedReader(stream, layer.digest, layer.size, "layer")
            if kind != "zstd":
                yield from _sized(name, layer.size, iter(lambda: reader.read(_PIECE), b""))
                return
            # engines of 2020 read no zstd, and the size of what it inflates to is known at its end only
            with (
                io_faults("the temporary folder", "writing"),
                tempfile.TemporaryDirectory(prefix="imagebuild-") as scratch,
            ):
                plain = Path(scratch, "layer")
                size = 0
                with open(plain, "wb") as out:
                    for part in checked_parts(inflated_parts(reader, kind), self.single.config.diff_ids[number], layer):
                        size += out.write(part)
                with open(plain, "rb") as held:
                    yield from _sized(name, size, _pieces(held))


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while part := stream.read(_PIECE):
        yield part


def _sized(name: str, size: int, parts: Iterator[bytes]) -> Iterator[bytes]:
    yield member_header(name, size)
    yield from parts
    yield bytes(-size % BLOCK)


def _whole(name: str, data: bytes) -> Iterator[bytes]:
    return _sized(name, len(data), iter((data,)))


def _verify(engine: Engine, tag: str, single: SingleImage) -> None:
    """Raises RefusedError `oci.engine-differs` where the name does not stand for our layers and config now."""
    found = engine.image(tag)
    wanted = tuple(map(str, single.config.diff_ids))
    if found is None:
        raise _differs(engine, tag, "the image", "loaded", "no image of that name")
    if found.layers != wanted:
        raise _differs(engine, tag, "its layers (diff_ids)", ", ".join(wanted), ", ".join(found.layers) or "none")
    if found.id == str(single.manifest.config.digest):
        return
    platform = f"{single.config.platform.os}/{single.config.platform.architecture}"
    if f"{found.os}/{found.architecture}" != platform:
        raise _differs(engine, tag, "its platform", platform, f"{found.os}/{found.architecture}")
    section = single.config.section
    for key in _SECTION:
        ours: Any = section.get(key) or None
        theirs: Any = found.config.get(key) or None
        if ours != theirs:
            raise _differs(engine, tag, f"its config ({key})", repr(ours), repr(theirs))


def _differs(engine: Engine, tag: str, what: str, expected: str, found: str) -> RefusedError:
    return RefusedError(
        "oci.engine-differs",
        f"{tag} in the Docker engine at {engine.address} is not what was loaded: {what}",
        expected=expected,
        found=found,
        hint="do not use it; another program may have moved the name meanwhile: run the same command again",
    )
