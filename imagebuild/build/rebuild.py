"""The other side of `reproduce`: a process of its own that builds a clean export under other conditions.

Run as `python -m imagebuild.build.rebuild JSON`; it prints one JSON document: the blobs of the image that it made, hashed from disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.building import BaseFiles, build_image
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.build.opening import Opener
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import ImagebuildError
from imagebuild.host import clock
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.layout import LayoutSink
from imagebuild.target.lock import load_lock
from imagebuild.target.workspace import Workspace


def build_once(workspace: Path, name: str, cache: Path, layout: Path, artefacts: Path) -> dict[str, Any]:
    """Builds target `name` of an exported workspace into a fresh layout; digest to size of each blob, by hashing the files.

    Artefacts come out of the exported store `artefacts`; nothing is fetched.
    """
    space = Workspace.find(workspace, workspace)
    target = space.target(name)
    lock = load_lock(space.lock_path(name))
    assert lock is not None
    contents = Contents(CompressedStore(space.content_path(name)), ContentStore(cache / "content"))
    emitter = Emitter()
    base_files = BaseFiles(lock, Opener(space.root), target, contents, FactsStore(cache / "facts"), emitter)
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        store = ArtefactStore(ContentStore(cache / "artefacts"), emitter, given=[ContentStore(artefacts)])
        image = build_image(lock, target, space.series(target), contents, base_files, Path(folder), emitter, store)
        stored = LayoutSink(layout).store(image, None)
    blobs = {}
    for path in sorted((layout / "blobs" / "sha256").iterdir()):
        data = path.read_bytes()
        blobs[f"sha256:{hashlib.sha256(data).hexdigest()}"] = len(data)
    return {"digest": str(stored.digest), "blobs": blobs}


def vary(settings: dict[str, Any]) -> None:
    """Takes on the conditions: umask, and a clock that is off by `clock_offset` seconds."""
    os.umask(int(settings["umask"], 8))
    offset = int(settings["clock_offset"])
    real = clock.now
    clock.now = lambda: real() + offset


def main(text: str) -> int:
    """One rebuild; with `user` a second one after giving up root (the first has imported everything by then, since the
    interpreter's own folder may be closed to others)."""
    settings = json.loads(text)
    vary(settings)
    work = Path(settings["work"])
    workspace, name, given = Path(settings["workspace"]), settings["target"], Path(settings["artefacts"])
    answer: dict[str, Any]
    try:
        answer = build_once(workspace, name, work / "cache-1", work / "layout-1", given)
        if settings.get("user") is not None:
            os.setgroups([])
            os.setgid(settings["user"])
            os.setuid(settings["user"])
            again = build_once(workspace, name, work / "cache-2", work / "layout-2", given)
            answer["as_user"] = again
    except ImagebuildError as error:
        answer = {"error": error.document()}
    answer["python"] = sys.version.split()[0]
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
