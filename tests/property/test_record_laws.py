"""Laws of RECORD editing, against an obvious model over Python's csv module."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.overlay.record import RecordEdits, edit_record
from imagebuild.overlay.record_rows import record_rows

SITE = "usr/lib/python3/site-packages"
NAMES = st.sampled_from(["a", "b.py", 'q"u,o.json', "ü", "sp ace", "m.cpython-312.pyc", "'", ",", '""'])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
CONTENTS = st.binary(max_size=20)


class Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self._data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def claim(data: bytes, algorithm: str = "sha256") -> list[str]:
    digest = hashlib.new(algorithm, data).digest()
    return [f"{algorithm}={base64.urlsafe_b64encode(digest).decode().rstrip('=')}", str(len(data))]


@st.composite
def records(draw: st.DrawFn) -> tuple[list[list[str]], bytes]:
    """Rows, and the bytes that csv writes for them."""
    rows = []
    for path in draw(st.lists(PATHS, unique=True, max_size=12)):
        algorithm = draw(st.sampled_from(["sha256", "sha256", "sha512", ""]))
        rows.append([path, *(claim(draw(CONTENTS), algorithm) if algorithm else ["", ""])])
    text = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    csv.writer(text, lineterminator=draw(st.sampled_from(["\n", "\r\n"])), quoting=quoting).writerows(rows)
    data = text.getvalue().encode()
    if draw(st.booleans()):
        data = data.removesuffix(b"\n").removesuffix(b"\r")
    return rows, data


def parsed(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def insert(rows: list[list[str]], path: str, row: list[str]) -> None:
    """After the last row of the folder, else of the nearest folder above that holds anything, else at the end."""
    folder = path.rpartition("/")[0]
    fits = [n for n, other in enumerate(rows) if other[0].rpartition("/")[0] == folder]
    while not fits and folder:
        fits = [n for n, other in enumerate(rows) if other[0].startswith(folder + "/")]
        folder = folder.rpartition("/")[0]
    rows.insert(fits[-1] + 1 if fits else len(rows), row)


def model(
    rows: list[list[str]], written: Mapping[str, bytes], removed: set[str], added: Mapping[str, bytes]
) -> list[list[str]]:
    out = []
    for path, hashed, size in rows:
        parts = path.split("/")
        gone = any("/".join(parts[: n + 1]) in removed for n in range(len(parts)))
        if gone and path not in written and path not in added:
            continue
        new = {**added, **written}.get(path)
        changes = new is not None and hashed
        out.append([path, *(claim(new, hashed.partition("=")[0]) if changes and new is not None else [hashed, size])])
    known = {row[0] for row in out}
    for path in sorted(added, key=str.encode):
        if path not in known and not path.endswith(".pyc"):
            insert(out, path, [path, *claim(added[path])])
    return out


@settings(max_examples=80, deadline=None)
@given(records(), st.data())
def test_an_edit_is_the_models_edit_and_moves_no_other_byte(
    record: tuple[list[list[str]], bytes], data: st.DataObject
) -> None:
    rows, raw = record
    some = st.sampled_from([row[0] for row in rows]) | PATHS if rows else PATHS
    written = data.draw(st.dictionaries(some, CONTENTS, max_size=4), "written")
    removed = data.draw(st.sets(some, max_size=3), "removed")
    added = data.draw(st.dictionaries(PATHS, CONTENTS, max_size=3), "added")
    new = edit_record(
        raw,
        RecordEdits(
            {f"{SITE}/{path}": Bytes(item) for path, item in written.items()},
            frozenset(f"{SITE}/{path}" for path in removed),
            {f"{SITE}/{path}": Bytes(item) for path, item in added.items()},
        ),
        SITE,
    )
    assert parsed(new) == model(rows, written, removed, added)
    before = {row.path: row.raw for row in record_rows(raw)}
    for row in record_rows(new):
        if row.path in before and row.path not in written and row.path not in added:
            assert row.raw == before[row.path]
    endings = {row.ending for row in record_rows(raw) if row.ending}
    assert {row.ending for row in record_rows(new)} <= endings | {b"", b"\n"}
    assert not written or edit_record(new, RecordEdits(), SITE) == new


@given(st.text(alphabet='ab,"\n', max_size=30))
def test_rows_are_those_of_pythons_csv_or_refused(text: str) -> None:
    raw = text.encode()
    try:
        rows = list(record_rows(raw))
    except RefusedError:
        return
    assert b"".join(row.raw + row.ending for row in rows) == raw
    expected = [[*row, "", "", ""][:3] for row in csv.reader(io.StringIO(text, newline=""))]
    assert [[row.path, row.hash, row.size] for row in rows] == expected


@given(st.binary(max_size=60))
def test_bytes_without_quotes_are_always_cut_without_loss(raw: bytes) -> None:
    raw = raw.replace(b'"', b"")
    assert b"".join(row.raw + row.ending for row in record_rows(raw)) == raw
