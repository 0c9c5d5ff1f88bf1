"""The kinds of change that an overlay may hold, and the guards over the paths that they touch (formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, PathReference
from imagebuild.overlay.paths import Glob, validate_path

ABSENT = "absent"
"""The word that stands for *no file there* in a guard."""


@dataclass(frozen=True, slots=True)
class PatchChange:
    """A unified diff of one or many files; `patch` is its path below the overlay's folder."""

    patch: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """A whole file: `file` below the overlay's folder becomes `to` (ROOT/relative), new or in place of the base's."""

    file: str
    to: str

    def __post_init__(self) -> None:
        validate_path(self.to, "to")


@dataclass(frozen=True, slots=True)
class EditChange:
    """`find`, which stands exactly once in the file `path`, becomes `replace`."""

    path: str
    find: str
    replace: str

    def __post_init__(self) -> None:
        validate_path(self.path, "path")
        if not self.find or self.find == self.replace:
            raise InputError(
                "overlay.empty-edit", "the edit changes nothing", expected="`find`, and another text in `replace`"
            )


@dataclass(frozen=True, slots=True)
class DeleteChange:
    """One `path`, or everything that `glob` matches, which must be `count` paths."""

    path: str | None = None
    glob: str | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            validate_path(self.path, "path")
        if self.glob is not None:
            Glob(self.glob)
        if (self.path is None) == (self.glob is None) or (self.glob is None) != (self.count is None):
            raise InputError("overlay.bad-delete", "a deletion has a path, or a glob and its count")


@dataclass(frozen=True, slots=True)
class SymlinkChange:
    """A symbolic link at `path` whose text is `to`, as written."""

    path: str
    to: str

    def __post_init__(self) -> None:
        validate_path(self.path, "path")


@dataclass(frozen=True, slots=True)
class WheelChange:
    """A Python distribution, extracted (pip never runs).  `sha256` gives the wheel's digest for each platform; `url`
    its address, `{arch}` (x86_64, aarch64) and `{platform}` (linux/amd64) in it replaced, or None for the package
    index.  `without` names requirements that the image does without, each accepted by whoever reviewed the overlay."""

    name: str
    version: str
    sha256: Mapping[Platform, Digest]
    url: str | None = None
    without: tuple[str, ...] = ()

    def address(self, platform: Platform) -> str | None:
        """The address for one platform, None for the package index."""
        if self.url is None:
            return None
        return self.url.replace("{arch}", platform.machine).replace("{platform}", str(platform))


@dataclass(frozen=True, slots=True)
class BlobChange:
    """A file of any kind at `path`, from a `url` (with its `size` in bytes) or a `file` below the overlay's folder.
    `elf` is the machine that its ELF header must name, `gfx` the AMD architecture of its code objects; `mode` the
    permission bits (None: those of the file that it replaces, else 0644); `platforms` those that get it, all where
    it is empty."""

    path: str
    sha256: Digest
    url: str | None = None
    file: str | None = None
    size: int | None = None
    elf: str | None = None
    gfx: str | None = None
    mode: int | None = None
    platforms: tuple[Platform, ...] = ()

    def __post_init__(self) -> None:
        validate_path(self.path, "path")
        if (self.url is None) == (self.file is None):
            raise InputError("overlay.bad-blob", "a blob comes from a url or from a file")


@dataclass(frozen=True, slots=True)
class StageChange:
    """What needs RUN: `dockerfile` (below the workspace) is built with `args`, then `out` (path in the stage to
    ROOT/relative) is taken.  `network` none or default; `reproducible` says that two builds must agree; `artifact` is
    the finished output by digest."""

    dockerfile: str
    out: Mapping[str, str]
    args: Mapping[str, str] = field(default_factory=no_entries)
    network: str = "none"
    reproducible: bool = False
    artifact: DigestReference | PathReference | None = None


@dataclass(frozen=True, slots=True)
class EnvChange:
    """Environment defaults of the image."""

    env: Mapping[str, str]


Change = (
    PatchChange
    | FileChange
    | EditChange
    | DeleteChange
    | SymlinkChange
    | WheelChange
    | BlobChange
    | StageChange
    | EnvChange
)


@dataclass(frozen=True, slots=True)
class Guard:
    """What a path must hold before and after.  None stands for *absent*: in `preimage` for a new file, as
    `postimage` for a deleted one.  Several preimages are alternatives.  Equal digests are those of a change of mode
    alone.  `mode` is the preimage's permission bits."""

    preimage: tuple[Digest | None, ...]
    postimage: Digest | None
    preimage_git: str | None = None
    postimage_git: str | None = None
    mode: int | None = None

    def __post_init__(self) -> None:
        if not self.preimage:
            raise InputError("overlay.bad-guard", "a guard needs a preimage", details={"key": "preimage"})
        if len(set(self.preimage)) != len(self.preimage):
            raise InputError("overlay.bad-guard", "a preimage stands twice", details={"key": "preimage"})
        if self.preimage == (None,) and self.postimage is None:
            raise InputError(
                "overlay.bad-guard",
                "a path that is absent before and after is not changed",
                found=ABSENT,
                details={"key": "postimage"},
            )

    def to_json(self) -> dict[str, Any]:
        """The guard as it stands in overlay.yaml."""

        def word(digest: Digest | None) -> str:
            return ABSENT if digest is None else str(digest)

        words = [word(one) for one in self.preimage]
        out: dict[str, Any] = {"preimage": words[0] if len(words) == 1 else words}
        if self.preimage_git is not None:
            out["preimage_git"] = self.preimage_git
        out["postimage"] = word(self.postimage)
        if self.postimage_git is not None:
            out["postimage_git"] = self.postimage_git
        if self.mode is not None:
            out["mode"] = f"{self.mode:04o}"
        return out
