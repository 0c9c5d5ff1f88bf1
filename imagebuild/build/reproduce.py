"""Building again elsewhere and comparing every byte (cli.md, reproduce)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagebuild
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.build.stage_definition import export_stage
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_file, io_faults, link_or_copy
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import UnavailableError
from imagebuild.host.environment import variable
from imagebuild.host.process import run
from imagebuild.oci.source import Image
from imagebuild.overlay.changes import StageChange
from imagebuild.target.document import Target
from imagebuild.target.lock import format_lock
from imagebuild.target.lock_types import Lock
from imagebuild.target.workspace import Workspace

DEADLINE = 600.0
"""Seconds that one rebuild may take."""
NOBODY = 65534
ARTEFACTS = "artefacts"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
_PROBE = "import sys; print(sys.version.split()[0]); print(sys.executable)"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """One rebuild: the conditions, and what came out.  `equal` is None where it could not be made, with `reason`."""

    conditions: Mapping[str, str]
    equal: bool | None
    digest: str | None
    differing: tuple[str, ...] = ()
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "conditions": dict(self.conditions),
            "equal": self.equal,
            "digest": self.digest,
            "differing": list(self.differing),
            "reason": self.reason,
        }


def _candidates() -> list[str]:
    """Executables that may be Pythons: on every folder of PATH, and where pyenv and uv keep theirs."""
    folders = [Path(part) for part in (variable("PATH") or os.defpath).split(os.pathsep) if part]
    home = Path.home()
    for pattern in (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin"):
        folders += sorted(home.glob(pattern))
    return [str(folder / name) for name in PYTHONS for folder in folders if os.access(folder / name, os.X_OK)]


def find_pythons() -> dict[str, str]:
    """Version to executable of each Python 3.11 to 3.14 that answers, this one first."""
    found = {sys.version.split()[0]: sys.executable}
    for path in _candidates():
        try:
            done = run([path, "-I", "-c", _PROBE], deadline=20)
        except UnavailableError:
            continue
        lines = done.stdout.decode("utf-8", "replace").split("\n")
        if done.code == 0 and len(lines) >= 2:
            found.setdefault(lines[0], lines[1])
    return found


def export_artefacts(lock: Lock, store: ArtefactStore, folder: Path) -> None:
    """The files of wheels, blobs and stages that a locked build takes, under their digests below `folder`: links where everybody may read the
    file, which are never written to."""
    for digest in sorted({source.sha256 for platform in lock.inputs.platforms for source in platform.sources}):
        file = store.get(digest)
        if file is not None:
            target = ContentStore(folder).path(digest)
            if file.path.stat().st_mode & 0o004:
                link_or_copy(file.path, target)
                continue
            with file.open() as stream, atomic_file(target) as out:
                shutil.copyfileobj(stream, out, 1 << 20)


def export_workspace(workspace: Workspace, target: Target, lock: Lock, contents: Contents, folder: Path) -> None:
    """A clean copy of what a locked build needs: target, lock, content, overlays.  Content that is only in the cache is
    written too, so that the other side starts with an empty one."""
    space = Workspace(folder, workspace.folders)
    with io_faults(folder, "writing"):
        space.manifests.mkdir(parents=True)
        space.overlay_folder.mkdir(parents=True, exist_ok=True)
        if (workspace.root / ".imagebuild.yaml").is_file():
            shutil.copyfile(workspace.root / ".imagebuild.yaml", folder / ".imagebuild.yaml")
        space.target_folder(target.name).mkdir()
        shutil.copyfile(workspace.target_path(target.name), space.target_path(target.name))
        space.lock_path(target.name).write_bytes(format_lock(lock))
        for name in target.overlays:
            shutil.copytree(workspace.overlay_path(name), space.overlay_path(name))
        for overlay in workspace.series(target):
            for change in overlay.changes:
                if isinstance(change, StageChange):
                    export_stage(workspace.root, change, folder)
    store = CompressedStore(space.content_path(target.name))
    for text in lock.notes.get("content", ()):
        data = contents.get(Digest.parse(text))
        if data is not None:
            store.put(data)


def _packages(folder: Path) -> Path:
    """A folder with this package and PyYAML only, importable by another Python: a locked build with stored layers needs
    nothing compiled."""
    import yaml

    folder.mkdir()
    for package in (Path(imagebuild.__file__).parent, Path(yaml.__file__).parent):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def _open_to_all(folder: Path, user: int) -> None:
    """Gives everything to `user`, the artefacts apart: those may be links into the cache."""
    for root, folders, files in os.walk(folder):
        if root == str(folder) and ARTEFACTS in folders:
            folders.remove(ARTEFACTS)
        for name in (*folders, *files):
            os.chown(os.path.join(root, name), user, user, follow_symlinks=False)
    os.chown(folder, user, user)


def reproduce(
    workspace: Workspace,
    target: Target,
    lock: Lock,
    contents: Contents,
    expected: Mapping[str, int],
    emitter: Emitter,
    store: ArtefactStore | None = None,
) -> list[Rebuild]:
    """Rebuilds under each Python, in another folder, with an empty cache, another clock, umask, locale, zone and hash
    seed, and as another user where we are root.  `expected` are the blobs (digest to size) of the build to compare with."""
    out: list[Rebuild] = []
    for number, (version, executable) in enumerate(find_pythons().items()):
        with tempfile.TemporaryDirectory(prefix="imagebuild-reproduce-") as name:
            top = Path(name)
            top.chmod(0o755)
            export = top / f"elsewhere-{number}" / "workspace"
            export.mkdir(parents=True)
            export_workspace(workspace, target, lock, contents, export)
            if store is not None:
                export_artefacts(lock, store, top / ARTEFACTS)
            own = executable == sys.executable
            path = Path(imagebuild.__file__).parent.parent if own else _packages(top / "packages")
            out += _rebuild(top, export, target.name, version, executable, path, expected)
        emitter.emit("rebuilt", python=version, equal=out[-1].equal)
    return out


def _rebuild(
    top: Path, export: Path, target: str, version: str, executable: str, path: Path, expected: Mapping[str, int]
) -> list[Rebuild]:
    root = os.geteuid() == 0
    work = top / "work"
    work.mkdir()
    settings = {
        "workspace": str(export),
        "target": target,
        "work": str(work),
        "artefacts": str(top / ARTEFACTS),
        "umask": "0077",
        "clock_offset": 10 * 366 * 86400,
        "user": NOBODY if root else None,
    }
    conditions = {
        "python": version,
        "clock": "ten years ahead, SOURCE_DATE_EPOCH=86400",
        "umask": "0077",
        "locale": "C",
        "zone": "Pacific/Kiritimati",
        "hash seed": "4242",
        "cache": "empty",
        "folder": "another",
        "user": "the same",
    }
    environment = {
        "PATH": os.defpath,
        "HOME": str(work),
        "TMPDIR": str(work),
        "PYTHONPATH": str(path),
        "PYTHONHASHSEED": "4242",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "SOURCE_DATE_EPOCH": "86400",
    }
    if root:
        _open_to_all(top, NOBODY)
    try:
        done = run(
            [executable, "-m", "imagebuild.build.rebuild", json.dumps(settings)],
            deadline=DEADLINE, cwd=work, environment=environment,
        )  # fmt: skip
    except UnavailableError as error:
        return [Rebuild(conditions, None, None, reason=error.message)]
    if done.code != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().split("\n")
        return [Rebuild(conditions, None, None, reason=f"{executable}: {lines[-1][:300]}")]
    answer = json.loads(done.stdout)
    out = [_compared(conditions, answer, expected)]
    if "as_user" in answer:
        out.append(_compared({**conditions, "user": f"uid {NOBODY}"}, answer["as_user"], expected))
    return out


def _compared(conditions: Mapping[str, str], answer: Mapping[str, Any], expected: Mapping[str, int]) -> Rebuild:
    if "error" in answer:
        error = answer["error"]
        unavailable = error["code"] in ("layer.compressor-version", "host.missing-program")
        return Rebuild(conditions, None if unavailable else False, None, reason=f"{error['message']} [{error['code']}]")
    blobs = answer["blobs"]
    differing = sorted({*blobs.items()} ^ {*expected.items()})
    return Rebuild(conditions, not differing, answer["digest"], tuple(digest for digest, _ in differing))


def image_blobs(image: Image) -> dict[str, int]:
    """Digest to size of every blob that we make: documents and layers, each hashed here from its bytes."""
    out: dict[str, int] = {}
    for document in (image.top, *image.manifests, *image.configs):
        out[str(Digest.of(document.raw))] = len(document.raw)
    for blob in image.own:
        with blob.open() as stream:
            hasher = hashlib.sha256()
            size = 0
            while part := stream.read(1 << 20):
                hasher.update(part)
                size += len(part)
        out[f"sha256:{hasher.hexdigest()}"] = size
    return out
