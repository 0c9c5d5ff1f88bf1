"""Small random overlays on random bases: lock, build and verify agree, and the result is the base's tree with the changes.

The expected tree is worked out the obvious way: the base's layers unpacked one after the other, then each change done
to the tree of dictionaries.
"""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.base_documents import load_base
from imagebuild.build.building import BaseFiles, build_image
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.build.locking import Locker
from imagebuild.build.opening import Opener
from imagebuild.build.verify_image import ImageVerifier
from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Kind, LayerFacts
from imagebuild.layer.facts_store import FactsStore
from imagebuild.layer.tar_reader import read_layer
from imagebuild.oci.layout import LayoutSink, LayoutSource
from imagebuild.oci.tree import read_image_tree
from imagebuild.target.workspace import Workspace
from imagebuild.testing import slow_view
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    ImageSpec,
    Item,
    LayerSpec,
    Link,
    MadeImage,
    Opaque,
    Whiteout,
    make_image,
)
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.small_engine import SmallWorkspace

NAMES = ["a", "b", "c"]
INSIDE = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
DATA = st.sampled_from([b"", b"one\n", b"two\ntwo\n", b"\0\1\2", b"no newline"])


@st.composite
def base_layer(draw: st.DrawFn) -> LayerSpec:
    """A layer that is well formed by itself: nothing below a file, folders first, links to what is there."""
    items: dict[str, Item] = {}
    for path in draw(st.lists(INSIDE.map("app/{}".format), max_size=6, unique=True)):
        kind = draw(st.sampled_from(["file", "file", "file", "folder", "link", "hard"]))
        owner = draw(st.sampled_from([0, 1000]))
        if kind == "file":
            items[path] = File(path, draw(DATA), draw(st.sampled_from([0o644, 0o755, 0o600])), owner, owner)
        elif kind == "folder":
            items[path] = Folder(path, draw(st.sampled_from([0o755, 0o700])), owner, owner)
        elif kind == "link":
            items[path] = Link(path, draw(st.sampled_from(["a", "../a", "/app/b", "b/c", "nowhere"])))
        else:
            targets = [
                name for name, item in items.items() if isinstance(item, File) and not path.startswith(name + "/")
            ]
            if targets:
                items[path] = HardLink(path, draw(st.sampled_from(targets)))
    folders = {"/".join(path.split("/")[:n]) for path in items for n in range(1, path.count("/") + 1)}
    kept = [item for path, item in items.items() if path not in folders or isinstance(item, Folder)]
    names = {item.path for item in kept}
    kept = [item for item in kept if not isinstance(item, HardLink) or item.target in names]
    explicit: list[Item] = [Folder(path) for path in folders if path not in names]
    files = sorted([*explicit, *kept], key=lambda item: (isinstance(item, HardLink), item.path))
    gone: list[Item] = [Whiteout(path) for path in draw(st.lists(INSIDE.map("app/{}".format), max_size=1))]
    gone += [Opaque(path) for path in draw(st.lists(st.just("app/a"), max_size=1))]
    clear = [item for item in gone if not any(_under(item.path, other) for other in files)]
    return LayerSpec((*clear, *files), compression=draw(st.sampled_from(["none", "gzip", "zstd"])))


def _under(path: str, other: Item) -> bool:
    return not isinstance(other, Folder) and (path == other.path or path.startswith(other.path + "/"))


@st.composite
def bases(draw: st.DrawFn) -> MadeImage:
    bottom = LayerSpec((Folder("app"), File("app/a/a", b"bottom\n"), File("etc/x", b"x")))
    return make_image(ImageSpec((bottom, *draw(st.lists(base_layer(), max_size=3)))))


def facts_of(descriptor: Any, data: bytes) -> LayerFacts:
    return read_layer(io.BytesIO(data), descriptor)


@dataclass(frozen=True)
class Seen:
    """What a path shows to somebody who looks: kind, bits and owner, bytes or link text."""

    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    content: str = ""


FOLDER = Seen(Kind.DIRECTORY)


def seen(root: slow_view.SlowNode) -> dict[str, Seen]:
    out = {}
    for path, node in slow_view.flatten(root).items():
        data, entry = node.data, node.entry
        if entry is None:
            out[path] = FOLDER
        elif entry.kind is Kind.DIRECTORY:
            out[path] = Seen(Kind.DIRECTORY, entry.mode, entry.uid, entry.gid)
        elif entry.kind is Kind.SYMLINK:
            out[path] = Seen(Kind.SYMLINK, content=entry.link)
        elif data is not None and data.kind is Kind.SYMLINK:
            out[path] = Seen(Kind.SYMLINK, content=data.link)
        elif data is not None:
            out[path] = Seen(Kind.FILE, data.mode, data.uid, data.gid, str(data.sha256))
    return out


@dataclass
class Asked:
    """The changes of an overlay and guards of its files, as YAML, with the files that they name, and the tree that must
    come out."""

    lines: list[str]
    guards: list[str]
    files: dict[str, bytes]
    tree: dict[str, Seen]
    touched: set[str]
    unsure: bool = False
    """Whether a link that no layer read so far shows could be taken for nothing (which a lock reports as not proven)."""

    def claim(self, path: str, place: str) -> bool:
        """False where another change is at, above or below that place, by its own name or where links lead."""
        names = {path, place}
        for name in names:
            if any(name == x or name.startswith(x + "/") or x.startswith(name + "/") for x in self.touched):
                return False
        self.touched |= names
        return True

    def owner(self, place: str) -> tuple[int, int] | None:
        """Owner of the nearest folder that exists, new folders made on the way; None where a file is in the way."""
        missing = []
        parent = place.rpartition("/")[0]
        while parent not in self.tree:
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        above = self.tree[parent]
        if above.kind is not Kind.DIRECTORY:
            return None
        for folder in missing:
            self.tree[folder] = Seen(Kind.DIRECTORY, 0o755, above.uid, above.gid)
        return above.uid, above.gid


@st.composite
def overlays(draw: st.DrawFn, root: slow_view.SlowNode) -> Asked:
    asked = Asked([], [], {}, seen(root), set())
    before = dict(asked.tree)
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["file", "file", "file", "delete", "symlink", "edit"]))
        path = "app/" + draw(INSIDE)
        place = slow_view.resolve(root, path, last=kind in ("file", "edit"))
        if place is None or not place.startswith("app/"):
            continue
        there = before.get(place)
        if kind == "file" and (there is None or there.kind is Kind.FILE):
            new = draw(DATA.map(lambda data: data + b"%d\n" % draw(st.integers(0, 99))))
            if not asked.claim(path, place):
                continue
            owner = asked.owner(place)
            if owner is None:
                asked.touched -= {path, place}
                continue
            mode = 0o644 if there is None else there.mode
            owner = owner if there is None else (there.uid, there.gid)
            asked.tree[place] = Seen(Kind.FILE, mode, *owner, str(Digest.of(new)))
            asked.files[f"files/{number}"] = new
            asked.lines.append(f"  - file: files/{number}\n    to: {path}\n")
            asked.unsure |= path != place
            preimage = "absent" if there is None else there.content
            asked.guards.append(f"  {path}: {{preimage: '{preimage}', postimage: '{Digest.of(new)}'}}\n")
        elif (
            kind == "edit"
            and there is not None
            and there.content == str(Digest.of(b"one\n"))
            and asked.claim(path, place)
        ):
            asked.tree[place] = replace(there, content=str(Digest.of(b"three\n")))
            asked.lines.append(f"  - edit: {{path: {path}, find: one, replace: three}}\n")
        elif kind == "delete" and there is not None and asked.claim(path, place):
            if there.kind is Kind.DIRECTORY and not any(_file_below(place, name, before) for name in before):
                continue
            for name in [name for name in asked.tree if name == place or name.startswith(place + "/")]:
                del asked.tree[name]
            asked.lines.append(f"  - delete: {{path: {path}}}\n")
        elif kind == "symlink" and (there is None or there.kind is not Kind.DIRECTORY) and asked.claim(path, place):
            if asked.owner(place) is None:
                asked.touched -= {path, place}
                continue
            asked.tree[place] = Seen(Kind.SYMLINK, content=f"to-{number}")
            asked.unsure = True
            asked.lines.append(f"  - symlink: {{path: {path}, to: to-{number}}}\n")
    return asked


def _file_below(folder: str, name: str, tree: dict[str, Seen]) -> bool:
    return name.startswith(folder + "/") and tree[name].kind is not Kind.DIRECTORY


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_the_result_is_the_base_with_the_changes(data: st.DataObject) -> None:
    base = data.draw(bases())
    stack = [facts_of(layer.descriptor, layer.blob) for layer in base.layers]
    asked = data.draw(overlays(slow_view.unpack(stack)))
    if not asked.lines:
        event("no change")
        return
    note("".join(asked.lines))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = SmallWorkspace(folder / "ws", base)
        space.write_target(roots={"app": {"path": "/app"}}, identity=None)
        space.write_overlay(changes="".join(asked.lines), files=asked.files, guards="".join(asked.guards))
        workspace = Workspace.find(space.root, space.root)
        target, source = workspace.target("tuned"), MemorySource(base)
        series, emitter = workspace.series(target), Emitter()
        contents = Contents(CompressedStore(workspace.content_path("tuned")), ContentStore(space.cache / "content"))
        facts = FactsStore(space.cache / "facts")
        store = ArtefactStore(ContentStore(folder / "artefacts"), emitter)
        locker = Locker(target, series, source, facts, contents, emitter, store)
        try:
            complete = data.draw(st.booleans()) or asked.unsure
            locked = locker.lock(complete=complete)
        except RefusedError as error:
            if error.code != "base.unportable":
                raise
            event("what engines unpack differently is not to be changed")
            return
        contents.commit(locked.content)
        lock = locked.lock
        # what a fresh machine has: the committed content, no cache, no base
        fresh = Contents(CompressedStore(workspace.content_path("tuned")), ContentStore(folder / "fresh" / "content"))
        base_files = BaseFiles(lock, Opener(folder), target, fresh, FactsStore(folder / "fresh" / "facts"), emitter)
        image = build_image(lock, target, series, fresh, base_files, folder / "out", emitter, store)
        assert image.top.descriptor.digest == lock.result.digest
        LayoutSink(folder / "layout").store(replace(image, base=source), "v", complete=True)
        layout = LayoutSource(folder / "layout")
        tree = read_image_tree(layout, "v")
        verifier = ImageVerifier(lock, load_base(lock.inputs, fresh, lambda: source))
        assert verifier.verify("x", layout, tree).passed is True
        ours = []
        for blob in image.own:
            with blob.open() as stream:
                ours.append(facts_of(blob.descriptor, stream.read()))
    assert len(ours) <= 1
    found = seen(slow_view.unpack([*stack, *ours]))
    assert found == asked.tree
    _check_layer(json.loads(image.top.raw), ours, seen(slow_view.unpack(stack)))


def _check_layer(manifest: dict[str, Any], ours: list[LayerFacts], before: dict[str, Seen]) -> None:
    """images.md, Writing 4 to 6: folders that the base has stay as they are, and each deletion is one topmost whiteout."""
    for layer in ours:
        for path, entry in layer.entries.items():
            if entry.kind is Kind.DIRECTORY and path in before:
                assert before[path] == Seen(Kind.DIRECTORY, entry.mode, entry.uid, entry.gid)
            parent = path.rpartition("/")[0]
            assert before.get(parent, FOLDER).kind is Kind.DIRECTORY
        for path in layer.whiteouts:
            assert path in before
            assert path not in layer.entries
            assert not any(path.startswith(other + "/") for other in layer.whiteouts)
        assert layer.opaques == frozenset()
        assert layer.notes == ()
    assert manifest["layers"][-1]["mediaType"].endswith("tar+gzip")
