"""Facts on disk: they come back equal, or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.layer.facts_store import FactsStore, decode_facts, encode_facts
from imagebuild.layer.table import EntryTable, Row
from imagebuild.layer.tar_reader import read_layer
from imagebuild.testing.images import File, Folder, HardLink, LayerSpec, Link, Opaque, Special, Whiteout, make_layer

ODD = b"caf\xe9".decode("utf-8", "surrogateescape")


def facts() -> LayerFacts:
    made = make_layer(
        LayerSpec(
            (
                Folder("./"),
                Folder("etc", 0o700, 3, 4, -5),
                File("etc/é", b"data", xattrs={"user.x": b"\0\xff"}),
                File("etc/m.pyc", bytes(range(40))),
                File("etc/n.pyc", b"ab"),
                Link("l", ODD),
                HardLink("h", "etc/é"),
                Special("dev/n", b"3", (1, 3)),
                File("big", b"", uid=4_000_000_000),
                Whiteout("gone/" + ODD),
                Opaque(ODD),
                File(ODD + "/x", b"1"),
                File(ODD + "/x", b"2"),
            )
        )
    )
    return read_layer(io.BytesIO(made.blob), made.descriptor)


def test_facts_come_back_equal(tmp_path: Path) -> None:
    store, made = FactsStore(tmp_path), facts()
    store.store(made)
    loaded = store.load(made.digest)
    assert loaded == made
    assert loaded is not None
    assert list(loaded.entries) == list(made.entries)
    assert dict(loaded.entries) == dict(made.entries)
    assert loaded.notes == (("base.duplicate-entry", ODD + "/x"), ("base.unportable", ODD + "/x"))


def test_facts_with_nothing_in_them() -> None:
    digest = Digest.of(b"")
    empty = LayerFacts(digest, digest, 1024, {}, frozenset(), frozenset())
    assert decode_facts(encode_facts(empty)) == empty


def test_a_plain_mapping_is_stored_like_a_table() -> None:
    digest = Digest.of(b"")
    entries = {"a": Entry("a", Kind.FILE, 0o644, 0, 0, 1, 3, Digest.of(b"abc"))}
    plain = LayerFacts(digest, digest, 1024, entries, frozenset(), frozenset())
    assert decode_facts(encode_facts(plain)).entries == entries


def test_what_was_never_stored_is_absent(tmp_path: Path) -> None:
    assert FactsStore(tmp_path).load(Digest.of(b"x")) is None


def test_a_damaged_file_is_absent_wherever_the_damage_is(tmp_path: Path) -> None:
    store, made = FactsStore(tmp_path), facts()
    store.store(made)
    path = store.path(made.digest)
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert store.load(made.digest) is None, place
        path.write_bytes(data[:place])
        assert store.load(made.digest) is None, place
    path.write_bytes(data + b"\0")
    assert store.load(made.digest) is None
    store.store(made)
    assert store.load(made.digest) == made


def test_another_version_is_absent() -> None:
    data = encode_facts(facts())
    with pytest.raises(ValueError, match="version"):
        decode_facts(data.replace(b"facts 1\n", b"facts 2\n", 1))


def test_facts_under_another_layer_s_name_are_absent(tmp_path: Path) -> None:
    store, made = FactsStore(tmp_path), facts()
    other = Digest.of(b"other")
    store.path(other).parent.mkdir(parents=True)
    store.path(other).write_bytes(encode_facts(made))
    assert store.load(other) is None


def test_nothing_but_whole_files_is_left_behind(tmp_path: Path) -> None:
    store, made = FactsStore(tmp_path), facts()
    store.store(made)
    assert [path.name for path in (tmp_path / "sha256").iterdir()] == [f"{made.digest.hex}.facts"]


def test_a_table_is_a_mapping_in_path_order() -> None:
    row = Row(0, 0o644, 0, 0, 1, 0, 0)
    table = EntryTable.of({"b": row, "a": row, "a-": row, "a/x": row})
    assert list(table) == ["a", "a-", "a/x", "b"]
    assert ("a" in table, "c" in table, table.get("c"), len(table)) == (True, False, None, 4)
    with pytest.raises(KeyError):
        table["c"]
    assert table == dict(table.items())


def test_columns_that_differ_in_length_are_refused() -> None:
    table = EntryTable.of({"a": Row(0, 0, 0, 0, 0, 0, 0)})
    with pytest.raises(ValueError, match="length"):
        EntryTable(["a", "b"], table.kinds, table.numbers, table.shas, {}, {}, {}, {})
    twice = EntryTable.of({"a": Row(0, 0, 0, 0, 0, 0, 0), "b": Row(0, 0, 0, 0, 0, 0, 0)})
    with pytest.raises(ValueError, match="twice"):
        EntryTable(["a", "a"], twice.kinds, twice.numbers, twice.shas, {}, {}, {}, {})
