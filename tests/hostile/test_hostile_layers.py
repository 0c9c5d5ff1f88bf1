"""Layers that were damaged or made to do harm: refused with a code, in bounded memory and time, and never half read."""

from __future__ import annotations

import gzip
import io
import os
import threading
import tracemalloc

import pytest
import zstandard

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.layer import compression
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.tar_reader import read_layer
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.testing.raw_tar import END, GNU, header, long_name, member, padded, pax

TAR = (
    member(b"d/", kind=b"5")
    + member(b"d/f", b"some data" * 100)
    + pax((b"path", b"d/" + b"n" * 200), (b"SCHILY.xattr.user.x", b"1"))
    + member(b"cut", b"x")
    + long_name(b"l" * 300)
    + header(b"cut", kind=b"2", link=b"t", magic=GNU)
    + member(b"h", kind=b"1", link=b"d/f")
    + pax(
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.realsize", b"900"),
        (b"GNU.sparse.name", b"s"),
    )
    + member(b"GNUSparse/s", padded(b"1\n800\n100\n") + b"z" * 100)
    + member(b"d/.wh.gone")
    + END
)
FORMS = {
    "none": (mt.OCI_LAYER, TAR),
    "gzip": (mt.OCI_LAYER_GZIP, gzip.compress(TAR, mtime=0)),
    "members": (mt.OCI_LAYER_GZIP, gzip.compress(TAR[:700], mtime=0) + gzip.compress(TAR[700:], mtime=0)),
    "zstd": (mt.OCI_LAYER_ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress(TAR)),
}


def read(data: bytes, media_type: str, digest: Digest | None = None, size: int | None = None) -> LayerFacts:
    descriptor = Descriptor(media_type, digest or Digest.of(data), len(data) if size is None else size)
    return read_layer(io.BytesIO(data), descriptor)


def result(data: bytes, media_type: str) -> LayerFacts | str:
    """The facts, or the code that the layer is refused with; any other exception is a fault of ours."""
    try:
        return read(data, media_type)
    except ImagebuildError as error:
        return error.code


def code_of(data: bytes, media_type: str) -> str:
    """The code that the layer is refused with, "" where it is read."""
    found = result(data, media_type)
    return found if isinstance(found, str) else ""


def test_the_layer_itself_is_fine() -> None:
    for media_type, data in FORMS.values():
        facts = read(data, media_type)
        assert len(facts.entries) == 6
        assert facts.diff_id == Digest.of(TAR)


@pytest.mark.parametrize("form", FORMS)
def test_truncated_blobs_are_refused_by_size_or_digest(form: str) -> None:
    media_type, data = FORMS[form]
    for end in range(0, len(data), max(1, len(data) // 60)):
        for size, code in ((None, "content.digest-mismatch"), (len(data), "content.size-mismatch")):
            with pytest.raises(RefusedError) as caught:
                read(data[:end], media_type, Digest.of(data), size)
            assert caught.value.code == code


@pytest.mark.parametrize("form", FORMS)
def test_a_flipped_bit_is_a_wrong_digest_wherever_it_is(form: str) -> None:
    media_type, data = FORMS[form]
    for place in range(0, len(data), max(1, len(data) // 90)):
        broken = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        with pytest.raises(RefusedError) as caught:
            read(broken, media_type, Digest.of(data))
        assert caught.value.code == "content.digest-mismatch"


def test_a_tar_cut_at_every_block_is_read_up_to_an_entry_or_refused() -> None:
    read_whole = {"", "base.bad-tar", "base.bad-sparse"}
    seen = set()
    for end in range(0, len(TAR), 512):
        code = code_of(TAR[:end], mt.OCI_LAYER)
        assert code in read_whole
        seen.add(code)
        assert code_of(TAR[: end + 100], mt.OCI_LAYER) in read_whole
    assert seen >= {"", "base.bad-tar"}


@pytest.mark.parametrize("form", ["gzip", "members", "zstd"])
def test_compressed_bytes_flipped_under_a_right_digest_are_refused_or_the_same_tar(form: str) -> None:
    media_type, data = FORMS[form]
    for place in range(len(data)):
        broken = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        facts = result(broken, media_type)
        assert facts.startswith("base.") if isinstance(facts, str) else facts.diff_id == Digest.of(TAR), place


def test_every_byte_of_every_header_changed_is_read_or_refused() -> None:
    for place in range(0, len(TAR), 7):
        broken = bytearray(TAR)
        broken[place] ^= 0x81
        code = code_of(bytes(broken), mt.OCI_LAYER)
        assert code == "" or code.startswith("base.")


def test_header_fields_at_their_extremes_are_read_or_refused() -> None:
    values = [b"\xff" * 12, b"\x80" + b"\0" * 11, b"7" * 12, b"9" * 12, b" " * 12, b"\0" * 12, b"-1" * 6, b"\x7f" * 12]
    for field, width in {"mode": 8, "uid": 8, "gid": 8, "size": 12, "mtime": 12, "major": 8, "minor": 8}.items():
        for value in values:
            for kind in (b"0", b"3", b"5", b"x", b"L", b"S"):
                tar = header(b"n", kind=kind, **{field: value[:width]}) + END
                code = code_of(tar, mt.OCI_LAYER)
                assert code == "" or code.startswith("base.")


@pytest.mark.parametrize("kind", [b"0", b"1", b"2", b"5"])
@pytest.mark.parametrize("name", [b"../../etc/passwd", b"a/../../b", b"/..", b"..", b"a/.."])
def test_paths_that_leave_the_root_are_refused(kind: bytes, name: bytes) -> None:
    for tar in (
        member(name, kind=kind, link=b"x"),
        long_name(name) + header(b"n", kind=kind, link=b"x"),
        pax((b"path", name)) + header(b"n", kind=kind, link=b"x"),
    ):
        assert code_of(tar + END, mt.OCI_LAYER) == "base.bad-path"


def test_a_link_that_leaves_the_root_is_data_not_a_path() -> None:
    facts = read(member(b"l", kind=b"2", link=b"../../../etc/passwd") + END, mt.OCI_LAYER)
    assert facts.entries["l"].link == "../../../etc/passwd"


def peak_of(data: bytes, media_type: str) -> tuple[str, int]:
    """The code of a refusal, and the bytes that were held at most meanwhile."""
    tracemalloc.start()
    try:
        code = code_of(data, media_type)
        return code, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_zstd_bomb_is_refused_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "SIZE_FLOOR", 32 << 20)
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    bomb = b"\x28\xb5\x2f\xfd\x00\x58" + block * 2000 + b"\x01\0\0"
    # Zeros alone are an archive that has ended: only the bound stops them.
    code, peak = peak_of(bomb, mt.OCI_LAYER_ZSTD)
    assert code == "base.too-large"
    assert peak < 24 << 20


def test_a_gzip_bomb_is_read_in_little_memory() -> None:
    # Deflate cannot grow beyond the bound's ratio, so it is only ever a matter of memory.
    bomb = gzip.compress(header(b"x", 64 << 20) + bytes(64 << 20) + END, 9, mtime=0)
    code, peak = peak_of(bomb, mt.OCI_LAYER_GZIP)
    assert code == ""
    assert peak < 24 << 20


def test_files_of_many_pieces_are_not_held() -> None:
    code, peak = peak_of(header(b"x", 64 << 20) + bytes(64 << 20) + END, mt.OCI_LAYER)
    assert code == ""
    assert peak < 24 << 20


def test_a_header_that_promises_exabytes_is_refused() -> None:
    for size in (b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7, b"77777777777\0"):
        assert code_of(header(b"x", size) + END, mt.OCI_LAYER) == "base.bad-tar"


def test_a_huge_extended_header_is_refused_before_it_is_read() -> None:
    for kind in (b"x", b"g", b"L", b"K"):
        assert code_of(header(b"p", 1 << 30, kind) + END, mt.OCI_LAYER) == "base.bad-pax"


def test_a_pax_header_of_many_records_is_read_once() -> None:
    records = b"".join(b"%d k%06d=v\n" % (13, n) for n in range(80_000))
    assert code_of(member(b"p", records, b"x") + member(b"x") + END, mt.OCI_LAYER) == ""


def test_too_many_entries_are_refused() -> None:
    data = member(b"x") * 1001 + END
    descriptor = Descriptor(mt.OCI_LAYER, Digest.of(data), len(data))
    with pytest.raises(RefusedError) as caught:
        read_layer(io.BytesIO(data), descriptor, entry_limit=1000)
    assert caught.value.code == "base.too-many-entries"


def test_names_of_control_characters_reach_no_message() -> None:
    with pytest.raises(RefusedError) as caught:
        read(member(b"\x1b[31m/../\x1b[0m") + END, mt.OCI_LAYER)
    assert "\x1b" not in str(caught.value)


def test_no_thread_is_left_by_any_refusal() -> None:
    before = threading.active_count()
    for data in (TAR[:700], os.urandom(5000), header(b"x", b"z" * 12), gzip.compress(TAR)[:-1]):
        for media_type in (mt.OCI_LAYER, mt.OCI_LAYER_GZIP):
            code_of(data, media_type)
    assert threading.active_count() == before
