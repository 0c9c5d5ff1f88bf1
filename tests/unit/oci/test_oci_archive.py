"""oci-archive as source and sink."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.archive_files import ArchiveFiles
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.oci_archive import OciArchiveSink, OciArchiveSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    layout_files,
    make_archive,
    make_artifact,
    make_image,
    make_index,
    make_tar,
    write_layout,
)
from imagebuild.testing.memory import MemorySource, as_image

BASE = LayerSpec((File("base", bytes(range(256)) * 20_000),), compression="stored")
BASE_IMAGE = make_image(ImageSpec((BASE,)))
TWO = make_index(
    IndexSpec(
        (ImageSpec((BASE, LayerSpec((File("new"),)))), ImageSpec((BASE,), Platform("linux", "arm64"))),
        attestations=True,
    )
)
ONE = make_image(ImageSpec((BASE, LayerSpec((File("new"),)))))


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_source_reads_members_at_random(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.tar"
    images: dict[str | None, MadeImage] = {"v": TWO, "s": make_artifact(TWO.descriptor)}
    path.write_bytes(make_archive(images, compressed=compressed))
    source = OciArchiveSource(path)
    assert source.location == f"oci-archive:{path}"
    assert source.resolve(None).digest == source.resolve("v").digest == TWO.digest
    assert list(read_image_tree(source, TWO.digest).children) == [
        Platform("linux", "amd64"),
        Platform("linux", "arm64"),
    ]
    for layer in (*TWO.layers, *reversed(TWO.layers)):
        assert source.has_blob(layer.descriptor)
        with source.open_blob(layer.descriptor) as stream:
            assert read_verified(stream, layer.descriptor.digest, layer.descriptor.size) == layer.blob
    assert len(source.referrers(TWO.digest)) == 1
    with pytest.raises(UnavailableError):
        source.open_blob(make_image(ImageSpec(())).descriptor)


def test_two_members_may_be_read_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(make_archive(TWO))
    source = OciArchiveSource(tmp_path / "a")
    first, second = (source.open_blob(layer.descriptor) for layer in TWO.layers[:2])
    with first, second:
        halves = first.read(100), second.read(100)
        assert (halves[0] + first.read(), halves[1] + second.read()) == tuple(layer.blob for layer in TWO.layers[:2])


def test_names_with_a_leading_dot(tmp_path: Path) -> None:
    write_layout(tmp_path / "l", ONE)
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.add(tmp_path / "l", ".")
    assert OciArchiveSource(tmp_path / "a").resolve(None).digest == ONE.digest


def test_sink_writes_one_whole_deterministic_archive(tmp_path: Path) -> None:
    source = MemorySource(BASE_IMAGE)
    result = OciArchiveSink(tmp_path / "a").store(as_image(TWO, base=source), "v1")
    OciArchiveSink(tmp_path / "deep" / "b").store(as_image(TWO, base=source), "v1")
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "deep" / "b").read_bytes()
    assert result.reference == f"oci-archive:{tmp_path}/a:v1@{TWO.digest}"
    assert (result.missing_blobs, result.previous) == ((), None)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        assert [m.name for m in members[:2]] == ["oci-layout", "index.json"]
        assert {(m.mode, m.uid, m.gid, m.mtime, m.uname, m.type) for m in members} == {(0o644, 0, 0, 0, "", b"0")}
        for member in members[2:]:
            content = archive.extractfile(member)
            assert content is not None
            assert hashlib.sha256(content.read()).hexdigest() == member.name.rpartition("/")[2]
    assert data.endswith(bytes(1024))
    assert result.uploaded_bytes == sum(m.size for m in members[2:])
    source = OciArchiveSource(tmp_path / "a")  # type: ignore[assignment]
    assert all(source.has_blob(layer.descriptor) for layer in TWO.layers)


def test_golden_bytes(tmp_path: Path) -> None:
    """The form of the archive is promised: these bytes change with a new format only."""
    raw = LayerSpec(raw=bytes(1024), compression="none")
    OciArchiveSink(tmp_path / "a").store(as_image(make_image(ImageSpec((raw,)))), "v")
    assert Digest.of((tmp_path / "a").read_bytes()).short(16) == "3a4f9dbd03585015"


def test_an_equal_image_is_left_alone_and_another_replaced(tmp_path: Path) -> None:
    sink = OciArchiveSink(tmp_path / "a")
    sink.store(as_image(ONE, base=MemorySource(BASE_IMAGE)), "v")
    before = (tmp_path / "a").stat().st_ino
    assert sink.store(as_image(ONE), "v").uploaded_bytes == 0
    assert (tmp_path / "a").stat().st_ino == before
    other = make_image(ImageSpec((LayerSpec((File("x"),)),)))
    assert sink.store(as_image(other), "v").previous == ONE.digest
    with pytest.raises(RefusedError) as caught:
        sink.store(as_image(ONE), "w")
    assert (caught.value.code, caught.value.found) == ("oci.archive-taken", "v")
    assert sink.store(as_image(other), "w", force=True).digest == other.digest


def test_an_unnamed_image_is_not_lost_to_a_named_one(tmp_path: Path) -> None:
    OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=MemorySource(BASE_IMAGE)))
    with pytest.raises(RefusedError) as caught:
        OciArchiveSink(tmp_path / "a").store(as_image(ONE), "v")
    assert (caught.value.found, caught.value.expected) == ("an unnamed image", "v")


def test_an_archive_that_lacks_blobs_is_made_whole(tmp_path: Path) -> None:
    sparse = make_tar([File(name, data) for name, data in layout_files({"v": ONE}, sparse=True).items()])
    (tmp_path / "a").write_bytes(sparse)
    result = OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=MemorySource(BASE_IMAGE)), "v")
    assert result.previous is None
    assert result.uploaded_bytes > ONE.layers[0].descriptor.size
    assert all(OciArchiveSource(tmp_path / "a").has_blob(layer.descriptor) for layer in ONE.layers)


def test_what_is_listed_twice_is_written_once(tmp_path: Path) -> None:
    image = as_image(ONE, base=MemorySource(BASE_IMAGE))
    twice = replace(
        image,
        configs=image.configs * 2,
        own=image.own * 2,
        base_layers=(*image.base_layers * 2, image.own[0].descriptor),
    )
    for name, given in (("once", image), ("twice", twice)):
        OciArchiveSink(tmp_path / name).store(given)
    assert (tmp_path / "once").read_bytes() == (tmp_path / "twice").read_bytes()


def test_a_gzip_archive_is_inflated_once_for_all_its_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    real = ArchiveFiles._start
    monkeypatch.setattr(ArchiveFiles, "_start", lambda self: (starts.append(1), real(self))[1])
    (tmp_path / "a").write_bytes(make_archive(TWO, compressed=True))
    read_image_tree(OciArchiveSource(tmp_path / "a"), TWO.images[0].digest)
    assert len(starts) == 1


def test_a_file_that_is_no_archive_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("my thesis")
    with pytest.raises(RefusedError) as caught:
        OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=MemorySource(BASE_IMAGE)))
    assert caught.value.code == "oci.archive-taken"
    assert (tmp_path / "a").read_text() == "my thesis"
    OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=MemorySource(BASE_IMAGE)), force=True)
    assert OciArchiveSource(tmp_path / "a").resolve(None).digest == ONE.digest


def test_a_base_that_lies_leaves_nothing(tmp_path: Path) -> None:
    source = MemorySource(BASE_IMAGE)
    layer = BASE_IMAGE.layers[0].descriptor
    source.blobs[layer.digest] = b"x" * layer.size
    for base, kind in ((source, RefusedError), (None, UnavailableError)):
        with pytest.raises(kind):
            OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=base))
        assert list(tmp_path.iterdir()) == []


def test_from_archive_to_archive(tmp_path: Path) -> None:
    (tmp_path / "base.tar.gz").write_bytes(make_archive(BASE_IMAGE, compressed=True))
    OciArchiveSink(tmp_path / "a").store(as_image(ONE, base=OciArchiveSource(tmp_path / "base.tar.gz")))
    assert read_image_tree(OciArchiveSource(tmp_path / "a"), None).top.digest == ONE.digest


@pytest.mark.parametrize("data", [b"\x28\xb5\x2f\xfd123", b"\xfd7zXZ\x00", b"BZh91AY"])
def test_other_compressions_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(InputError, match="compressed with") as caught:
        OciArchiveSource(tmp_path / "a").resolve(None)
    assert caught.value.code == "oci.not-an-archive"


def test_no_file_and_no_layout(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError) as caught:
            OciArchiveSource(path).resolve(None)
        assert caught.value.code == "oci.not-an-archive"
    with tarfile.open(tmp_path / "t", "w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    with pytest.raises(InputError) as caught:
        OciArchiveSource(tmp_path / "t").resolve(None)
    assert caught.value.code == "oci.not-a-layout"


def test_a_layout_and_an_archive_answer_alike(tmp_path: Path) -> None:
    layout = LayoutSource(write_layout(tmp_path / "l", TWO))
    (tmp_path / "a").write_bytes(gzip.compress(make_archive(TWO)))
    archive = OciArchiveSource(tmp_path / "a")
    assert layout.resolve(None) == archive.resolve(None)
    assert layout.read_document(TWO.images[1].digest) == archive.read_document(TWO.images[1].digest)
