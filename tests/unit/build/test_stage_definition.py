"""A stage's identity and the clean copy that BuildKit gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build.stage_definition import (
    StageDefinition,
    export_stage,
    lay_out,
    read_definition,
    wanted_stage,
)
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import StageChange

AMD64, ARM64 = Platform.parse("linux/amd64"), Platform.parse("linux/arm64")
PIN = Digest.of(b"a base")
TEXT = f"ARG W=1\nFROM debian@{PIN} AS b\nCOPY a.c sub /src/\nRUN make\nFROM scratch\nCOPY --from=b /x /x\n"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    folder = tmp_path / "space" / "Dockerfiles"
    (folder / "ext" / "sub").mkdir(parents=True)
    (folder / "ext.Dockerfile").write_text(TEXT)
    (folder / "ext" / "a.c").write_text("int a;\n")
    (folder / "ext" / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "ext" / "sub" / "run.sh").chmod(0o755)
    return tmp_path / "space"


def read(space: Path, platform: Platform = AMD64, **more: Any) -> StageDefinition:
    change = StageChange("Dockerfiles/ext.Dockerfile", {"/x": "root/x"}, **more)
    return read_definition(space, change, platform)


def test_the_folder_of_the_same_name_is_the_context(space: Path) -> None:
    found = read(space)
    assert found.context == space / "Dockerfiles" / "ext"
    assert [(one.path, one.kind) for one in found.entries] == [
        ("a.c", "file"),
        ("sub", "folder"),
        ("sub/run.sh", "executable"),
    ]
    assert [str(base.reference) for base in found.bases] == [f"docker.io/library/debian@{PIN}"]


def test_without_one_it_is_the_dockerfile_s_own_without_other_stages(space: Path) -> None:
    folder = space / "Dockerfiles"
    (folder / "plain.Dockerfile").write_text(TEXT)
    (folder / "Dockerfile").write_text("FROM x\n")
    (folder / "a.c").write_text("int b;\n")
    change = StageChange("Dockerfiles/plain.Dockerfile", {"/x": "root/x"})
    found = read_definition(space, change, AMD64)
    assert [one.path for one in found.entries] == ["a.c"]


def test_the_identity_follows_content_alone(space: Path) -> None:
    first = read(space).id
    os.utime(space / "Dockerfiles" / "ext" / "a.c", (1, 1))
    (space / "Dockerfiles" / "ext" / "a.c").chmod(0o600)
    (space / "Dockerfiles" / "ext" / "sub").chmod(0o700)
    assert read(space).id == first
    assert read(space, reproducible=True).id == first


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "ext.Dockerfile").write_text(TEXT + "# more\n"),
        lambda folder: (folder / "ext" / "a.c").write_text("int b;\n"),
        lambda folder: (folder / "ext" / "a.c").chmod(0o755),
        lambda folder: (folder / "ext" / "a.c").rename(folder / "ext" / "b.c"),
        lambda folder: (folder / "ext" / "empty").mkdir(),
        lambda folder: (folder / "ext" / "link").symlink_to("a.c"),
    ],
)
def test_the_identity_changes_with_everything_that_goes_in(space: Path, change: Any) -> None:
    before = read(space).id
    change(space / "Dockerfiles")
    assert read(space).id != before


def test_platform_arguments_network_and_outputs_are_of_the_identity(space: Path) -> None:
    ids = {
        read(space).id,
        read(space, ARM64).id,
        read(space, args={"W": "2"}).id,
        read(space, network="default").id,
        read(space, args={"SOURCE_DATE_EPOCH": "1"}).id,
        read_definition(space, StageChange("Dockerfiles/ext.Dockerfile", {"/y": "root/x"}), AMD64).id,
    }
    assert len(ids) == 6
    moved = StageChange("Dockerfiles/ext.Dockerfile", {"/x": "root/elsewhere"})
    assert read_definition(space, moved, AMD64).id in ids


def test_the_epoch_is_no_target_s_time_unless_the_overlay_says_one(space: Path) -> None:
    assert read(space).arguments == {"SOURCE_DATE_EPOCH": "315532800"}
    assert read(space, args={"SOURCE_DATE_EPOCH": "7", "W": "2"}).arguments == {"SOURCE_DATE_EPOCH": "7", "W": "2"}


def test_what_leads_out_of_the_context_is_refused(space: Path) -> None:
    for text in ("/etc/passwd", "../ext.Dockerfile", "sub/../../x"):
        link = space / "Dockerfiles" / "ext" / "link"
        link.symlink_to(text)
        with pytest.raises(InputError, match="link leads out") as caught:
            read(space)
        assert caught.value.code == "stage.bad-context"
        link.unlink()
    (space / "Dockerfiles" / "ext" / "sub" / "up").symlink_to("../a.c")
    assert read(space).entries[-1].content == "../a.c"
    os.mkfifo(space / "Dockerfiles" / "ext" / "pipe")
    with pytest.raises(InputError, match="neither file"):
        read(space)


def test_no_dockerfile(space: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_definition(space, StageChange("Dockerfiles/none.Dockerfile", {"/x": "root/x"}), AMD64)
    assert caught.value.code == "stage.no-dockerfile"


def test_the_clean_copy(space: Path, tmp_path: Path) -> None:
    (space / "Dockerfiles" / "ext" / "link").symlink_to("a.c")
    (space / "Dockerfiles" / "ext" / "a.c").chmod(0o600)
    os.utime(space / "Dockerfiles" / "ext" / "a.c", (99, 99))
    found = read(space)
    (tmp_path / "out").mkdir()
    context, dockerfile = lay_out(found, tmp_path / "out")
    assert (context / "a.c").read_text() == "int a;\n"
    assert (context / "a.c").stat().st_mode & 0o7777 == 0o644
    assert (context / "sub" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (context / "sub").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(context / "link") == "a.c"
    assert {path.lstat().st_mtime for path in [context, *context.rglob("*")]} == {315532800.0}
    assert dockerfile.read_text().count("ARG SOURCE_DATE_EPOCH") == 2
    assert dockerfile.parent == context.parent


def test_another_content_has_another_path(space: Path, tmp_path: Path) -> None:
    """BuildKit remembers a folder by its path, and a file in it by size and time."""
    paths = []
    for number, text in enumerate(("int a;\n", "int b;\n")):
        (space / "Dockerfiles" / "ext" / "a.c").write_text(text)
        (tmp_path / str(number)).mkdir()
        context, dockerfile = lay_out(read(space), tmp_path / str(number))
        paths += [context.name, dockerfile.name]
    (space / "Dockerfiles" / "ext.Dockerfile").write_text(TEXT.replace("make", "fake"))
    (tmp_path / "2").mkdir()
    paths += [path.name for path in lay_out(read(space), tmp_path / "2")]
    assert len(set(paths)) == 6
    assert all(read(space).id.hex in name for name in paths[-2:])


def test_a_file_that_changes_meanwhile_is_noticed(space: Path, tmp_path: Path) -> None:
    found = read(space)
    (space / "Dockerfiles" / "ext" / "a.c").write_text("int c;\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(RefusedError) as caught:
        lay_out(found, tmp_path / "out")
    assert caught.value.code == "stage.context-changed"


def test_what_the_lock_keeps_of_a_stage(space: Path) -> None:
    change = StageChange("Dockerfiles/ext.Dockerfile", {"/x": "root/x"}, network="default", reproducible=True)
    wanted = wanted_stage(space, change, [AMD64, ARM64])
    assert wanted["network"] == "default"
    assert wanted["reproducible"] is True
    assert wanted["bases"] == [f"docker.io/library/debian@{PIN}"]
    assert wanted["definitions"] == {
        str(platform): str(read_definition(space, change, platform).id) for platform in (AMD64, ARM64)
    }
    assert wanted["out"] == {"/x": "root/x"}


@pytest.mark.parametrize("own", [True, False])
def test_an_exported_stage_is_the_same_stage(space: Path, tmp_path: Path, own: bool) -> None:
    folder = space / "Dockerfiles"
    (folder / "ext" / "link").symlink_to("a.c")
    change = StageChange("Dockerfiles/ext.Dockerfile", {"/x": "root/x"})
    if own:
        change = StageChange("Dockerfiles/plain.Dockerfile", {"/x": "root/x"})
        (folder / "plain.Dockerfile").write_text(TEXT)
        (folder / "a.c").write_text("int b;\n")
    for _ in range(2):
        export_stage(space, change, tmp_path / "copy")
    assert read_definition(tmp_path / "copy", change, AMD64).id == read_definition(space, change, AMD64).id
    assert (tmp_path / "copy" / "Dockerfiles" / "ext.Dockerfile").exists() is not own
