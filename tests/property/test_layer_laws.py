"""Laws of reading and writing layers, against Python's own tarfile and against each other."""

from __future__ import annotations

import gzip
import io
import string
import tarfile
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.layer.entry import Kind, NewEntry, NewKind
from imagebuild.layer.facts_store import decode_facts, encode_facts
from imagebuild.layer.names import TarFault, bytes_of, hidden_by
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.tar_writer import tar_size, write_tar
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.testing.new_entries import new_file, new_folder, new_link, new_whiteout
from imagebuild.testing.raw_tar import blob

Answer = TypeVar("Answer")
LETTERS = string.ascii_letters + string.digits + "-_+ é\N{SNOWMAN}\N{GRINNING FACE}"
NAME = st.one_of(st.text(LETTERS, min_size=1, max_size=8), st.text("ab", min_size=90, max_size=130))
PATH = st.lists(NAME, min_size=1, max_size=4).map("/".join)
TIMES = st.one_of(st.integers(0, 1 << 31), st.integers(1 << 33, 1 << 35))
DATA = st.one_of(st.binary(max_size=40), st.integers(500, 70_000).map(lambda size: bytes(range(256)) * (size // 256)))
XATTR = st.dictionaries(st.sampled_from(["user.a", "security.capability"]), st.text("ab=\n é", max_size=9), max_size=2)


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    head = tarfile.TarInfo(draw(PATH))
    head.type = draw(
        st.sampled_from([tarfile.REGTYPE] * 3 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
    )
    head.mode = draw(st.integers(0, 0o7777))
    head.uid, head.gid = draw(st.integers(0, 1 << 32 - 2)), draw(st.integers(0, 70_000))
    head.mtime = draw(TIMES)
    data = draw(DATA) if head.isreg() else b""
    head.size = len(data)
    if head.issym():
        head.linkname = draw(PATH)
    if head.ischr():
        head.devmajor, head.devminor = draw(st.integers(1, 4095)), draw(st.integers(0, 4095))
    head.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in draw(XATTR).items()}
    return head, data


def attempt(action: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """What the action gives, or the code of its refusal."""
    try:
        return action(), ""
    except ImagebuildError as error:
        return None, error.code


class Pieces:
    """Gives the data in pieces of the sizes drawn, over and over."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._stream = io.BytesIO(data)
        self._sizes = sizes
        self._turn = 0

    def read(self, size: int = -1, /) -> bytes:
        self._turn += 1
        return self._stream.read(min(size, self._sizes[self._turn % len(self._sizes)]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(members(), max_size=6, unique_by=lambda member: member[0].name),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.booleans(),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=3),
)
def test_the_reader_agrees_with_tarfile(
    drawn: list[tuple[tarfile.TarInfo, bytes]], tar_format: int, compressed: bool, sizes: list[int]
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as archive:
        for head, data in drawn:
            archive.addfile(head, io.BytesIO(data))
    tar = out.getvalue()
    stored, descriptor = blob(tar, compressed=compressed)
    sizes = [max(size, 2000) for size in sizes] if len(tar) > 50_000 else sizes
    facts, code = attempt(lambda: read_layer(Pieces(stored, sizes), descriptor))
    if facts is None:
        assert code == "base.entry-below-link"
        return
    assert (facts.diff_id, facts.tar_size) == (Digest.of(tar), len(tar))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        read = archive.getmembers()
        assert len(read) == len(facts.entries)
        assert list(facts.entries) == sorted((member.name for member in read), key=bytes_of)
        for member in read:
            entry = facts.entries[member.name]
            assert (entry.mode, entry.uid, entry.gid, entry.mtime) == (
                member.mode,
                member.uid,
                member.gid,
                member.mtime,
            )
            if member.isreg():
                assert (entry.kind, entry.size, entry.offset) == (Kind.FILE, member.size, member.offset_data)
                stream = archive.extractfile(member)
                assert stream is not None
                assert entry.sha256 == Digest.of(stream.read())
            elif member.issym():
                assert (entry.kind, entry.link) == (Kind.SYMLINK, member.linkname)
            elif member.ischr():
                assert (entry.kind, entry.device) == (Kind.CHARACTER, (member.devmajor, member.devminor))
            else:
                assert entry.kind is (Kind.DIRECTORY if member.isdir() else Kind.FIFO)
            if tar_format == tarfile.PAX_FORMAT:
                prefix = "SCHILY.xattr."
                wanted = {k[len(prefix) :]: v for k, v in member.pax_headers.items() if k.startswith(prefix)}
                assert {name: value.decode() for name, value in entry.xattrs} == wanted
    assert decode_facts(encode_facts(facts)) == facts


@st.composite
def new_entries(draw: st.DrawFn) -> NewEntry:
    path, mtime = draw(PATH), draw(st.integers(315_532_800, 1 << 35))
    kind = draw(st.sampled_from(list(NewKind)))
    if kind is NewKind.WHITEOUT:
        return new_whiteout(path, mtime)
    if kind is NewKind.SYMLINK:
        return new_link(path, draw(PATH), mtime)
    mode, uid, gid = draw(st.integers(0, 0o7777)), draw(st.integers(0, (1 << 32) - 2)), draw(st.integers(0, 1 << 22))
    if kind is NewKind.DIRECTORY:
        return new_folder(path, mode, uid, gid, mtime)
    return new_file(path, draw(DATA), mode, uid, gid, mtime, {k: v.encode() for k, v in draw(XATTR).items()})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(new_entries(), max_size=8), st.randoms(use_true_random=False))
def test_what_is_written_comes_back(entries: list[NewEntry], order: object) -> None:
    out = io.BytesIO()
    _, code = attempt(lambda: write_tar(entries, out))
    if code:
        assert code in ("layer.duplicate-path", "layer.whiteout-and-entry", "layer.parent-not-a-folder")
        return
    tar = out.getvalue()
    shuffled = list(entries)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = io.BytesIO()
    write_tar(shuffled, again)
    assert again.getvalue() == tar
    assert tar_size(entries) == len(tar)
    stored, descriptor = blob(tar)
    facts = read_layer(io.BytesIO(stored), descriptor)
    assert facts.notes == ()
    assert facts.whiteouts == {new.path for new in entries if new.kind is NewKind.WHITEOUT}
    for new in entries:
        if new.kind is NewKind.WHITEOUT:
            continue
        entry = facts.entries[new.path]
        assert (entry.uid, entry.gid, entry.mtime, entry.link) == (new.uid, new.gid, new.mtime, new.link)
        assert dict(entry.xattrs) == dict(new.xattrs)
        if new.data is not None:
            assert (entry.size, entry.sha256) == (new.data.size, new.data.sha256)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000), st.sampled_from([mt.OCI_LAYER, mt.OCI_LAYER_GZIP, mt.OCI_LAYER_ZSTD]), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, media_type: str, wrap: bool) -> None:
    stored = gzip.compress(data, 1, mtime=0) if wrap and media_type == mt.OCI_LAYER_GZIP else data
    descriptor = Descriptor(media_type, Digest.of(stored), len(stored))
    facts, code = attempt(lambda: read_layer(io.BytesIO(stored), descriptor))
    assert code.startswith("base.") if facts is None else facts.digest == descriptor.digest


@given(st.text("./wh-opqx", max_size=20))
def test_a_name_is_a_whiteout_or_an_entry_never_both(name: str) -> None:
    path = "/".join(part for part in name.split("/") if part not in ("", ".", ".."))
    try:
        hidden = hidden_by(path)
    except TarFault:
        hidden = None
        event("refused")
        refused = True
    else:
        refused = False
    last = path.rpartition("/")[2]
    assert refused or (hidden is not None) == last.startswith(".wh.")
    assert not refused or ".wh." in path
    if hidden is not None and not hidden[1]:
        assert hidden[0].rpartition("/")[2] == last[4:]
