"""A locked build: from lock, overlays and content to an image in one or more places."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.asked import asked_paths
from imagebuild.build.base_documents import load_base
from imagebuild.build.contents import Contents
from imagebuild.build.derived import derived_files
from imagebuild.build.events import Emitter
from imagebuild.build.image import PlatformFiles, check_result, make_image
from imagebuild.build.locked import apply_locked, change_bytes
from imagebuild.build.locked_artefacts import LockedArtefacts
from imagebuild.build.opening import Opener
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci import media_types as mt
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import (
    DaemonReference,
    DigestReference,
    PathReference,
    Reference,
    TagReference,
)
from imagebuild.oci.source import Document, Image, ImageSource, StoreResult
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Inputs, Lock, PathFact, PlatformInputs, PlatformResult, Result


@dataclass(frozen=True, slots=True)
class Stored:
    """One place that the image went to; `reference` is pinned."""

    reference: str
    result: StoreResult
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """What a build did for one target.  Bytes and requests are sums over all places."""

    target: str
    digest: Digest
    content_id: Digest
    platforms: tuple[PlatformResult, ...]
    stored: tuple[Stored, ...] = field(default=())


class BaseFiles:
    """Fetches single files of the base for builds whose content folder lacks them (`content: cache`)."""

    def __init__(
        self, lock: Lock, opener: Opener, target: Target, contents: Contents, facts: FactsStore, emitter: Emitter
    ) -> None:
        self._lock = lock
        self._contents = contents
        self._facts = facts
        self._emitter = emitter
        self.source = cache(lambda: opener.source(target.base))

    def _wanted(self, layer: Digest) -> dict[Digest, str]:
        """Every file of a layer that this build may ask for, so that the layer passes once."""
        derived = {item.path for p in self._lock.inputs.platforms for item in p.changes if item.patch is not None}
        return {
            fact.sha256: fact.path.removeprefix("/")
            for platform in self._lock.inputs.platforms
            for fact in platform.facts
            if fact.layer == layer and fact.sha256 is not None and (fact.change or fact.path in derived)
        }

    def read(self, platform: PlatformInputs, fact: PathFact) -> bytes:
        """The bytes of one file, out of its holder's layer.  Raises RefusedError where the layer no longer holds it."""
        # reading layers needs compiled packages; a build whose content is committed needs none
        from imagebuild.build.reading import BaseReader

        assert fact.sha256 is not None
        base = load_base(self._lock.inputs, self._contents, self.source)
        layers = base.manifests[str(platform.platform)].layers
        data = None
        for number, descriptor in enumerate(layers, 1):
            if descriptor.digest == fact.layer:
                reader = BaseReader(
                    self.source(), self._facts, self._contents, self._emitter, lambda _path, _size: False
                )
                reader.read_for(descriptor, number, len(layers), self._wanted(descriptor.digest))
                data = self._contents.get(fact.sha256)
        if data is None:
            raise RefusedError(
                "lock.content-missing",
                f"{fact.path} of the base is neither in the content folder nor in the layer that the lock names",
                expected=str(fact.sha256),
                hint=f"imagebuild lock {self._lock.inputs.target}",
            )
        return data


def platform_files(
    inputs: Inputs,
    platform: PlatformInputs,
    overlays: Sequence[Overlay],
    contents: Contents,
    base_files: BaseFiles,
    store: ArtefactStore,
) -> PlatformFiles:
    """The data of every file that one platform's layers hold, every guard of the series checked again.

    Raises as apply_series, and RefusedError `lock.stale`.
    """
    asked = asked_paths(overlays, platform.platform)
    artefacts = LockedArtefacts(platform, overlays, store, asked)

    def read(fact: PathFact) -> bytes:
        return artefacts.read(fact) if fact.layer is None else base_files.read(platform, fact)

    applied = apply_locked(platform, inputs, overlays, contents, asked.whole, read, artefacts.bring)
    written = change_bytes(platform, applied)
    derived = derived_files(inputs, platform, contents, read)
    return PlatformFiles({**written, **derived}, artefacts.files(applied))


def build_image(
    lock: Lock,
    target: Target,
    overlays: Sequence[Overlay],
    contents: Contents,
    base_files: BaseFiles,
    workdir: Path,
    emitter: Emitter,
    store: ArtefactStore,
) -> Image:
    """The image of a current lock, every guard checked again and the result compared with the lock's.

    Own layers lie below `workdir`, which must live as long as the image is stored.  Raises as apply_series, and RefusedError
    `lock.stale`, `build.postimage-mismatch`, `build.result-differs`.
    """
    inputs = lock.inputs
    base = load_base(inputs, contents, base_files.source)
    files: dict[str, PlatformFiles] = {}
    for platform in inputs.platforms:
        made = platform_files(inputs, platform, overlays, contents, base_files, store)
        files[str(platform.platform)] = made
        emitter.emit("changes.applied", platform=str(platform.platform), files=len(made.changes))
    image, result = make_image(inputs, base, files, workdir, emitter, None)
    check_result(lock.result, result)
    return image


def select_platforms(lock: Lock, platforms: Sequence[Platform]) -> Result:
    """The result that a build for these platforms stands for: the lock's, or one platform's manifest alone.

    Raises InputError `build.platform-not-locked`, `build.platform-subset`.
    """
    result = lock.result
    if not platforms:
        return result
    there = {str(item.platform): item for item in result.platforms}
    for platform in platforms:
        if str(platform) not in there:
            raise InputError(
                "build.platform-not-locked",
                f"{lock.inputs.target} is not built for {platform}",
                expected=", ".join(there),
                found=str(platform),
            )
    if len(set(platforms)) == len(there):
        return result
    if len(set(platforms)) > 1:
        raise InputError(
            "build.platform-subset",
            "name one platform, or none for the whole index: an index of some of them would be another image",
            found=", ".join(map(str, platforms)),
        )
    item = there[str(platforms[0])]
    media_type = next(p.manifest_type for p in lock.inputs.platforms if p.platform == item.platform)
    return replace(result, digest=item.manifest, size=item.manifest_size, media_type=media_type, platforms=(item,))


def narrowed(image: Image, result: Result) -> Image:
    """The image of one platform alone: its manifest as the top."""
    if image.top.descriptor.digest == result.digest:
        return image
    (only,) = result.platforms
    top = next(m for m in image.manifests if m.descriptor.digest == only.manifest)
    from imagebuild.oci.documents import Manifest

    manifest = Manifest.parse(top.raw, top.descriptor.media_type)
    listed = {layer.digest for layer in manifest.layers}
    return Image(
        Document(top.descriptor, top.raw),
        (),
        tuple(c for c in image.configs if c.descriptor.digest == only.config),
        tuple(blob for blob in image.own if blob.descriptor.digest in listed),
        tuple(layer for layer in image.base_layers if layer.digest in listed),
        image.base,
        image.labels,
    )


def pinned_text(reference: Reference, digest: Digest) -> str:
    """The reference by which the stored image is found for ever; in a docker-archive and in a Docker engine that is only
    its name."""
    if isinstance(reference, DaemonReference) or (
        isinstance(reference, PathReference) and reference.transport == "docker-archive"
    ):
        return str(reference)
    if isinstance(reference, TagReference):
        return str(DigestReference(reference.repository, digest, reference.tag))
    if isinstance(reference, PathReference):
        return str(replace(reference, digest=digest))
    return f"{reference}@{digest}"


def current_digest(opener: Opener, reference: Reference, target: Target, result: Result) -> Digest | None:
    """What stands at an output now: one request for a registry, one file for a layout; None where nothing does.  A Docker
    engine knows the config's digest only, so there `result` says which image has it."""
    if isinstance(reference, DaemonReference):
        from imagebuild.oci.docker_daemon import DaemonSink

        sink, name = opener.sink(reference)
        assert isinstance(sink, DaemonSink)
        assert name is not None
        held = len(result.platforms) == 1 and sink.holds(name, result.platforms[0].config)
        return result.digest if held else None
    if isinstance(reference, PathReference):
        if reference.transport != "oci":
            return None
        from imagebuild.oci.layout import layout_current

        return layout_current(opener.path(reference), reference.name)
    if not isinstance(reference, TagReference):
        return None
    from imagebuild.registry.sink import RegistrySink

    registry, tag = opener.sink(reference)
    assert isinstance(registry, RegistrySink)
    assert tag is not None
    # the base is named so that one token serves this question and the push that may follow
    base = opener.source(target.base) if isinstance(target.base, DigestReference) else None
    return registry.current(tag, base)


def store_image(
    image: Image, opener: Opener, reference: Reference, *, complete: bool, force: bool, emitter: Emitter
) -> Stored:
    """Stores the image at one place.  Raises what the sink raises; nothing is named before everything is there."""
    sink, name = opener.sink(reference)
    emitter.emit("image.storing", reference=str(reference), digest=str(image.top.descriptor.digest))
    result = sink.store(image, name, complete=complete, force=force)
    emitter.emit("image.stored", reference=str(reference), digest=str(result.digest))
    return Stored(pinned_text(reference, result.digest), result)


def run_build(
    lock: Lock,
    target: Target,
    overlays: Sequence[Overlay],
    outputs: Sequence[tuple[Reference, Sequence[Platform]]],
    opener: Opener,
    contents: Contents,
    facts: FactsStore,
    emitter: Emitter,
    store: ArtefactStore,
    *,
    complete: bool = False,
    force: bool = False,
) -> BuildOutcome:
    """Brings the image of a current lock to every output (a reference, and the platforms wanted there; none: all).

    An output that already names the wanted digest costs one question; the image is made only when one lacks it.
    """
    stored: list[Stored] = []
    pending: list[tuple[Reference, Result]] = []
    for reference, platforms in outputs:
        result = select_platforms(lock, platforms)
        if not complete and current_digest(opener, reference, target, result) == result.digest:
            emitter.emit("image.unchanged", reference=str(reference), digest=str(result.digest))
            done = StoreResult(str(reference), result.digest)
            stored.append(Stored(pinned_text(reference, result.digest), done, unchanged=True))
        else:
            pending.append((reference, result))
    if pending:
        with io_faults("the temporary folder", "writing"), tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
            base_files = BaseFiles(lock, opener, target, contents, facts, emitter)
            image = build_image(lock, target, overlays, contents, base_files, Path(folder), emitter, store)
            image = replace(image, base=_base_source(base_files, outputs))
            for reference, result in pending:
                stored.append(
                    store_image(
                        narrowed(image, result), opener, reference, complete=complete, force=force, emitter=emitter
                    )
                )
    first = select_platforms(lock, outputs[0][1]) if outputs else lock.result
    return BuildOutcome(target.name, first.digest, lock.result.content_id, first.platforms, tuple(stored))


def _base_source(base_files: BaseFiles, outputs: Sequence[tuple[Reference, Sequence[Platform]]]) -> ImageSource | None:
    """Where whoever stores the image finds base layers.  A base that is a folder which is not here is no reason to fail:
    a sparse layout needs none of it, and a sink that does says what it misses."""
    try:
        return base_files.source()
    except UnavailableError:
        if any(not isinstance(reference, PathReference) or reference.transport != "oci" for reference, _ in outputs):
            raise
        return None


def is_index(result: Result) -> bool:
    return result.media_type in mt.INDEXES
