"""What `read_layer` says of a layer, and what it refuses (images.md, Reading the base)."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
from collections.abc import Callable

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.layer.tar_reader import read_layer
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.testing.images import MTIME, File, Folder, HardLink, Item, LayerSpec, Link, Opaque, Special, Whiteout
from imagebuild.testing.images import make_layer as make
from imagebuild.testing.raw_tar import END, blob, header, member


def read(*items: Item, **spec: object) -> LayerFacts:
    made = make(LayerSpec(tuple(items), **spec))  # type: ignore[arg-type]
    facts = read_layer(io.BytesIO(made.blob), made.descriptor)
    assert facts.digest == made.descriptor.digest
    assert facts.diff_id == made.diff_id
    assert facts.tar_size == len(made.tar)
    return facts


def read_raw(tar: bytes, **options: object) -> LayerFacts:
    data, descriptor = blob(tar)
    return read_layer(io.BytesIO(data), descriptor, **options)  # type: ignore[arg-type]


def refusal(tar: bytes, **options: object) -> str:
    with pytest.raises(RefusedError) as caught:
        read_raw(tar, **options)
    assert "layer sha256:" in caught.value.message
    return caught.value.code


def test_every_kind_of_entry() -> None:
    facts = read(
        Folder("etc", 0o711, 1, 2),
        File("etc/f", b"data", 0o4755, 3, 4, 5),
        Link("etc/l", "../x"),
        HardLink("etc/h", "etc/f"),
        Special("dev/c", tarfile.CHRTYPE, (1, 3)),
        Special("dev/b", tarfile.BLKTYPE, (8, 0)),
        Special("run/p", tarfile.FIFOTYPE),
    )
    entries = dict(facts.entries)
    assert list(entries) == ["dev/b", "dev/c", "etc", "etc/f", "etc/h", "etc/l", "run/p"]
    assert entries["etc"] == Entry("etc", Kind.DIRECTORY, 0o711, 1, 2, MTIME, offset=entries["etc"].offset)
    file = entries["etc/f"]
    assert (file.kind, file.mode, file.uid, file.gid, file.mtime, file.size) == (Kind.FILE, 0o4755, 3, 4, 5, 4)
    assert file.sha256 == Digest.of(b"data")
    assert (entries["etc/l"].kind, entries["etc/l"].link) == (Kind.SYMLINK, "../x")
    assert (entries["etc/h"].kind, entries["etc/h"].link, entries["etc/h"].sha256) == (Kind.HARDLINK, "etc/f", None)
    assert (entries["dev/c"].kind, entries["dev/c"].device) == (Kind.CHARACTER, (1, 3))
    assert (entries["dev/b"].kind, entries["dev/b"].device) == (Kind.BLOCK, (8, 0))
    assert entries["run/p"].kind is Kind.FIFO
    assert facts.notes == ()


@pytest.mark.parametrize("compression", ["none", "stored", "gzip", "zstd"])
def test_one_layer_in_every_compression(compression: str) -> None:
    big = bytes(range(256)) * 9000
    facts = read(File("a", big), File("b", b""), File("c.pyc", b"x" * 20), compression=compression)
    assert facts.entries["a"].sha256 == Digest.of(big)
    assert facts.entries["b"].sha256 == Digest.of(b"")


def test_offset_is_where_the_data_lies() -> None:
    made = make(LayerSpec((File("x" * 200, b"first"), File("y", b"second"))))
    facts = read_layer(io.BytesIO(made.blob), made.descriptor)
    for name, data in (("x" * 200, b"first"), ("y", b"second")):
        entry = facts.entries[name]
        assert made.tar[entry.offset : entry.offset + entry.size] == data


def test_head_of_bytecode_is_kept() -> None:
    long = bytes(range(100))
    facts = read(File("a/__pycache__/m.cpython-312.pyc", long), File("short.pyc", b"abc"), File("m.py", long))
    assert facts.entries["a/__pycache__/m.cpython-312.pyc"].head == long[:16]
    assert facts.entries["short.pyc"].head == b"abc"
    assert facts.entries["m.py"].head == b""


def test_head_of_bytecode_that_crosses_pieces() -> None:
    # The data of the second file begins 8 bytes before a piece of 1 MiB ends.
    filler = (1 << 20) - 8 - 1024 - 512
    data = bytes(range(64))
    tar = member(b"f", bytes(filler - filler % 512)) + member(b"m.pyc", data) + END
    shifted = io.BytesIO(tar)

    class Odd:
        def read(self, size: int = -1, /) -> bytes:
            return shifted.read(min(size, 1000))

    descriptor = Descriptor(mt.OCI_LAYER, Digest.of(tar), len(tar))
    facts = read_layer(Odd(), descriptor)
    assert facts.entries["m.pyc"].head == data[:16]
    assert facts.entries["m.pyc"].sha256 == Digest.of(data)


def test_whiteouts_and_opaque_markers_are_no_entries() -> None:
    facts = read(Whiteout("a/x"), Opaque("b"), Opaque(""), File("c", b""))
    assert (facts.whiteouts, facts.opaques) == ({"a/x"}, {"b", ""})
    assert list(facts.entries) == ["c"]


def test_any_other_name_with_the_prefix_is_a_whiteout_of_the_rest() -> None:
    facts = read(File("d/.wh..wh..opqX", b"not a file"), File("d/.wh..wh.plnk", b""))
    assert facts.whiteouts == {"d/.wh..opqX", "d/.wh.plnk"}
    assert not facts.entries


@pytest.mark.parametrize("name", [".wh.", "d/.wh.", ".wh..", "d/.wh...", ".wh.x/y", "d/.wh..wh.plnk/1", "d/.wh.a/b/c"])
def test_a_whiteout_of_nothing_is_refused(name: str) -> None:
    assert refusal(member(name.encode()) + END) == "base.bad-whiteout"


@pytest.mark.parametrize("first", [True, False])
def test_an_entry_and_its_whiteout_in_one_layer_is_unportable(first: bool) -> None:
    items: list[Item] = [File("d/x", b"1"), Whiteout("d/x")]
    facts = read(*(items if first else reversed(items)))
    assert facts.notes == (("base.unportable", "d/x"),)
    assert "d/x" in facts.entries
    assert "d/x" in facts.whiteouts


def test_a_whiteout_over_something_below_it_is_unportable() -> None:
    assert read(Whiteout("d"), File("d/x", b"1")).notes == (("base.unportable", "d"),)


def test_a_device_that_overlayfs_takes_for_a_whiteout_is_unportable() -> None:
    assert read(Special("x", tarfile.CHRTYPE, (0, 0))).notes == (("base.unportable", "x"),)


def test_duplicate_entries_last_wins() -> None:
    facts = read(File("x", b"old"), File("y", b""), File("x", b"new"))
    assert facts.entries["x"].sha256 == Digest.of(b"new")
    assert facts.notes == (("base.duplicate-entry", "x"), ("base.unportable", "x"))


def test_any_name_twice_is_unportable() -> None:
    for items, path in (([Folder("d"), Folder("./d")], "d"), ([Whiteout("x"), Whiteout("x")], ".wh.x")):
        assert read(*items).notes == (("base.duplicate-entry", path), ("base.unportable", path))


@pytest.mark.parametrize("name", ["./", ".", "/", "./."])
def test_an_entry_named_dot_is_the_root(name: str) -> None:
    facts = read(Folder(name, 0o700), File("./a", b""), File("b//c/./d", b""))
    assert list(facts.entries) == ["", "a", "b/c/d"]
    assert facts.entries[""].mode == 0o700


def test_a_leading_slash_is_read_as_relative_and_noted() -> None:
    facts = read(File("/etc/x", b"1"))
    assert list(facts.entries) == ["etc/x"]
    assert facts.notes == (("base.relative-path", "etc/x"),)


@pytest.mark.parametrize("name", [b"../x", b"a/../x", b"a/..", b"..", b"/../etc/passwd", b"./../x"])
def test_dot_dot_is_refused(name: bytes) -> None:
    assert refusal(member(name) + END) == "base.bad-path"
    assert refusal(member(b"h", kind=b"1", link=name) + END) == "base.bad-path"


def test_names_that_are_none_are_refused() -> None:
    assert refusal(member(b"") + END) == "base.bad-path"
    assert refusal(member(b"./") + END) == "base.bad-path"
    assert refusal(member(b"l", kind=b"2") + END) == "base.bad-path"
    assert refusal(member(b"l", kind=b"1", link=b"./") + END) == "base.bad-path"
    assert refusal(member(b"file/") + END) == "base.bad-path"


def test_a_dotted_name_is_an_ordinary_one() -> None:
    names = [".hidden", "..x", "a/.b", "a/...", "x./y", "wh.x"]
    assert set(read(*(File(name, b"") for name in names)).entries) == set(names)


def test_names_that_are_not_utf8() -> None:
    facts = read_raw(member(b"caf\xe9/\xff") + member(b"l", kind=b"2", link=b"\xfe") + END)
    path = b"caf\xe9/\xff".decode("utf-8", "surrogateescape")
    assert facts.entries[path].path == path
    assert facts.entries["l"].link.encode("utf-8", "surrogateescape") == b"\xfe"


def test_paths_are_in_order_of_their_bytes() -> None:
    names = ["a", "a-b", "a/b", "é", "z", "\U0001f600", "\ue000"]
    assert list(read(Folder("a"), *(File(n, b"") for n in names if n != "a")).entries) == sorted(
        names, key=lambda name: name.encode()
    )


def test_hard_link_names_are_relative_to_the_root() -> None:
    facts = read(File("a/f", b"1"), HardLink("x", "./a/f"), HardLink("y", "/a/f"), HardLink("z", "a//f"))
    assert [facts.entries[name].link for name in "xyz"] == ["a/f"] * 3


def test_a_hard_link_before_its_target_is_refused() -> None:
    link, file = member(b"h", kind=b"1", link=b"f"), member(b"f", b"1")
    assert refusal(link + file + END) == "base.hardlink-order"
    assert refusal(file + link + file + END) == "base.hardlink-order"
    assert refusal(member(b"h", kind=b"1", link=b"h") + END) == "base.hardlink-order"
    assert read_raw(file + link + member(b"h", b"other") + END).entries["h"].kind is Kind.FILE


@pytest.mark.parametrize("items", [[Link("d", "e"), File("d/x", b"")], [File("d/x", b""), Link("d", "e")]])
def test_an_entry_below_a_link_of_its_own_layer_is_refused(items: list[Item]) -> None:
    with pytest.raises(RefusedError) as caught:
        read(*items)
    assert caught.value.code == "base.entry-below-link"


def test_a_whiteout_below_a_link_of_its_own_layer_is_refused() -> None:
    for marker in (Whiteout("d/x"), Opaque("d")):
        with pytest.raises(RefusedError) as caught:
            read(Link("d", "e"), marker)
        assert caught.value.code == "base.entry-below-link"


def test_a_path_that_was_a_link_while_entries_went_through_it_is_refused() -> None:
    tar = member(b"d", kind=b"2", link=b"e") + member(b"d/x", b"1") + member(b"d/", kind=b"5") + END
    assert refusal(tar) == "base.entry-below-link"


@pytest.mark.parametrize("kind", [b"D", b"M", b"N", b"V", b"X", b"A", b"\x80"])
def test_entry_types_that_no_engine_unpacks_are_refused(kind: bytes) -> None:
    assert refusal(member(b"x", kind=kind) + END) == "base.unsupported-entry"


def test_bounds() -> None:
    tar = b"".join(member(b"%d" % n) for n in range(11)) + END
    assert len(read_raw(tar, entry_limit=11).entries) == 11
    assert refusal(tar, entry_limit=10) == "base.too-many-entries"


def test_captured_files_come_after_verification_and_in_order() -> None:
    events: list[object] = []
    made = make(LayerSpec((File("b", b"22"), File("a", b"1"), File("c", b"no"), Folder("d"), HardLink("h", "a"))))

    def capture(path: str, size: int) -> bool:
        events.append((path, size))
        return path != "c"

    read_layer(
        io.BytesIO(made.blob),
        made.descriptor,
        capture=capture,
        captured=lambda entry, data: events.append((entry.path, entry.sha256, data)),
    )
    assert events == [("b", 2), ("a", 1), ("c", 2), ("a", Digest.of(b"1"), b"1"), ("b", Digest.of(b"22"), b"22")]


def captured_of(tar: bytes, wanted: Callable[[str, int], bool] = lambda *_: True) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    read_raw(tar, capture=wanted, captured=lambda entry, data: out.__setitem__(entry.path, data))
    return out


def test_only_the_entry_that_counts_is_captured() -> None:
    twice = member(b"x", b"old") + member(b"x", b"new") + END
    assert captured_of(twice) == {"x": b"new"}
    seen: list[int] = []
    assert captured_of(twice, lambda path, size: not seen.append(size) and len(seen) == 1) == {}
    assert captured_of(member(b"x", b"old") + member(b"x", kind=b"2", link=b"y") + END) == {}


def test_captures_are_bounded() -> None:
    tar = member(b"x", bytes(600)) + member(b"y", bytes(600)) + END
    assert refusal(tar, capture=lambda *_: True, capture_limit=1000) == "base.capture-too-large"


@pytest.mark.parametrize("compressed", [False, True])
def test_nothing_is_delivered_where_the_digest_is_wrong(compressed: bool) -> None:
    data, descriptor = blob(member(b"x", b"1") + END, compressed=compressed)
    wrong = Descriptor(descriptor.media_type, Digest.of(b"other"), descriptor.size)
    got: list[bytes] = []
    with pytest.raises(RefusedError) as caught:
        read_layer(io.BytesIO(data), wrong, capture=lambda *_: True, captured=lambda _, data: got.append(data))
    assert caught.value.code == "content.digest-mismatch"
    assert got == []


def test_progress_counts_the_stored_bytes() -> None:
    made = make(LayerSpec((File("x", bytes(range(256)) * 20_000),)))
    counts: list[int] = []
    read_layer(io.BytesIO(made.blob), made.descriptor, progress=counts.append)
    assert sum(counts) == made.descriptor.size
    assert all(count > 0 for count in counts)


class Boom(Exception):
    pass


@pytest.mark.parametrize("where", ["capture", "captured", "progress"])
def test_a_fault_of_the_caller_passes_and_ends_the_thread(where: str) -> None:
    made = make(LayerSpec((File("x", bytes(3 << 20)), File("y", bytes(3 << 20))), compression="stored"))

    def boom(*_: object) -> bool:
        raise Boom

    options = {"capture": lambda *_: True, where: boom}
    before = threading.active_count()
    with pytest.raises(Boom):
        read_layer(io.BytesIO(made.blob), made.descriptor, **options)  # type: ignore[arg-type]
    assert threading.active_count() == before


def test_a_fault_of_the_stream_passes_and_is_not_asked_again() -> None:
    made = make(LayerSpec((File("x", bytes(3 << 20)),), compression="stored"))
    calls: list[int] = []

    class Cut:
        def read(self, size: int = -1, /) -> bytes:
            calls.append(size)
            if len(calls) > 2:
                raise UnavailableError("registry.cut", "the connection broke")
            return made.blob[(len(calls) - 1) * size : len(calls) * size]

    before = threading.active_count()
    with pytest.raises(UnavailableError, match="broke"):
        read_layer(Cut(), made.descriptor)
    assert len(calls) == 3
    assert threading.active_count() == before


def test_corruption_is_told_as_a_wrong_digest_even_where_the_tar_breaks_first() -> None:
    tar = member(b"a", b"1") + header(b"b") + member(b"c", bytes(3 << 20)) + END
    for data, descriptor in (blob(tar), blob(tar, compressed=True)):
        broken = bytearray(data)
        broken[700 if descriptor.media_type == mt.OCI_LAYER else 20] ^= 0xFF
        with pytest.raises(RefusedError) as caught:
            read_layer(io.BytesIO(bytes(broken)), descriptor)
        assert caught.value.code == "content.digest-mismatch"


def test_a_broken_tar_with_the_right_digest_is_told_as_such() -> None:
    tar = member(b"a", b"1") + bytes(100) + b"\1" * 412 + END
    data = gzip.compress(tar)
    with pytest.raises(RefusedError) as caught:
        read_layer(io.BytesIO(data), Descriptor(mt.OCI_LAYER_GZIP, Digest.of(data), len(data)))
    assert caught.value.code == "base.bad-tar"
    assert "byte 1024" in caught.value.message


@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_than_promised_is_refused(change: int) -> None:
    data, descriptor = blob(member(b"a", b"1") + END)
    with pytest.raises(RefusedError) as caught:
        read_layer(io.BytesIO(data), Descriptor(descriptor.media_type, descriptor.digest, descriptor.size + change))
    assert caught.value.code == "content.size-mismatch"


def test_a_media_type_that_is_no_layer_is_refused() -> None:
    data, descriptor = blob(END)
    with pytest.raises(RefusedError) as caught:
        read_layer(io.BytesIO(data), Descriptor(mt.OCI_CONFIG, descriptor.digest, descriptor.size))
    assert caught.value.code == "oci.unknown-layer-type"
