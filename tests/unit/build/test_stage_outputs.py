"""Outputs out of an exported tar: files, nothing else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.events import Emitter
from imagebuild.build.stage_outputs import StageOutput, take_outputs
from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.errors import InputError, RefusedError


@pytest.fixture
def store(tmp_path: Path) -> ArtefactStore:
    return ArtefactStore(ContentStore(tmp_path / "store"), Emitter())


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.linkname, info.uid, info.mtime = kind, len(data), mode, link, 1000, 99
    return info


def tar_of(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(folder / "t", "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return folder / "t"


def take(store: ArtefactStore, tar: Path, wanted: Sequence[str] = ("/out/a",)) -> tuple[StageOutput, ...]:
    return take_outputs(tar, wanted, store, "the stage")


def test_files_are_kept_by_digest_and_described(store: ArtefactStore, tmp_path: Path) -> None:
    tar = tar_of(
        tmp_path,
        (member("out/", kind=tarfile.DIRTYPE), b""),
        (member("./out/b", b"bb", mode=0o755), b"bb"),
        (member("out/a", b"a", mode=0o6640), b"a"),
        (member("other", b"o"), b"o"),
        (member("out/link", kind=tarfile.SYMTYPE, link="/etc/passwd"), b""),
    )
    found = take(store, tar, ("/out/b", "/out/a"))
    assert found == (
        StageOutput("/out/a", Digest.of(b"a"), 1, False),
        StageOutput("/out/b", Digest.of(b"bb"), 2, True),
    )
    kept = store.get(Digest.of(b"bb"))
    assert kept is not None
    assert kept.read() == b"bb"
    assert store.get(Digest.of(b"o")) is None
    assert kept.path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("info", "word"),
    [
        (member("out/a", kind=tarfile.SYMTYPE, link="/etc/passwd"), "symbolic link to /etc/passwd"),
        (member("out/a", kind=tarfile.LNKTYPE, link="out/b"), "hard link to out/b"),
        (member("out/a", kind=tarfile.DIRTYPE), "folder"),
        (member("out/a", kind=tarfile.FIFOTYPE), "device or pipe"),
        (member("out/a", kind=tarfile.CHRTYPE), "device or pipe"),
    ],
)
def test_only_regular_files(store: ArtefactStore, tmp_path: Path, info: tarfile.TarInfo, word: str) -> None:
    with pytest.raises(RefusedError) as caught:
        take(store, tar_of(tmp_path, (member("out/b", b"b"), b"b"), (info, b"")))
    assert caught.value.code == "stage.output-not-a-file"
    assert word in (caught.value.found or "")


@pytest.mark.parametrize("name", ["../out/a", "/out/a", "out/../out/a", "x/../../y"])
def test_names_that_lead_out(store: ArtefactStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        take(store, tar_of(tmp_path, (member(name, b"a"), b"a"), (member("out/a", b"a"), b"a")))
    assert caught.value.code == "stage.bad-tar"


def test_one_name_twice(store: ArtefactStore, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="twice"):
        take(store, tar_of(tmp_path, (member("out/a", b"a"), b"a"), (member("./out//a", b"b"), b"b")))


def test_what_is_missing_is_named_beside_what_is_there(store: ArtefactStore, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        take(store, tar_of(tmp_path, (member("out/module.so", b"a"), b"a")))
    assert caught.value.code == "stage.output-missing"
    assert caught.value.found == "/out/module.so"
    with pytest.raises(RefusedError) as caught:
        take(store, tar_of(tmp_path))
    assert caught.value.found == "no file at all"


@pytest.mark.parametrize("cut", [0, 100, 512 + 3, 512 + 100])
def test_a_damaged_tar(store: ArtefactStore, tmp_path: Path, cut: int) -> None:
    tar = tar_of(tmp_path, (member("out/a", b"a" * 3000), b"a" * 3000))
    tar.write_bytes(tar.read_bytes()[:cut])
    with pytest.raises(RefusedError) as caught:
        take(store, tar)
    assert caught.value.code in ("stage.bad-tar", "stage.output-missing")
    assert list(store.store.entries()) == []


def test_the_description_and_back() -> None:
    output = StageOutput("/out/a", Digest.of(b"a"), 1, True)
    assert StageOutput.from_json(output.to_json()) == output


@pytest.mark.parametrize(
    "change",
    [
        {"path": "out/a"},
        {"path": 1},
        {"size": -1},
        {"size": True},
        {"size": 1 << 40},
        {"executable": 1},
        {"sha256": None},
    ],
)
def test_descriptions_of_another_form(change: dict[str, object]) -> None:
    value = {**StageOutput("/out/a", Digest.of(b"a"), 1, True).to_json(), **change}
    with pytest.raises(InputError):
        StageOutput.from_json(value)
