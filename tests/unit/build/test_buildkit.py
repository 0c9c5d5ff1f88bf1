"""Which program builds a stage, and with which words."""

from __future__ import annotations

import os
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from imagebuild.build.buildkit import Builder, StageBuild, find_builder
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.testing.docker_double import DockerDouble


def path_of(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def wanted(folder: Path, network: str = "none", text: str = "int a;\n") -> StageBuild:
    (folder / "context").mkdir()
    (folder / "context" / "a.c").write_text(text)
    (folder / "x.Dockerfile").write_text("FROM scratch\n")
    arm64 = Platform.parse("linux/arm64")
    return StageBuild(folder / "context", folder / "x.Dockerfile", {"A": "1"}, network, arm64, folder / "t.tar")


def build(builder: Builder, stage: StageBuild) -> list[str]:
    lines: list[str] = []
    builder.build(stage, lines.append)
    return lines


def test_the_engine_s_own_buildkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = DockerDouble(tmp_path / "bin")
    path_of(monkeypatch, tmp_path / "bin")
    builder = find_builder()
    assert builder.name == "docker engine 20.10.24"
    stage = wanted(tmp_path)
    assert build(builder, stage) == ["#8 exporting to client"]
    ((words, kit),) = docker.builds()
    assert kit == "1"
    assert words == [
        *("build", "--progress", "plain", "--no-cache", "--file", str(stage.dockerfile)),
        *("--build-arg", "A=1", "--network", "none", "--platform", "linux/arm64"),
        *("--output", f"type=tar,dest={stage.tar}", str(stage.context)),
    ]
    with tarfile.open(stage.tar) as archive:
        assert archive.getnames() == ["out/m.so", "out/args"]


def test_buildx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = DockerDouble(tmp_path / "bin", version="28.2.2", buildx=True, server="28.2.2")
    path_of(monkeypatch, tmp_path / "bin")
    builder = find_builder()
    assert builder.name == "buildx 0.29.1, docker engine 28.2.2"
    stage = wanted(tmp_path)
    assert build(builder, stage) == ["#8 exporting to client"]
    ((words, kit),) = docker.builds()
    assert words[:2] == ["buildx", "build"]
    pairs = list(pairwise(words))
    for pair in (
        ("--network", "none"),
        ("--build-arg", "A=1"),
        ("--platform", "linux/arm64"),
        ("--output", f"type=tar,dest={stage.tar}"),
        ("--file", str(stage.dockerfile)),
    ):
        assert pair in pairs
    assert "--no-cache" in words
    assert words[-1] == str(stage.context)
    assert kit is None


@pytest.mark.parametrize("buildx", [True, False])
def test_a_network_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buildx: bool) -> None:
    docker = DockerDouble(tmp_path / "bin", buildx=buildx)
    path_of(monkeypatch, tmp_path / "bin")
    build(find_builder(), wanted(tmp_path, "default"))
    assert "--network" not in docker.builds()[0][0]


def test_the_first_client_that_can_build_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = DockerDouble(tmp_path / "new", version="28.2.2")
    old = DockerDouble(tmp_path / "old")
    with_buildx = DockerDouble(tmp_path / "buildx", version="28.2.2", buildx=True)
    path_of(monkeypatch, new.folder, old.folder)
    assert find_builder().name == "docker engine 20.10.24"
    path_of(monkeypatch, new.folder, old.folder, with_buildx.folder)
    assert find_builder().name.startswith("buildx")


def test_what_each_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = DockerDouble(tmp_path / "new", version="28.2.2")
    path_of(monkeypatch, new.folder)
    with pytest.raises(UnavailableError) as caught:
        find_builder()
    assert caught.value.code == "stage.no-builder"
    assert caught.value.found == f"{new.folder}/docker has no buildx"
    silent = DockerDouble(tmp_path / "silent", server=None)
    silent_buildx = DockerDouble(tmp_path / "silent-buildx", server=None, buildx=True)
    path_of(monkeypatch, silent.folder, silent_buildx.folder)
    with pytest.raises(UnavailableError) as caught:
        find_builder()
    assert (caught.value.found or "").count("Cannot connect to the Docker daemon") == 2
    path_of(monkeypatch, tmp_path / "empty")
    with pytest.raises(UnavailableError) as caught:
        find_builder()
    assert caught.value.found == "no docker in PATH"


@pytest.mark.parametrize("buildx", [True, False])
def test_a_step_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buildx: bool) -> None:
    DockerDouble(tmp_path / "bin", buildx=buildx)
    path_of(monkeypatch, tmp_path / "bin")
    with pytest.raises(RefusedError) as caught:
        build(find_builder(), wanted(tmp_path, text="#error\n"))
    assert caught.value.code == "stage.build-failed"
    assert "expected expression" in (caught.value.found or "")


def test_an_engine_that_goes_away_is_could_not_find_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = DockerDouble(tmp_path / "bin")
    path_of(monkeypatch, tmp_path / "bin")
    builder = find_builder()
    text = (docker.folder / "docker").read_text()
    away = text.replace(
        'assert words[0] == "build"', 'sys.stderr.write("Cannot connect to the Docker daemon\\n"); sys.exit(1)'
    )
    (docker.folder / "docker").write_text(away)
    with pytest.raises(UnavailableError) as caught:
        build(builder, wanted(tmp_path))
    assert caught.value.code == "stage.build-failed"


def test_an_export_that_never_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = DockerDouble(tmp_path / "bin")
    path_of(monkeypatch, tmp_path / "bin")
    text = (docker.folder / "docker").read_text()
    (docker.folder / "docker").write_text(text.replace('assert words[0] == "build"', "sys.exit(0)"))
    with pytest.raises(UnavailableError, match="exported nothing"):
        build(find_builder(), wanted(tmp_path))
