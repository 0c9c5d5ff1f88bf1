"""The canonical layer tar: one list of entries gives one text of bytes, and bad lists give none."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tarfile
from dataclasses import replace
from typing import BinaryIO

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Entry, Kind, LayerFacts, NewEntry, NewKind
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.tar_writer import EARLIEST, canonical_order, tar_size, write_tar
from imagebuild.testing.new_entries import TIME, Bytes, new_file, new_folder, new_link, new_whiteout
from imagebuild.testing.raw_tar import blob


def written(*entries: NewEntry) -> bytes:
    out = io.BytesIO()
    write_tar(entries, out)
    assert tar_size(entries) == len(out.getvalue())
    return out.getvalue()


def facts_of(*entries: NewEntry) -> LayerFacts:
    data, descriptor = blob(written(*entries))
    facts = read_layer(io.BytesIO(data), descriptor)
    assert facts.notes == ()
    return facts


def names(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [member.name + ("/" if member.isdir() else "") for member in archive]


def refusal(*entries: NewEntry) -> str:
    out = io.BytesIO()
    with pytest.raises(RefusedError) as caught:
        write_tar(entries, out)
    if caught.value.code != "layer.data-changed":
        assert out.getvalue() == b""
    return caught.value.code


ALL = (
    new_folder("a", 0o2755, 5, 6),
    new_file("a/f", b"data", 0o4755, 1, 2),
    new_file("a.b", b""),
    new_file("a/" + "n" * 120, b"long name"),
    new_file("p" * 90 + "/" + "q" * 90, b"prefix"),
    new_file("é/ü", b"not ascii"),
    new_link("l", "a/f"),
    new_link("m", "/" + "t" * 200),
    new_file("big-owner", b"", uid=3_000_000, gid=4_000_000_000),
    new_file("future", b"", mtime=1 << 34),
    new_file("cap", b"elf", xattrs={"security.capability": b"\1\0\n=\xff", "user.z": b"", "user.a": b"1"}),
    new_whiteout("gone"),
    new_whiteout("a/gone"),
    new_whiteout("é/" + "w" * 150),
)


def test_everything_comes_back_as_written() -> None:
    facts = facts_of(*ALL)
    assert facts.whiteouts == {entry.path for entry in ALL if entry.kind is NewKind.WHITEOUT}
    for new in ALL:
        if new.kind is NewKind.WHITEOUT:
            continue
        entry = facts.entries[new.path]
        kind = {NewKind.FILE: Kind.FILE, NewKind.DIRECTORY: Kind.DIRECTORY, NewKind.SYMLINK: Kind.SYMLINK}[new.kind]
        wanted = Entry(
            new.path,
            kind,
            0o777 if kind is Kind.SYMLINK else new.mode,
            new.uid,
            new.gid,
            new.mtime,
            new.data.size if new.data else 0,
            new.data.sha256 if new.data else None,
            new.link,
            tuple(sorted(new.xattrs.items())),
            offset=entry.offset,
        )
        assert entry == wanted


def test_the_order_given_does_not_matter() -> None:
    wanted = written(*ALL)
    for seed in range(5):
        shuffled = list(ALL)
        random.Random(seed).shuffle(shuffled)
        assert written(*shuffled) == wanted


def test_depth_first_whiteouts_first_then_by_bytes() -> None:
    entries = ["b", "a/z", "a/b", "a-", "a/b/c", "A", "a.d"]
    made = [new_file(path) if path in ("a/z", "a/b/c", "A") else new_folder(path) for path in [*entries, "a"]]
    made += [new_whiteout("a/y"), new_whiteout("zz"), new_whiteout("a/b/d")]
    assert names(written(*made)) == [
        ".wh.zz",
        "A",
        "a/",
        "a/.wh.y",
        "a/b/",
        "a/b/.wh.d",
        "a/b/c",
        "a/z",
        "a-/",
        "a.d/",
        "b/",
    ]


def test_an_archive_is_complete() -> None:
    tar = written(new_file("f", b"x"))
    assert len(tar) % 512 == 0
    assert tar.endswith(bytes(1024))
    assert tar[513:1024] == bytes(511)
    assert len(tar) == 512 + 512 + 1024


def test_nothing_to_write_is_two_zero_blocks() -> None:
    assert written() == bytes(1024)


def test_ustar_where_it_fits_and_pax_where_not() -> None:
    def kinds(*entries: NewEntry) -> list[bytes]:
        tar = written(*entries)
        found = []
        at = 0
        while tar[at : at + 512] != bytes(512):
            found.append(tar[at + 156 : at + 157])
            size = int(tar[at + 124 : at + 135], 8)
            at += 512 + size + -size % 512
        return found

    assert kinds(new_file("n" * 100)) == [b"0"]
    assert kinds(new_file("n" * 101)) == [b"x", b"0"]
    assert kinds(new_file("p" * 155 + "/" + "n" * 100)) == [b"0"]
    assert kinds(new_file("p" * 156 + "/" + "n" * 100)) == [b"x", b"0"]
    assert kinds(new_folder("p" * 155 + "/" + "n" * 99)) == [b"5"]
    assert kinds(new_folder("n" * 100)) == [b"x", b"5"]
    assert kinds(new_link("l", "t" * 100)) == [b"2"]
    assert kinds(new_link("l", "t" * 101)) == [b"x", b"2"]
    assert kinds(new_file("u", uid=0o7777777)) == [b"0"]
    assert kinds(new_file("u", uid=0o10000000)) == [b"x", b"0"]
    assert kinds(new_file("x", xattrs={"user.a": b"1"})) == [b"x", b"0"]


def test_no_name_of_an_owner_and_no_other_time_is_written() -> None:
    with tarfile.open(fileobj=io.BytesIO(written(*ALL))) as archive:
        for member in archive:
            assert (member.uname, member.gname) == ("", "")
            assert set(member.pax_headers) <= {"path", "linkpath", "uid", "gid", "mtime", "size"} | {
                key for key in member.pax_headers if key.startswith("SCHILY.xattr.")
            }


def test_names_that_are_not_utf8() -> None:
    for raw in (b"caf\xe9", b"x" * 120 + b"\xff"):
        path = raw.decode("utf-8", "surrogateescape")
        assert list(facts_of(new_file(path)).entries) == [path]


def test_python_reads_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(written(*ALL))) as archive:
        members = {member.name: member for member in archive}
        for new in ALL:
            if new.kind is NewKind.WHITEOUT:
                continue
            member = members[new.path]
            assert (member.uid, member.gid, member.mtime) == (new.uid, new.gid, new.mtime)
            if new.data is not None:
                stream = archive.extractfile(member)
                assert stream is not None
                with new.data.open() as data:
                    assert stream.read() == data.read()


@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is not here")
def test_gnu_tar_reads_it_without_a_word() -> None:
    done = subprocess.run(
        ["tar", "--list", "--warning=all", "--quoting-style=literal", "-f", "-"],
        input=written(*(entry for entry in ALL if entry.path != "future")),
        capture_output=True,
        check=False,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    shown = [line.decode().rstrip("/") for line in done.stdout.splitlines()]
    assert set(shown) >= {entry.path for entry in ALL if entry.kind is not NewKind.WHITEOUT and entry.path != "future"}


def test_three_names_for_one_text_have_one_layout() -> None:
    made = [new_file(path, b"same") for path in ("b", "a", "c")]
    assert written(*made) == written(*reversed(made))
    assert [entry.kind for entry in facts_of(*made).entries.values()] == [Kind.FILE] * 3


def test_delete_and_add_are_exactly_the_whiteout_and_the_file() -> None:
    assert names(written(new_file("d/new", b"1"), new_whiteout("d/old"))) == ["d/.wh.old", "d/new"]


def test_new_folders_stand_explicitly_and_only_as_given() -> None:
    made = (new_folder("new"), new_folder("new/deep"), new_file("new/deep/f"))
    assert names(written(*made)) == ["new/", "new/deep/", "new/deep/f"]
    assert names(written(new_file("has/none/f"))) == ["has/none/f"]


def test_a_folder_is_replaced_by_a_link_with_the_link_alone() -> None:
    assert names(written(new_link("a", "b"))) == ["a"]


@pytest.mark.parametrize(
    "name", ["security.selinux", "security.ima", "security.evm", "trusted.overlay.opaque", "user.overlay.x"]
)
def test_marks_of_one_host_are_never_written(name: str) -> None:
    made = new_file("f", b"1", xattrs={name: b"label", "security.capability": b"kept"})
    assert facts_of(made).entries["f"].xattrs == (("security.capability", b"kept"),)
    assert written(new_file("f", b"1", xattrs={name: b"label"})) == written(new_file("f", b"1"))


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "./a", "a/.", "../a", "a/../b", "a\0b", "n" * 256, "/".join(["n" * 200] * 21)]
)
def test_paths_that_a_layer_cannot_hold_are_refused(path: str) -> None:
    assert refusal(new_file(path)) == "layer.bad-path"
    assert refusal(new_whiteout(path)) == "layer.bad-path"


@pytest.mark.parametrize("path", [".wh.x", "a/.wh.x", ".wh.x/a", ".wh..wh..opq", "a/.wh."])
def test_names_of_whiteouts_are_refused(path: str) -> None:
    assert refusal(new_file(path)) == "layer.bad-path"
    assert refusal(new_whiteout(path)) == "layer.bad-path"


def test_times_before_1980_are_refused() -> None:
    assert EARLIEST == 315532800
    written(new_file("f", mtime=EARLIEST))
    assert refusal(new_file("f", mtime=EARLIEST - 1)) == "layer.too-old"
    assert refusal(new_whiteout("f", mtime=0)) == "layer.too-old"


def test_one_path_twice_is_refused() -> None:
    assert refusal(new_file("f"), new_file("f")) == "layer.duplicate-path"
    assert refusal(new_file("f"), new_folder("f")) == "layer.duplicate-path"
    assert refusal(new_whiteout("f"), new_whiteout("f")) == "layer.duplicate-path"


def test_a_whiteout_and_an_entry_of_one_name_are_refused() -> None:
    assert refusal(new_whiteout("f"), new_file("f")) == "layer.whiteout-and-entry"
    assert refusal(new_folder("d"), new_whiteout("d")) == "layer.whiteout-and-entry"


def test_anything_below_a_whiteout_is_refused() -> None:
    assert refusal(new_whiteout("t"), new_whiteout("t/x")) == "layer.whiteout-and-entry"
    assert refusal(new_whiteout("t"), new_file("t/a/b")) == "layer.whiteout-and-entry"


def test_an_entry_below_a_file_or_link_is_refused() -> None:
    assert refusal(new_file("usr/local/bin"), new_file("usr/local/bin/x")) == "layer.parent-not-a-folder"
    assert refusal(new_link("etc", "e"), new_whiteout("etc/x")) == "layer.parent-not-a-folder"


@pytest.mark.parametrize(
    "entry",
    [
        NewEntry("f", NewKind.FILE, mtime=TIME),
        NewEntry("f", NewKind.DIRECTORY, mtime=TIME, data=Bytes(b"")),
        NewEntry("f", NewKind.SYMLINK, mtime=TIME),
        NewEntry("f", NewKind.WHITEOUT, mtime=TIME, link="x"),
        new_file("f", mode=0o100644),
        new_file("f", uid=-1),
        new_file("f", gid=1 << 32),
        new_link("f", "a\0b"),
        new_link("f", "t" * 4097),
        new_file("f", xattrs={"user.a=b": b""}),
        new_file("f", xattrs={"": b""}),
    ],
)
def test_entries_that_are_none_are_refused(entry: NewEntry) -> None:
    assert refusal(entry) == "layer.bad-entry"


class Changed(Bytes):
    """Promises other data than it gives."""

    __slots__ = ()

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data[:-1] + b"?" if self.data.startswith(b"same size") else self.data + b"?")

    @property
    def sha256(self) -> Digest:
        return Digest.of(self.data)


@pytest.mark.parametrize("data", [b"same size", b"longer", b""])
def test_data_that_changed_meanwhile_is_refused(data: bytes) -> None:
    assert refusal(replace(new_file("f"), data=Changed(data))) == "layer.data-changed"


def test_canonical_order_gives_each_entry_once() -> None:
    assert sorted(canonical_order(ALL), key=lambda e: e.path) == sorted(ALL, key=lambda e: e.path)
