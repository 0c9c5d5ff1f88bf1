"""The RECORD of a published wheel: thousands of rows, hundreds of them quoted."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.record import record_edits
from imagebuild.overlay.record_rows import record_rows
from imagebuild.overlay.roots import find_root, read_layout
from imagebuild.testing.python_tree import python_tree

pytestmark = pytest.mark.integration

SITE = "usr/local/lib/python3.12/dist-packages"
WHEEL = "IMAGEBUILD_TEST_WHEEL"


class Vllm:
    python = "vllm"
    path = None
    purelib = False


class Bytes:
    size = 3
    sha256 = Digest.of(b"new")

    def open(self) -> io.BytesIO:
        return io.BytesIO(b"new")


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    """Every path of the wheel; bytes of the metadata only."""
    path = os.environ.get(WHEEL)
    if not path or not Path(path).is_file():
        pytest.skip(f"{WHEEL} names no vllm wheel")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) if ".dist-info/" in name else b"" for name in archive.namelist()}


def parsed(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def test_rows_are_those_of_csv(members: dict[str, bytes]) -> None:
    record = next(data for name, data in members.items() if name.endswith("/RECORD"))
    rows = list(record_rows(record))
    assert b"".join(row.raw + row.ending for row in rows) == record
    assert [[row.path, row.hash, row.size] for row in rows] == parsed(record)
    assert sum(b'"' in row.raw for row in rows) > 100


def test_two_changed_files_are_three_changed_lines(members: dict[str, bytes]) -> None:
    view, contents = python_tree({f"{SITE}/{name}": data for name, data in members.items()})
    layout = read_layout(view, contents, RootConfig())
    root = find_root(Vllm(), view, contents, RootConfig(), name="vllm", layout=layout)
    assert root.folder == f"{SITE}/vllm"
    assert root.distribution is not None
    plan = record_edits(
        layout.distributions,
        written={f"{root.folder}/envs.py": Bytes()},
        removed=[],
        added={f"{root.folder}/models/added_here.py": Bytes()},
    )
    (change,) = plan.changes
    before = (contents.read(change.path) or b"").split(b"\n")
    after = change.apply(b"\n".join(before)).split(b"\n")
    assert [line.partition(b",")[0] for line in after if line not in set(before)] == [
        b"vllm/envs.py",
        b"vllm/models/added_here.py",
        root.distribution.info.rpartition("/")[2].encode() + b"/imagebuild.json",
    ]
    same = set(after)
    assert [line for line in before if line not in same] == [
        line for line in before if line.startswith(b"vllm/envs.py,")
    ]
