"""The merged view against what umoci, podman and docker really unpack, and layers of ours in their hands.

Random stacks that our view calls unportable are left out: there the programs differ among themselves.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from real_engine import RealEngine
from tools import missing, program, root
from unpackers import Seen, docker_tree, podman, tree, umoci

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, LayerFacts
from imagebuild.layer.pack import DEFLATE, NONE, STORED, pack_layer, zstd_name
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.oci import media_types as mt
from imagebuild.oci.docker_archive import DockerArchiveSink
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    ImageSpec,
    Item,
    LayerSpec,
    Link,
    MadeImage,
    MadeLayer,
    Opaque,
    Whiteout,
    make,
    make_layer,
    write_layout,
)
from imagebuild.testing.memory import MemorySource, as_image
from imagebuild.testing.new_entries import new_file, new_folder, new_link, new_whiteout

pytestmark = [pytest.mark.integration, pytest.mark.slow(40)]
DEPTH = 4
STACKS = 30


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder with a short path, as sockets need, that is removed with whatever is still mounted in it."""
    root()
    # podman reads the path as a part of a reference, which may not hold all that tempfile puts into names.
    folder = Path(tempfile.gettempdir(), f"ib{uuid.uuid4().hex[:12]}")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((place for place in mounted if place.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", place], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def random_layer(rng: random.Random) -> list[Item]:
    """A few items over a small set of names, a hard link only to a file before it."""
    items: dict[str, Item] = {}
    for _ in range(rng.randrange(1, 6)):
        path = "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 4)))
        parts = path.split("/")
        for end in range(1, len(parts)):
            if rng.random() < 0.9:
                items.setdefault(
                    "/".join(parts[:end]), Folder("/".join(parts[:end]), rng.choice([0o755, 0o755, 0o700]))
                )
        files = [name for name, item in items.items() if isinstance(item, File) and (item.mode, item.uid) == (0o644, 0)]
        text = bytes([rng.randrange(65, 91)]) * rng.randrange(1, 5)
        kind = rng.randrange(8)
        if kind < 2:
            items[path] = File(path, text, rng.choice([0o644, 0o4711]), uid=rng.choice([0, 7]))
        elif kind == 2:
            items[path] = Link(path, rng.choice(["a", "../b", "/c/a", "nowhere"]))
        elif kind == 3 and files:
            items[path] = HardLink(path, rng.choice(files))
        elif kind == 4:
            items[path] = Folder(path, rng.choice([0o755, 0o1777]), uid=rng.choice([0, 9]))
        elif kind == 5:
            items[path] = Folder(path)
            items[f"{path}/opaque"] = Opaque(path)
        else:
            items[f"{path} deleted"] = Whiteout(path)
    return list(items.values())


def moved(item: Item, prefix: str) -> Item:
    item = replace(item, path=f"{prefix}/{item.path}")
    return replace(item, target=f"{prefix}/{item.target}") if isinstance(item, HardLink) else item


def facts_of(layers: list[MadeLayer] | tuple[MadeLayer, ...]) -> list[LayerFacts]:
    return [read_layer(io.BytesIO(layer.blob), layer.descriptor) for layer in layers]


def portable_stacks(seed: int) -> list[list[Item]]:
    """DEPTH layers that hold STACKS random stacks, each below a folder of its own, none of which we call unportable."""
    rng = random.Random(seed)
    layers: list[list[Item]] = [[] for _ in range(DEPTH)]
    done = 0
    while done < STACKS:
        drawn = [[moved(item, f"s{done}") for item in random_layer(rng)] for _ in range(DEPTH)]
        drawn[0].insert(0, Folder(f"s{done}"))
        try:
            view = MergedView(facts_of([make_layer(LayerSpec(tuple(items))) for items in drawn]))
        except RefusedError:
            continue
        if any(code == "base.unportable" for code, _ in view.notes()):
            continue
        for layer, items in zip(layers, drawn, strict=True):
            layer += items
        done += 1
    return layers


def expected(view: MergedView) -> dict[str, Seen]:
    out = {}
    for path, found in view.walk():
        if path:
            out[path] = seen(found)
    return out


def seen(found: Found) -> Seen:
    entry, data = found.entry, found.data
    if data.kind is Kind.SYMLINK:
        return Seen("link", content=data.link)
    if data.kind is Kind.DIRECTORY:
        return Seen("folder", entry.mode, entry.uid, entry.gid)
    assert data.sha256 is not None
    return Seen("file", data.mode, data.uid, data.gid, data.sha256.hex)


@pytest.fixture(scope="module", params=[1, 2, 3])
def stacks(request: pytest.FixtureRequest) -> tuple[MadeImage, dict[str, Seen], MergedView]:
    image = make(ImageSpec(tuple(LayerSpec(tuple(items)) for items in portable_stacks(request.param))))
    view = MergedView(facts_of(image.layers))
    return image, expected(view), view


Stacks = tuple[MadeImage, dict[str, Seen], MergedView]


def test_umoci_unpacks_what_the_view_shows(stacks: Stacks, scratch: Path) -> None:
    image, wanted, view = stacks
    write_layout(scratch / "layout", {"v": image})
    rootfs = umoci(scratch / "layout", "v", scratch)
    assert tree(rootfs) == wanted
    for path, shown in wanted.items():
        if shown.kind == "file":
            at = os.lstat(rootfs / path)
            assert at.st_nlink == 1 + len(view.other_names(path)), path
            assert all(os.path.samestat(at, os.lstat(rootfs / name)) for name in view.other_names(path))


@pytest.mark.parametrize("driver", ["vfs", "overlay"])
def test_podman_unpacks_what_the_view_shows(stacks: Stacks, scratch: Path, driver: str) -> None:
    image, wanted, _ = stacks
    write_layout(scratch / "layout", {"v": image})
    with podman(scratch / "layout", "v", scratch, driver) as folder:
        assert tree(folder) == wanted


def test_docker_unpacks_what_the_view_shows(stacks: Stacks, scratch: Path) -> None:
    image, wanted, _ = stacks
    DockerArchiveSink(scratch / "d.tar").store(as_image(image, base=MemorySource(image)), "localhost/stacks:v")
    with RealEngine() as engine:
        shown = docker_tree(engine, scratch / "d.tar", "localhost/stacks:v", scratch)
    assert {path: what for path, what in shown.items() if path.startswith("s") and path != "sys"} == wanted


UNPORTABLE: dict[str, list[list[Item]]] = {
    "an entry and its whiteout": [[File("x", b"1")], [File("x", b"2"), Whiteout("x")]],
    "a hard link to a lower layer": [[File("x", b"1")], [HardLink("y", "x")]],
    "an implied folder over a link": [[Folder("t"), Link("s", "t")], [File("s/x2", b"2")]],
    "an implied folder over a file": [[File("s", b"1")], [File("s/x2", b"2")]],
    "an implied folder over one with other attributes": [[Folder("tmp", 0o1777)], [File("tmp/x", b"2")]],
    "a folder that only a whiteout asks for": [[File("z", b"1")], [Whiteout("d/x")]],
    "a hard link with another owner": [[File("x", b"1", uid=7), HardLink("y", "x")]],
    "a folder after its content": [[File("s", b"1")], [File("s/x", b"2"), Folder("s")]],
    "a name twice": [[File("x", b"1"), File("x", b"2")]],
    "an opaque root": [[File("x", b"1")], [Opaque(""), File("y", b"2")]],
}


@pytest.mark.parametrize("case", UNPORTABLE)
def test_what_we_call_unportable_is_unpacked_in_several_ways(case: str, scratch: Path) -> None:
    image = make(ImageSpec(tuple(LayerSpec(tuple(items)) for items in UNPORTABLE[case])))
    assert "base.unportable" in dict(MergedView(facts_of(image.layers)).notes())
    write_layout(scratch / "layout", {"v": image})
    results = [attempt(lambda: tree(umoci(scratch / "layout", "v", scratch)))]
    for driver in ("vfs", "overlay"):
        results.append(attempt(lambda driver=driver: with_podman(scratch, driver)))  # type: ignore[misc]
    assert any(result != results[0] for result in results)


def attempt(action: Callable[[], dict[str, Seen]]) -> dict[str, Seen] | None:
    """The tree, None where the program refuses the image."""
    try:
        return action()
    except AssertionError:
        return None


def with_podman(scratch: Path, driver: str) -> dict[str, Seen]:
    with podman(scratch / "layout", "v", scratch, driver) as folder:
        return tree(folder)


BASE: list[Item] = [
    Folder("etc"),
    File("etc/keep", b"keep"),
    File("etc/old", b"old"),
    Folder("etc/gone"),
    File("etc/gone/x", b"x"),
    Folder("opt"),
    File("opt/m.py", b"old", 0o755, 3, 4),
    Folder("opt/becomes-link"),
    File("opt/becomes-link/x", b"x"),
]
OURS = [
    new_file("opt/m.py", b"new", 0o755, 3, 4),
    new_file("opt/" + "n" * 120, b"pax"),
    new_file("opt/é", b"not ascii"),
    new_file(
        "opt/cap",
        b"elf",
        0o755,
        xattrs={"security.capability": bytes.fromhex("0100000200040000000000000000000000000000")},
    ),
    new_folder("new", 0o711, 5, 6),
    new_folder("new/deep", 0o755),
    new_file("new/deep/f", b"f"),
    new_link("opt/becomes-link", "/etc/keep"),
    new_whiteout("etc/old"),
    new_whiteout("etc/gone"),
]


@pytest.mark.parametrize("compressor", [STORED, DEFLATE, zstd_name(), NONE])
def test_layers_of_ours_are_unpacked_by_all(compressor: str, scratch: Path) -> None:
    packed = pack_layer(OURS, family=mt.OCI, compressor=compressor, workdir=scratch)
    with packed.path.open("rb") as stream:
        ours = read_layer(stream, packed.descriptor)
    base = make_layer(LayerSpec(tuple(BASE)))
    wanted = expected(MergedView([*facts_of([base]), ours]))
    assert wanted["opt/m.py"].mode == 0o755
    kind = {STORED: "gzip", DEFLATE: "gzip", NONE: "none"}.get(compressor, "zstd")
    image = make(ImageSpec((LayerSpec(tuple(BASE)), LayerSpec(raw=tar_inside(packed.path, kind), compression=kind))))  # type: ignore[arg-type]
    layout = write_layout(scratch / "layout", {"v": image})
    swap_blob(layout, image, packed.path)
    with podman(layout, "v", scratch, "overlay") as folder:
        assert tree(folder) == wanted
        assert os.getxattr(folder / "opt/cap", "security.capability") == OURS[3].xattrs["security.capability"]
    if kind != "zstd":
        # umoci 0.4.7 is older than zstd layers.
        assert tree(umoci(layout, "v", scratch)) == wanted


def tar_inside(path: Path, kind: str) -> bytes:
    from imagebuild.layer.compression import DecompressingReader

    with path.open("rb") as stream:
        return DecompressingReader(stream, kind, 1 << 30).read()


def swap_blob(layout: Path, image: MadeImage, packed: Path) -> None:
    """Puts the packed bytes in the place of the layer that Python compressed, by rewriting the documents."""
    import hashlib
    import json

    blobs = layout / "blobs" / "sha256"
    manifest = json.loads(image.raw)
    data = packed.read_bytes()
    manifest["layers"][1].update(digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
    raw = json.dumps(manifest).encode()
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0].update(digest="sha256:" + hashlib.sha256(raw).hexdigest(), size=len(raw))
    for content in (data, raw):
        (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
    (layout / "index.json").write_text(json.dumps(index))


def test_gnu_tar_unpacks_our_tar(tmp_path: Path) -> None:
    packed = pack_layer(OURS, family=mt.OCI, compressor=NONE, workdir=tmp_path / "w")
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [program("tar"), "-x", "--warning=all", "-f", str(packed.path), "-C", str(tmp_path / "out")],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0 and os.geteuid() != 0:
        missing("needs root to set owners")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out" / "new/deep/f").read_bytes() == b"f"
    assert (tmp_path / "out" / "etc/.wh.old").read_bytes() == b""


def test_implied_folders_are_as_engines_make_them(scratch: Path) -> None:
    image = make(ImageSpec((LayerSpec((File("a/b/c", b"1"),)),)))
    view = MergedView(facts_of(image.layers))
    found = view.lookup("a")
    assert isinstance(found, Found)
    assert is_implied(found.entry)
    write_layout(scratch / "layout", {"v": image})
    assert tree(umoci(scratch / "layout", "v", scratch)) == expected(view)
