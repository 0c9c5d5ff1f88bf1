"""OCI layouts as sinks: sparse, atomic, and careful with what belongs to others."""

import hashlib
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.layout import LayoutSink, LayoutSource, layout_current
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    make_artifact,
    make_image,
    make_index,
    write_layout,
)
from imagebuild.testing.memory import MemorySource, as_image

BASE = LayerSpec((File("base", b"b" * 1000),))
BASE_IMAGE = make_image(ImageSpec((BASE,)))
BASE_LAYER = BASE_IMAGE.layers[0]
OURS = {"target": "t"}


def ours(text: bytes, labels: dict[str, str] | None = None) -> MadeImage:
    return make_image(ImageSpec((BASE, LayerSpec((File("new", text),))), config={"Labels": labels or OURS}))


A, B = ours(b"a"), ours(b"b")


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_valid(folder: Path, *missing: Digest) -> None:
    """Every blob has the digest of its name, and every document's blobs are there but for `missing`."""
    for path in (folder / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert not path.is_symlink()
    source = LayoutSource(folder)
    for entry in source.index().manifests:
        tree = read_image_tree(source, entry)
        for child in tree.children.values():
            for layer in child.manifest.layers:
                assert source.has_blob(layer) or layer.digest in missing


def test_a_new_layout_is_sparse_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "build" / "t"
    result = LayoutSink(folder).store(as_image(A, base=MemorySource(BASE_IMAGE)), "v1")
    assert result.reference == f"oci:{folder}:v1@{A.digest}"
    assert result.missing_blobs == (BASE_LAYER.descriptor.digest,)
    assert result.previous is None
    check_valid(folder, BASE_LAYER.descriptor.digest)
    assert LayoutSource(folder).resolve("v1").digest == A.digest == layout_current(folder, "v1")
    files = tree_of(folder)
    assert files["oci-layout"] == b'{"imageLayoutVersion":"1.0.0"}'
    assert set(files) == {"oci-layout", "index.json"} | {
        f"blobs/sha256/{d.hex}" for d in A.blobs if d != BASE_LAYER.descriptor.digest
    }
    assert result.uploaded_bytes == sum(len(data) for name, data in files.items() if name.startswith("blobs/"))
    assert stat.S_IMODE((folder / "index.json").stat().st_mode) == 0o644


def test_an_index_of_two_platforms(tmp_path: Path) -> None:
    layers = (BASE, LayerSpec((File("new"),)))
    made = make_index(IndexSpec((ImageSpec(layers), ImageSpec(layers, Platform("linux", "arm64")))))
    result = LayoutSink(tmp_path / "l").store(as_image(made, base=MemorySource(BASE_IMAGE)), complete=True)
    assert result.missing_blobs == ()
    check_valid(tmp_path / "l")
    assert len(read_image_tree(LayoutSource(tmp_path / "l"), None).children) == 2


def test_base_layers_are_hard_linked_and_left_as_they_are(tmp_path: Path) -> None:
    base = LayoutSource(write_layout(tmp_path / "base", BASE_IMAGE))
    held = base.blob_path(BASE_LAYER.descriptor.digest)
    held.chmod(0o400)
    before = held.stat()
    result = LayoutSink(tmp_path / "out").store(as_image(A, base=base))
    assert result.missing_blobs == ()
    linked = (tmp_path / "out" / "blobs" / "sha256" / BASE_LAYER.descriptor.digest.hex).stat()
    assert (linked.st_ino, linked.st_mode, linked.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    check_valid(tmp_path / "out")


def test_a_symbolic_link_in_the_base_becomes_a_file_here(tmp_path: Path) -> None:
    base = LayoutSource(write_layout(tmp_path / "base", BASE_IMAGE))
    held = base.blob_path(BASE_LAYER.descriptor.digest)
    held.rename(tmp_path / "store")
    held.symlink_to(tmp_path / "store")
    LayoutSink(tmp_path / "out").store(as_image(A, base=base))
    check_valid(tmp_path / "out")


def test_where_no_link_can_be_made_the_layer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = LayoutSource(write_layout(tmp_path / "base", BASE_IMAGE))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    sparse = LayoutSink(tmp_path / "out").store(as_image(A, base=base))
    assert sparse.missing_blobs == (BASE_LAYER.descriptor.digest,)
    whole = LayoutSink(tmp_path / "out").store(as_image(A, base=base), complete=True)
    assert (whole.missing_blobs, whole.uploaded_bytes) == ((), BASE_LAYER.descriptor.size)
    check_valid(tmp_path / "out")


def test_complete_fetches_verified(tmp_path: Path) -> None:
    source = MemorySource(BASE_IMAGE)
    source.blobs[BASE_LAYER.descriptor.digest] = b"x" * BASE_LAYER.descriptor.size
    for base, kind in ((source, RefusedError), (None, UnavailableError)):
        with pytest.raises(kind):
            LayoutSink(tmp_path / "out").store(as_image(A, base=base), "v", complete=True)
        assert layout_current(tmp_path / "out", "v") is None
        check_valid(tmp_path / "out")


def test_complete_does_not_link_a_damaged_base_layer(tmp_path: Path) -> None:
    base = LayoutSource(write_layout(tmp_path / "base", BASE_IMAGE))
    base.blob_path(BASE_LAYER.descriptor.digest).write_bytes(b"x" * BASE_LAYER.descriptor.size)
    with pytest.raises(RefusedError) as caught:
        LayoutSink(tmp_path / "out").store(as_image(A, base=base), complete=True)
    assert caught.value.code == "content.digest-mismatch"
    check_valid(tmp_path / "out")


def test_no_change_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = LayoutSink(tmp_path / "out")
    for name in ("v1", None):
        sink.store(as_image(A, base=MemorySource(BASE_IMAGE)), name, complete=True)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    monkeypatch.setattr(os, "replace", None)
    monkeypatch.setattr(os, "link", None)
    monkeypatch.setattr("imagebuild.oci.layout.hashlib", None)
    for name in ("v1", None):
        result = sink.store(as_image(A, base=MemorySource(BASE_IMAGE)), name, complete=name is not None)
        assert (result.digest, result.uploaded_bytes, result.previous) == (A.digest, 0, None)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


def test_a_name_moves_and_the_old_entry_goes(tmp_path: Path) -> None:
    sink = LayoutSink(tmp_path)
    for name in ("first", "v", "last"):
        sink.store(as_image(A), name)
    result = sink.store(as_image(B), "v")
    assert result.previous == A.digest
    listed = [(e.annotations[next(iter(e.annotations))], e.digest) for e in LayoutSource(tmp_path).index().manifests]
    assert listed == [("first", A.digest), ("v", B.digest), ("last", A.digest)]


def test_foreign_entries_and_unknown_keys_stay(tmp_path: Path) -> None:
    foreign = make_image(ImageSpec((LayerSpec((File("f"),)),), family=mt.DOCKER))
    write_layout(tmp_path, {"theirs": foreign, "sig": make_artifact(foreign.descriptor)})
    index = json.loads((tmp_path / "index.json").read_bytes())
    index = {"x-first": 1.5, **index, "annotations": {"a": "b"}}
    index["manifests"][0]["x-entry"] = {"y": 1}
    text = json.dumps(index).replace("1.5", "1.50e0")
    (tmp_path / "index.json").write_text(text)
    LayoutSink(tmp_path).store(as_image(A), "v")
    after = (tmp_path / "index.json").read_text()
    assert after.startswith('{"x-first":1.50e0,"schemaVersion":2')
    assert json.loads(after)["manifests"][:2] == index["manifests"]
    assert json.loads(after)["annotations"] == {"a": "b"}
    assert LayoutSource(tmp_path).names() == ["sig", "theirs", "v"]


def test_the_unnamed_image_is_replaced_only_by_its_like(tmp_path: Path) -> None:
    write_layout(tmp_path, {None: A, "sig": make_artifact(A.descriptor)})
    sink = LayoutSink(tmp_path)
    with pytest.raises(RefusedError) as caught:
        sink.store(as_image(ours(b"c", {"target": "u"}), labels={"target": "u"}))
    assert (caught.value.code, caught.value.hint) == ("oci.unnamed-taken", f"name the new image: oci:{tmp_path}:NAME")
    with pytest.raises(RefusedError):
        sink.store(as_image(B))
    result = sink.store(as_image(B, labels=OURS))
    assert result.previous == A.digest
    assert layout_current(tmp_path, None) == B.digest
    assert sink.store(as_image(A), force=True).previous == B.digest
    assert LayoutSource(tmp_path).names() == ["sig"]


def test_unnamed_images_that_cannot_be_told_apart_are_left_alone(tmp_path: Path) -> None:
    foreign = make_image(ImageSpec((LayerSpec((File("f"),)),)))
    write_layout(tmp_path, A)
    index = json.loads((tmp_path / "index.json").read_bytes())
    index["manifests"].append(foreign.descriptor.to_json())
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RefusedError) as caught:
        LayoutSink(tmp_path).store(as_image(B, labels=OURS))
    assert caught.value.found == f"{A.digest}, {foreign.digest}"
    assert layout_current(tmp_path, None) is None


def test_an_unnamed_image_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    folder = write_layout(tmp_path, A)
    (folder / "blobs" / "sha256" / as_image(A).configs[0].descriptor.digest.hex).unlink()
    with pytest.raises(RefusedError) as caught:
        LayoutSink(tmp_path).store(as_image(B, labels=OURS))
    assert caught.value.code == "oci.unnamed-taken"


def test_an_unnamed_referrer_is_no_image_to_replace(tmp_path: Path) -> None:
    artifact = make_artifact(A.descriptor)
    write_layout(tmp_path, artifact)
    assert LayoutSink(tmp_path).store(as_image(A)).previous is None
    assert {e.digest for e in LayoutSource(tmp_path).index().manifests} == {artifact.digest, A.digest}
    assert layout_current(tmp_path, None) == A.digest


def test_a_cut_blob_of_a_known_image_is_written_again(tmp_path: Path) -> None:
    sink = LayoutSink(tmp_path)
    sink.store(as_image(A, base=MemorySource(BASE_IMAGE)), "v", complete=True)
    for layer in A.layers:
        (tmp_path / "blobs" / "sha256" / layer.descriptor.digest.hex).write_bytes(b"cut")
    result = sink.store(as_image(A, base=MemorySource(BASE_IMAGE)), "v", complete=True)
    assert result.uploaded_bytes == sum(layer.descriptor.size for layer in A.layers)
    check_valid(tmp_path)


def test_complete_verifies_what_is_there_and_sparse_does_not_read_it(tmp_path: Path, monkeypatch: Any) -> None:
    held = write_layout(tmp_path, BASE_IMAGE) / "blobs" / "sha256" / BASE_LAYER.descriptor.digest.hex
    held.write_bytes(b"x" * BASE_LAYER.descriptor.size)
    read: list[str] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda s, kind: (read.append(Path(s.name).name), real(s, kind))[1])
    LayoutSink(tmp_path).store(as_image(A, base=MemorySource(BASE_IMAGE)), "v")
    assert held.name not in read
    LayoutSink(tmp_path).store(as_image(B, base=MemorySource(BASE_IMAGE)), "w", complete=True)
    assert held.name in read
    check_valid(tmp_path)


def test_an_index_that_would_be_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = LayoutSink(tmp_path)
    sink.store(as_image(A), "v")
    before = (tmp_path / "index.json").read_bytes()
    monkeypatch.setattr("imagebuild.oci.layout.MANIFEST_LIMIT", len(before) + 10)
    with pytest.raises(RefusedError) as caught:
        sink.store(as_image(B), "w")
    assert caught.value.code == "oci.document-too-large"
    assert (tmp_path / "index.json").read_bytes() == before


def test_a_base_whose_streams_cannot_be_closed(tmp_path: Path) -> None:
    class Bare:
        def __init__(self, data: bytes) -> None:
            self.read = io.BytesIO(data).read

    source = MemorySource(BASE_IMAGE)
    source.open_blob = lambda d, what="": Bare(source.blobs[d.digest])  # type: ignore[method-assign]
    LayoutSink(tmp_path).store(as_image(A, base=source), complete=True)
    check_valid(tmp_path)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        LayoutSink(tmp_path).store(as_image(A))
    assert (caught.value.code, caught.value.found) == ("oci.not-a-layout", "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]
    (tmp_path / "notes.txt").rename(tmp_path / "index.json")
    with pytest.raises(InputError):
        LayoutSink(tmp_path).store(as_image(A))
    assert (tmp_path / "index.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\nb", "../x", "x" * 2000])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        LayoutSink(tmp_path / "l").store(as_image(A), name)
    assert caught.value.code == "oci.bad-reference"
    assert not (tmp_path / "l").exists()


def test_damaged_blobs_of_ours_are_written_again(tmp_path: Path) -> None:
    write_layout(tmp_path, {})
    layer, config = A.layers[1].descriptor, as_image(A).configs[0].descriptor
    for descriptor, data in ((layer, b"x" * layer.size), (config, b"short")):
        path = tmp_path / "blobs" / "sha256" / descriptor.digest.hex
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    LayoutSink(tmp_path).store(as_image(A, base=MemorySource(BASE_IMAGE)), complete=True)
    check_valid(tmp_path)


def test_a_layer_that_lies_is_not_kept(tmp_path: Path) -> None:
    image = as_image(A)
    liar = type(image.own[0])(image.own[0].descriptor, as_image(B).own[0].open)
    image = type(image)(image.top, image.manifests, image.configs, (liar,), image.base_layers, None)
    with pytest.raises(ImagebuildError) as caught:
        LayoutSink(tmp_path).store(image, "v")
    assert caught.value.code in ("content.digest-mismatch", "content.size-mismatch")
    assert layout_current(tmp_path, "v") is None
    assert os.listdir(tmp_path / "blobs" / "sha256") == []


def test_orphans_are_removed_and_nothing_else(tmp_path: Path) -> None:
    sink = LayoutSink(tmp_path)
    sink.store(as_image(A), "v")
    orphans = [tmp_path / ".imagebuild-tmp-1", tmp_path / "blobs" / "sha256" / ".imagebuild-tmp-2"]
    kept = tmp_path / "blobs" / "sha256" / hashlib.sha256(b"unlisted").hexdigest()
    for path in (*orphans, kept):
        path.write_bytes(b"unlisted")
    sink.store(as_image(A), "v")
    assert [p.exists() for p in orphans] == [False, False]
    assert kept.exists()


def test_the_base_may_be_the_same_layout(tmp_path: Path) -> None:
    write_layout(tmp_path, {"base": BASE_IMAGE})
    result = LayoutSink(tmp_path).store(as_image(A, base=LayoutSource(tmp_path)), "v", complete=True)
    assert result.missing_blobs == ()
    check_valid(tmp_path)
