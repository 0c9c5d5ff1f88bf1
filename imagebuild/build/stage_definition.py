"""What a stage is made from: Dockerfile, context, arguments; and its identity, by the hash of all that.

The context is the folder `NAME/` beside `NAME.Dockerfile` where there is one, else the Dockerfile's own folder without
the Dockerfiles in it.  Nothing of a target goes in, so that one stage serves every target that has its overlay.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.build.dockerfile import Dockerfile, parse_dockerfile, with_argument
from imagebuild.build.stage_rules import EPOCH, Base, check_stage
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import StageChange
from imagebuild.target.lock_types import SECONDS_1980

FORMAT = 1
"""Number of the rules by which a stage is built; another number means other outputs may come of the same files."""
SUFFIX = ".Dockerfile"
_FILE_LIMIT = 100_000
"""Files of a context at most."""


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """One entry of a context.  `kind`: file, executable, folder, link; `content` is a file's sha256 or a link's text."""

    path: str
    kind: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class StageDefinition:
    """A stage for one platform, read and found to keep to the rules."""

    change: StageChange
    platform: Platform
    dockerfile: Dockerfile = field(repr=False)
    context: Path
    entries: tuple[ContextEntry, ...] = field(repr=False)
    bases: tuple[Base, ...]

    @property
    def arguments(self) -> dict[str, str]:
        """Build arguments: the overlay's, and SOURCE_DATE_EPOCH, 1980-01-01 unless the overlay says another one.  It is
        no target's time, so that the outputs are the same for every target."""
        return {EPOCH: str(SECONDS_1980), **self.change.args}

    def describe(self) -> dict[str, Any]:
        """Everything that decides the outputs, as far as files can."""
        return {
            "format": FORMAT,
            "platform": str(self.platform),
            "dockerfile": str(Digest.of(self.dockerfile.text.encode("utf-8"))),
            "context": str(context_digest(self.entries)),
            "arguments": dict(sorted(self.arguments.items())),
            "network": self.change.network,
            "outputs": sorted(self.change.out),
        }

    @property
    def id(self) -> Digest:
        """sha256 of the canonical JSON of `describe`."""
        return Digest.of(canonical_json(self.describe()))


def context_digest(entries: tuple[ContextEntry, ...]) -> Digest:
    return Digest.of(canonical_json([[one.path, one.kind, one.content] for one in entries]))


def read_definition(root: Path, change: StageChange, platform: Platform) -> StageDefinition:
    """Reads a stage below the workspace `root`.

    Raises InputError `stage.no-dockerfile`, `stage.bad-dockerfile`, `stage.bad-context`, and what check_stage raises.
    """
    path = root / change.dockerfile
    if not path.is_file():
        raise InputError(
            "stage.no-dockerfile",
            f"the stage's Dockerfile {change.dockerfile} is not there",
            expected=str(path),
            hint="paths of Dockerfiles are below the workspace: Dockerfiles/NAME.Dockerfile",
        )
    with io_faults(path, "reading"):
        dockerfile = parse_dockerfile(path.read_bytes(), change.dockerfile)
    bases = check_stage(dockerfile, change, platform)
    context = context_folder(path)
    entries = tuple(sorted(_entries(context, own=context == path.parent), key=lambda one: os.fsencode(one.path)))
    return StageDefinition(change, platform, dockerfile, context, entries, bases)


def context_folder(dockerfile: Path) -> Path:
    """The folder whose files a Dockerfile may COPY."""
    beside = dockerfile.with_name(dockerfile.name.removesuffix(SUFFIX))
    return beside if dockerfile.name.endswith(SUFFIX) and beside.is_dir() else dockerfile.parent


def _entries(context: Path, own: bool) -> Iterator[ContextEntry]:
    """Every entry below the context.  With `own`, the folder is the Dockerfile's: other Dockerfiles and their contexts
    are none of this stage's business."""
    count = 0
    for folder, folders, files in os.walk(context):
        top = Path(folder) == context
        if own and top:
            files = [name for name in files if not name.endswith(SUFFIX) and name != "Dockerfile"]
            others = {name.removesuffix(SUFFIX) for name in os.listdir(context) if name.endswith(SUFFIX)}
            folders[:] = [name for name in folders if name not in others]
        for name in [*folders, *files]:
            count += 1
            if count > _FILE_LIMIT:
                raise _bad(context, f"it has more than {_FILE_LIMIT} entries")
            yield _entry(Path(folder, name), context)


def _entry(path: Path, context: Path) -> ContextEntry:
    name = path.relative_to(context).as_posix()
    with io_faults(path, "reading"):
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            text = os.readlink(path)
            if os.path.isabs(text) or os.path.normpath(f"{Path(name).parent}/{text}").startswith(".."):
                raise _bad(context, f"the link {name} leads out of it")
            return ContextEntry(name, "link", text)
        if stat.S_ISDIR(found.st_mode):
            return ContextEntry(name, "folder")
        if not stat.S_ISREG(found.st_mode):
            raise _bad(context, f"{name} is neither file, folder nor link")
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return ContextEntry(name, "executable" if found.st_mode & 0o100 else "file", f"sha256:{digest}")


def _bad(context: Path, why: str) -> InputError:
    return InputError("stage.bad-context", f"the folder {context} cannot be a stage's context: {why}")


def lay_out(definition: StageDefinition, folder: Path) -> tuple[Path, Path]:
    """A clean copy for BuildKit below `folder`: context and Dockerfile.

    BuildKit keeps what it got of a folder by the folder's path, and takes a file of equal size and time as unchanged
    (seen with docker 20.10, with `--no-cache` too).  So the path holds the hash of everything in it: an equal path has
    equal content.  Modes are 0644 and 0755, times SOURCE_DATE_EPOCH's, whatever the checkout made of them.  Raises
    RefusedError `stage.context-changed` where a file is not what the definition says any more.
    """
    name = definition.id.hex
    context, dockerfile = folder / name, folder / f"{name}{SUFFIX}"
    moment = int(definition.arguments[EPOCH])
    with io_faults(folder, "writing"):
        context.mkdir()
        for one in definition.entries:
            _copy(one, definition.context, context)
        for one in reversed(definition.entries):
            os.utime(context / one.path, (moment, moment), follow_symlinks=False)
        os.utime(context, (moment, moment))
        dockerfile.write_bytes(with_argument(definition.dockerfile, EPOCH))
    return context, dockerfile


def _copy(one: ContextEntry, source: Path, target: Path) -> None:
    to = target / one.path
    if one.kind == "folder":
        to.mkdir()
        to.chmod(0o755)
        return
    if one.kind == "link":
        to.symlink_to(one.content)
        return
    hasher = hashlib.sha256()
    with open(source / one.path, "rb") as stream, open(to, "wb") as out:
        while part := stream.read(1 << 20):
            hasher.update(part)
            out.write(part)
    to.chmod(0o755 if one.kind == "executable" else 0o644)
    if f"sha256:{hasher.hexdigest()}" != one.content:
        raise RefusedError(
            "stage.context-changed",
            f"{source / one.path} was changed while it was read",
            expected=one.content,
            found=f"sha256:{hasher.hexdigest()}",
            hint="run the same command again",
        )


def export_stage(root: Path, change: StageChange, target: Path) -> None:
    """Copies a stage's Dockerfile and context to the same places below another workspace."""
    dockerfile = root / change.dockerfile
    copy = target / change.dockerfile
    with io_faults(copy, "writing"):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dockerfile, copy)
        context = context_folder(dockerfile)
        own = context == dockerfile.parent
        place = copy.parent if own else copy.parent / context.name
        place.mkdir(exist_ok=True)
        for one in sorted(_entries(context, own=own), key=lambda one: os.fsencode(one.path)):
            if not os.path.lexists(place / one.path):
                _copy(one, context, place)


def wanted_stage(root: Path, change: StageChange, platforms: Sequence[Platform]) -> dict[str, Any]:
    """What the overlay asks for by a stage (lock_types.Inputs, wanted): each platform's definition, what becomes of the
    outputs, and what the evidence must say: pinned images and the network."""
    stages = {str(platform): read_definition(root, change, platform) for platform in platforms}
    return {
        "kind": "stage",
        "dockerfile": change.dockerfile,
        "out": dict(sorted(change.out.items())),
        "network": change.network,
        "reproducible": change.reproducible,
        "bases": sorted({str(base.reference) for stage in stages.values() for base in stage.bases}),
        "definitions": {name: str(stage.id) for name, stage in stages.items()},
    }
