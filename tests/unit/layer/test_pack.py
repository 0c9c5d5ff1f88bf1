"""Layer blobs: what a name of a compressor promises."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import zstandard

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.layer import pack
from imagebuild.layer.entry import NewEntry
from imagebuild.layer.pack import DEFLATE, NONE, STORED, PackedLayer, choose_compressor, pack_layer, zstd_name
from imagebuild.layer.stored import StoredGzip, stored_gzip, stored_size
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.tar_writer import write_tar
from imagebuild.oci import media_types as mt
from imagebuild.testing.new_entries import new_file, new_folder, new_whiteout

ENTRIES = (
    new_folder("d"),
    new_file("d/f", b"".join(b"%d\n" % n for n in range(30_000))),
    new_whiteout("d/old"),
)


def tar_of(entries: tuple[NewEntry, ...]) -> bytes:
    out = io.BytesIO()
    write_tar(entries, out)
    return out.getvalue()


def unpacked(packed: PackedLayer, kind: str) -> bytes:
    data = packed.path.read_bytes()
    if kind == "gzip":
        return gzip.decompress(data)
    return zstandard.ZstdDecompressor().decompress(data) if kind == "zstd" else data


@pytest.mark.parametrize(
    ("compressor", "family", "media_type", "kind"),
    [
        (STORED, mt.OCI, mt.OCI_LAYER_GZIP, "gzip"),
        (STORED, mt.DOCKER, mt.DOCKER_LAYER_GZIP, "gzip"),
        (DEFLATE, mt.OCI, mt.OCI_LAYER_GZIP, "gzip"),
        (DEFLATE, mt.DOCKER, mt.DOCKER_LAYER_GZIP, "gzip"),
        (zstd_name(), mt.OCI, mt.OCI_LAYER_ZSTD, "zstd"),
        (NONE, mt.OCI, mt.OCI_LAYER, "none"),
        (NONE, mt.DOCKER, mt.DOCKER_LAYER_GZIP, "gzip"),
    ],
)
def test_a_packed_layer_is_what_its_descriptor_says(
    tmp_path: Path, compressor: str, family: mt.Family, media_type: str, kind: str
) -> None:
    packed = pack_layer(ENTRIES, family=family, compressor=compressor, workdir=tmp_path / "new")
    tar = tar_of(ENTRIES)
    assert unpacked(packed, kind) == tar
    data = packed.path.read_bytes()
    assert (packed.descriptor.digest, packed.descriptor.size) == (Digest.of(data), len(data))
    assert (packed.descriptor.media_type, packed.diff_id, packed.tar_size) == (media_type, Digest.of(tar), len(tar))
    assert packed.path.name == f"sha256-{packed.descriptor.digest.hex}"
    assert packed.path.stat().st_mode & 0o777 == 0o644
    with packed.path.open("rb") as stream:
        assert read_layer(stream, packed.descriptor).diff_id == packed.diff_id


def test_plain_tar_in_the_docker_family_becomes_stored_gzip(tmp_path: Path) -> None:
    plain = pack_layer(ENTRIES, family=mt.DOCKER, compressor=NONE, workdir=tmp_path)
    stored = pack_layer(ENTRIES, family=mt.DOCKER, compressor=STORED, workdir=tmp_path)
    assert plain == stored


@pytest.mark.parametrize("compressor", [STORED, DEFLATE])
def test_the_gzip_header_is_fixed(tmp_path: Path, compressor: str) -> None:
    data = pack_layer(ENTRIES, family=mt.OCI, compressor=compressor, workdir=tmp_path).path.read_bytes()
    assert data[:10] == bytes.fromhex("1f8b08000000000000ff")


def test_packing_twice_gives_equal_bytes(tmp_path: Path) -> None:
    for compressor in (STORED, DEFLATE, zstd_name(), NONE):
        first = pack_layer(ENTRIES, family=mt.OCI, compressor=compressor, workdir=tmp_path / "a")
        second = pack_layer(reversed(ENTRIES), family=mt.OCI, compressor=compressor, workdir=tmp_path / "b")
        assert first.descriptor == second.descriptor
        assert first.path.read_bytes() == second.path.read_bytes()


def test_the_umask_does_not_reach_the_file(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        packed = pack_layer(ENTRIES, family=mt.OCI, compressor=STORED, workdir=tmp_path)
    finally:
        os.umask(old)
    assert packed.path.stat().st_mode & 0o777 == 0o644


def test_zstd_is_refused_in_the_docker_family(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        pack_layer(ENTRIES, family=mt.DOCKER, compressor=zstd_name(), workdir=tmp_path)
    assert caught.value.code == "layer.compressor-family"


@pytest.mark.parametrize("name", ["deflate-0.8.0-6", "deflate-0.9.0-9", "zstd-1.4.0-3", "zstd-1.5.7-19"])
def test_another_version_than_the_one_installed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        pack_layer(ENTRIES, family=mt.OCI, compressor=name, workdir=tmp_path)
    assert caught.value.code == "layer.compressor-version"
    assert caught.value.expected == name


def test_the_locked_deflate_is_refused_where_another_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.9.1")
    with pytest.raises(UnavailableError, match="another compressor"):
        pack_layer(ENTRIES, family=mt.OCI, compressor=DEFLATE, workdir=tmp_path)


def test_an_unknown_compressor_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        pack_layer(ENTRIES, family=mt.OCI, compressor="brotli", workdir=tmp_path)
    assert caught.value.code == "layer.unknown-compressor"


@pytest.mark.parametrize("compressor", [STORED, DEFLATE, NONE])
def test_nothing_is_left_behind_where_packing_fails(tmp_path: Path, compressor: str) -> None:
    def entries() -> Iterator[NewEntry]:
        yield new_file("a", b"1")
        yield new_file("a", b"2")

    with pytest.raises(RefusedError):
        pack_layer(entries(), family=mt.OCI, compressor=compressor, workdir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ImagebuildError) as caught:
        pack_layer(ENTRIES, family=mt.OCI, compressor=STORED, workdir=tmp_path / "file" / "below")
    assert caught.value.exit_code == 3


def test_stored_up_to_eight_mib_of_tar_deflate_above() -> None:
    assert choose_compressor(8 << 20) == STORED
    assert choose_compressor((8 << 20) + 1) == DEFLATE
    assert pack.STORED_LIMIT == 8 << 20


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 2 * 65535, 2 * 65535 + 1, 300_000])
@pytest.mark.parametrize("step", [1 << 20, 65535, 1000])
def test_stored_blocks_do_not_depend_on_how_the_data_was_cut(size: int, step: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    out: list[bytes] = []
    made = StoredGzip(out.append)
    for at in range(0, size, step):
        made.write(data[at : at + step])
    made.close()
    whole = b"".join(out)
    assert gzip.decompress(whole) == data
    assert whole == b"".join(stored_gzip(io.BytesIO(data)))
    assert len(whole) == stored_size(size)


def test_stored_blocks_byte_by_byte() -> None:
    data = b"x" * 65535 + b"y"
    crc = zlib.crc32(data).to_bytes(4, "little")
    wanted = (
        bytes.fromhex("1f8b08000000000000ff")
        + bytes.fromhex("00ffff0000")
        + b"x" * 65535
        + bytes.fromhex("010100feff")
        + b"y"
        + crc
        + (65536).to_bytes(4, "little")
    )
    assert b"".join(stored_gzip(io.BytesIO(data))) == wanted


def test_a_change_is_seen_by_content_where_size_and_time_stay(tmp_path: Path) -> None:
    old, new = (
        pack_layer((new_file("m.py", data),), family=mt.OCI, compressor=STORED, workdir=tmp_path)
        for data in (b"x = 1\n", b"x = 2\n")
    )
    assert old.descriptor.size == new.descriptor.size
    assert old.descriptor.digest != new.descriptor.digest
    assert b"x = 2" in new.path.read_bytes()


def test_a_python_without_deflate_cannot_rebuild_such_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    with pytest.raises(UnavailableError) as caught:
        pack_layer(ENTRIES, family=mt.OCI, compressor=DEFLATE, workdir=tmp_path)
    assert caught.value.code == "layer.compressor-version"
    assert "not installed" in (caught.value.found or "")
    monkeypatch.setitem(sys.modules, "deflate", None)
    with pytest.raises(UnavailableError) as broken:
        pack_layer(ENTRIES, family=mt.OCI, compressor=DEFLATE, workdir=tmp_path)
    assert broken.value.code == "layer.compressor-version"
