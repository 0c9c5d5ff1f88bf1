"""The values of a lock: what one target resolved to (formats.md, target.lock.json).

`Inputs` alone determines the image; its canonical JSON is hashed into the content id.  `Result` is what came out, `notes` is
commentary.  Paths of the image begin with `/` in these values, since people read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform

LAYER_FORMAT = 1
"""Number of the rules by which layers are written; another number means other bytes from the same inputs."""

SECONDS_1980 = 315532800
"""1980-01-01T00:00:00Z: the earliest time of an entry (zip tools refuse earlier ones)."""


@dataclass(frozen=True, slots=True)
class BaseLayer:
    """A layer of the base, as the lock saw it.  `read` tells whether its facts were learned."""

    digest: Digest
    size: int
    media_type: str
    diff_id: Digest
    read: bool


@dataclass(frozen=True, slots=True)
class PathFact:
    """What is known of one path of the base that matters.

    `state`: `present`, `absent` (every layer was read), `absent-above` (no layer down to the package's own shows it, and the
    owning RECORD does not list it) or `not-proven`.  For present paths: `layer` the holder's digest, `kind` as in
    layer.entry.Kind, permission bits, owner, time in seconds, size in bytes, data digest, link target, extended attributes
    (values in hexadecimal), `head` the first 16 bytes of a .pyc (hexadecimal).  `names` other hard links to the same data.
    `change` is the ROOT/relative path by which an overlay names it, "" where none does.
    """

    path: str
    state: str
    layer: Digest | None = None
    kind: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    sha256: Digest | None = None
    link: str = ""
    xattrs: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    names: tuple[str, ...] = ()
    change: str = ""


@dataclass(frozen=True, slots=True)
class LayerItem:
    """One entry of a layer that we write.

    `kind`: file, directory, symlink, whiteout.  `origin` says where it comes from: `change:ROOT/relative` (the series),
    `record:/path`, `bytecode:/path of the source`, `provenance:/dist-info`, `sbom:/dist-info`, `parent`; in the artefacts layer `wheel:NAME`,
    `removed:/dist-info` (a version that a wheel replaces), `blob:ROOT/relative`, `stage:ROOT/relative`.  `preimage` is the digest of what
    it replaces (None: nothing), `postimage` of what it holds; a provenance file has no postimage here, since its bytes hold the content id.
    `patch` is the digest of the compiled patch (in the content folder) by which a derived file comes from its preimage.
    """

    path: str
    kind: str
    origin: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    link: str = ""
    xattrs: Mapping[str, str] = field(default_factory=dict)
    preimage: Digest | None = None
    postimage: Digest | None = None
    patch: Digest | None = None


@dataclass(frozen=True, slots=True)
class ArtefactSource:
    """What files of the artefacts layer are made from.  `kind` and `name`: `wheel` and the distribution, `blob` or `stage` and
    the ROOT/relative path; digest and size in bytes of the file that is fetched; `version` of a wheel.  `details` holds JSON values: for
    a wheel `python` (the image's) and `scheme` (where an installer puts things), for a stage what its maker needs."""

    kind: str
    name: str
    sha256: Digest
    size: int
    version: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RootFact:
    """A root: the folder it was found at, the distribution that owns it ("" for none), its dist-info and site folder."""

    name: str
    folder: str
    distribution: str = ""
    dist_info: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True)
class PlatformInputs:
    """Everything that determines one platform's image.  `compressors` by layer role; `sources` of the artefacts, by kind and
    name."""

    platform: Platform
    manifest: Digest
    manifest_size: int
    manifest_type: str
    config: Digest
    layers: tuple[BaseLayer, ...]
    roots: tuple[RootFact, ...]
    facts: tuple[PathFact, ...]
    artefacts: tuple[LayerItem, ...]
    changes: tuple[LayerItem, ...]
    environment: tuple[tuple[str, str], ...]
    compressors: Mapping[str, str]
    not_proven: tuple[str, ...]
    sources: tuple[ArtefactSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    """`base` is the reference as the target names it (tag and all), `base_digest` its pinned digest, of an index
    (`base_index` then) or a manifest.  `wanted` is what people's files ask for, in a form without commentary; a build
    compares it with the files of the day.  `created` is in seconds since 1970."""

    target: str
    base: str
    base_digest: Digest
    base_media_type: str
    created: int
    wanted: Mapping[str, Any]
    platforms: tuple[PlatformInputs, ...]
    layer_format: int = LAYER_FORMAT
    _content_id: list[Digest] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def content_id(self) -> Digest:
        """sha256 of the canonical JSON of these inputs; worked out once, since labels, provenance and checks all ask."""
        if not self._content_id:
            from imagebuild.target.lock import format_inputs

            self._content_id.append(Digest.of(canonical_json(format_inputs(self))))
        return self._content_id[0]

    @property
    def is_index(self) -> bool:
        from imagebuild.oci.media_types import INDEXES

        return self.base_media_type in INDEXES


@dataclass(frozen=True, slots=True)
class ResultLayer:
    """A layer that we made: role `artefacts` or `changes`; size in stored bytes."""

    role: str
    digest: Digest
    diff_id: Digest
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class PlatformResult:
    """One platform's image: digests of manifest and config, and the layers that we made; `manifest_size` in bytes."""

    platform: Platform
    manifest: Digest
    manifest_size: int
    config: Digest
    layers: tuple[ResultLayer, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What the inputs gave: `digest` of the index, or of the single manifest."""

    digest: Digest
    size: int
    media_type: str
    content_id: Digest
    platforms: tuple[PlatformResult, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """A whole lock file.  `notes` holds what nothing depends on."""

    inputs: Inputs
    result: Result
    notes: Mapping[str, Any] = field(default_factory=dict)
