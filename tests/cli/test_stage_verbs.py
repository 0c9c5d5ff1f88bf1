"""Whole verbs on overlays with stages, with a `docker` that compiles nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuild.attest.predicates.provenance import build_provenance
from imagebuild.build.stage import StageMaker
from imagebuild.content.digest import Digest
from imagebuild.target.lock import load_lock
from imagebuild.testing.docker_double import DockerDouble
from imagebuild.testing.small_engine import SITE, SmallWorkspace

PIN = Digest.of(b"base")
DOCKERFILE = f"""\
ARG WORD=none
FROM debian@{PIN} AS build
COPY fast.c /src/
RUN cc -DWORD=${{WORD}} /src/fast.c
FROM scratch
COPY --from=build /out /out
"""
BOTH = pytest.mark.parametrize("bench", [("linux/amd64", "linux/arm64")], indirect=True, ids=["both"])
STAGE = (
    "  - stage: {dockerfile: Dockerfiles/fast.Dockerfile, args: {WORD: w}, "
    "out: {/out/m.so: engine/_fast.so, /out/args: engine/data/table.json}, reproducible: true}\n"
)
LOOSE = STAGE.replace("reproducible: true", "reproducible: false")


@dataclass
class Bench:
    space: SmallWorkspace
    docker: DockerDouble
    run: Callable[..., Any]
    patch: pytest.MonkeyPatch

    def write(self, changes: str = STAGE, guards: str = "") -> None:
        self.space.write_overlay(changes=changes, files={}, guards=guards)

    def source(self, text: str) -> None:
        (self.space.root / "Dockerfiles" / "fast" / "fast.c").write_text(text)

    def overlay(self) -> str:
        return (self.space.root / "overlays" / "tune" / "overlay.yaml").read_text()

    def ok(self, *words: str) -> dict[str, Any]:
        ran = self.run(*words, "--json")
        assert ran.code == 0, ran.out + ran.err
        document: dict[str, Any] = ran.document
        return document

    def no(self, *words: str) -> tuple[int, str]:
        ran = self.run(*words, "--json")
        return ran.code, ran.document["code"]

    def elsewhere(self) -> None:
        """Another machine: an empty cache, no Docker."""
        shutil.rmtree(self.space.cache, ignore_errors=True)
        self.patch.setenv("PATH", str(self.space.root / "nowhere"))

    def item(self, layer: str, path: str) -> dict[str, Any]:
        items = self.space.lock()["inputs"]["platforms"]["linux/amd64"][layer]
        found: dict[str, Any] = next(item for item in items if item["path"] == f"/{SITE}/{path}")
        return found


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    in_workspace: Callable[..., SmallWorkspace],
    verb: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    monkeypatch.setattr(StageMaker, "_another_second", lambda self, started: None)
    space = in_workspace(platforms=getattr(request, "param", ("linux/amd64",)))
    docker = DockerDouble(space.root / "bin")
    monkeypatch.setenv("PATH", str(docker.folder))
    made = Bench(space, docker, verb, monkeypatch)
    (space.root / "Dockerfiles" / "fast").mkdir(parents=True)
    (space.root / "Dockerfiles" / "fast.Dockerfile").write_text(DOCKERFILE)
    made.source("int fast;\n")
    made.write()
    return made


@BOTH
def test_from_lock_to_image(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    assert len(bench.docker.builds()) == 4
    so = bench.item("artefacts", "engine/_fast.so")
    assert so["postimage"] == str(Digest.of(b"int fast;\n"))
    assert so["mode"] == "0755"
    # a replaced file keeps mode and owner of the base's
    table = bench.item("artefacts", "engine/data/table.json")
    assert (table["mode"], table["uid"]) == ("0640", 1000)
    made = bench.ok("build", "tuned")
    assert [[layer["role"] for layer in p["layers"]] for p in made["platforms"]] == [["artefacts", "changes"]] * 2
    assert len(bench.docker.builds()) == 4
    verified = bench.ok("verify", "oci:build/tuned", "--target", "tuned")
    assert verified["passed"]
    checked = bench.ok("overlay", "check", "tune")
    assert checked["passed"]
    assert "engine/_fast.so" in json.dumps(bench.ok("plan", "tuned"))


@BOTH
def test_the_lock_says_what_went_in_and_how_it_was_shown(bench: Bench) -> None:
    bench.write(STAGE.replace("reproducible", "network: default, reproducible"))
    bench.ok("lock", "tuned")
    lock = bench.space.lock()
    (stage,) = lock["inputs"]["wanted"]["overlays"][0]["changes"]
    assert stage["network"] == "default"
    assert stage["bases"] == [f"docker.io/library/debian@{PIN}"]
    assert [note["proof"] for note in lock["notes"]["stages"]] == ["two-builds"] * 2
    assert {note["platform"] for note in lock["notes"]["stages"]} == {"linux/amd64", "linux/arm64"}
    assert all(note["network"] == "default" for note in lock["notes"]["stages"])


def test_provenance_names_the_stage_its_network_and_its_images(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    lock = load_lock(bench.space.lock_path())
    assert lock is not None
    (platform,) = lock.inputs.platforms
    found = build_provenance(lock.inputs, platform)["buildDefinition"]["resolvedDependencies"]
    stage, image = (item for item in found if item["name"].startswith("tune/stage/0"))
    assert stage["annotations"] == {
        "dockerfile": "Dockerfiles/fast.Dockerfile",
        "network": "none",
        "reproducible": "true",
    }
    definition = lock.inputs.wanted["overlays"][0]["changes"][0]["definitions"]["linux/amd64"]
    assert stage["digest"] == {"sha256": definition.removeprefix("sha256:")}
    assert image["digest"] == {"sha256": PIN.hex}
    assert image["uri"] == f"pkg:oci/debian@sha256%3A{PIN.hex}?repository_url=docker.io/library/debian"


@BOTH
def test_guards_name_every_output_and_hold_it(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    assert str(Digest.of(b"int fast;\n")) in bench.overlay()
    bench.source("int other;\n")
    assert bench.no("build", "tuned") == (1, "lock.stale")
    assert bench.no("lock", "tuned") == (1, "overlay.postimage-mismatch")
    bench.ok("overlay", "stage", "tune", "--platform", "amd64", "--platform", "arm64")
    assert str(Digest.of(b"int other;\n")) in bench.overlay()
    bench.ok("lock", "tuned")
    bench.ok("build", "tuned")


def test_a_second_lock_builds_nothing(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    count = len(bench.docker.builds())
    bench.ok("lock", "tuned")
    assert len(bench.docker.builds()) == count


def test_outputs_that_differ_are_refused_and_nothing_is_stored(bench: Bench) -> None:
    (bench.space.root / "Dockerfiles" / "fast" / "random").write_text("")
    bench.write(STAGE.replace("/out/args: engine/data/table.json", "/out/random: engine/random"))
    assert bench.no("lock", "tuned") == (1, "stage.not-reproducible")
    assert not bench.space.lock_path().exists()


def test_a_change_above_a_stage_s_output(bench: Bench) -> None:
    """A stage may leave text too; a later edit of it goes into the layer above."""
    bench.write(STAGE + '  - edit: {path: engine/data/table.json, find: "none", replace: "None"}\n')
    bench.ok("lock", "tuned")
    below, above = (bench.item(layer, "engine/data/table.json")["postimage"] for layer in ("artefacts", "changes"))
    assert below != above
    first = bench.ok("build", "tuned")["digest"]
    shutil.rmtree(bench.space.root / "build" / "tuned")
    shutil.rmtree(bench.space.cache)
    assert bench.ok("build", "tuned")["digest"] == first


@pytest.mark.parametrize("form", ["flow", "block"])
def test_stored_by_digest_and_built_elsewhere(bench: Bench, form: str) -> None:
    block = "  - stage:\n      dockerfile: Dockerfiles/fast.Dockerfile\n      out: {/out/m.so: engine/_fast.so}\n"
    bench.write(LOOSE if form == "flow" else block)
    assert bench.no("lock", "tuned") == (1, "stage.artifact-missing")
    words = ["overlay", "stage", "tune", "--store", "oci:store", "--platform", "amd64"]
    stored = bench.ok(*words)
    reference = stored["stages"][0]["artifact"]
    assert reference.startswith("oci:store:fast-")
    assert reference in bench.overlay()
    assert len(bench.docker.builds()) == 1
    bench.elsewhere()
    bench.ok("lock", "tuned")
    first = bench.ok("build", "tuned")["digest"]
    assert [note["proof"] for note in bench.space.lock()["notes"]["stages"]] == ["artifact"]
    bench.elsewhere()
    shutil.rmtree(bench.space.root / "build" / "tuned")
    assert bench.ok("build", "tuned")["digest"] == first


@BOTH
def test_platforms_are_stored_one_after_the_other(bench: Bench) -> None:
    bench.write(LOOSE)
    bench.ok("overlay", "stage", "tune", "--store", "oci:store", "--platform", "amd64")
    assert bench.no("lock", "tuned") == (1, "stage.artifact-platform")
    both = bench.ok("overlay", "stage", "tune", "--store", "oci:store", "--platform", "arm64")
    assert set(both["stages"][0]["platforms"]) == {"linux/amd64", "linux/arm64"}
    assert bench.overlay().count("artifact:") == 1
    bench.elsewhere()
    bench.ok("lock", "tuned")


def test_a_proof_that_is_the_artifact_s_word_is_not_proven(bench: Bench) -> None:
    bench.ok("overlay", "stage", "tune", "--store", "oci:store", "--platform", "amd64")
    bench.elsewhere()
    locked = bench.ok("lock", "tuned")
    assert any("artifact's word" in text for text in locked["not_proven"])


def test_what_a_machine_without_docker_lacks_is_told(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    bench.elsewhere()
    ran = bench.run("build", "tuned", "--json")
    assert (ran.code, ran.document["code"]) == (3, "stage.outputs-missing")
    assert ran.document["details"]["missing"] == ["/out/args", "/out/m.so"]
    assert not (bench.space.root / "build" / "tuned").exists()


def test_a_locked_build_with_docker_builds_once_more(bench: Bench) -> None:
    bench.ok("lock", "tuned")
    digest = str(bench.space.digest())
    shutil.rmtree(bench.space.cache)
    count = len(bench.docker.builds())
    assert bench.ok("build", "tuned")["digest"] == digest
    assert len(bench.docker.builds()) == count + 1


def test_a_file_of_another_machine_is_refused(bench: Bench) -> None:
    elf = bytes.fromhex("7f454c460201010000000000000000000300 b700".replace(" ", "")) + bytes(100)
    (bench.space.root / "Dockerfiles" / "fast" / "fast.c").write_bytes(elf)
    assert bench.no("lock", "tuned") == (1, "overlay.blob-machine")


def test_without_workspace(bench: Bench) -> None:
    bench.write(STAGE.replace(", /out/args: engine/data/table.json", ""))
    base = bench.space.base_reference
    made = bench.ok("build", "--base", base, "--overlay", "overlays/tune", "--output", "oci:loose")
    assert made["platforms"][0]["layers"][0]["role"] == "artefacts"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--store", "host.example/a:tag"), "cli.usage"),
        (("--store", "host.example/a:latest"), "cli.usage"),
        (("--store", "oci:store:name"), "cli.usage"),
        (("--store", "docker-archive:file"), "cli.usage"),
        (("--store", f"host.example/a@{PIN}"), "cli.usage"),
    ],
)
def test_where_to_store(bench: Bench, words: tuple[str, ...], code: str) -> None:
    assert bench.no("overlay", "stage", "tune", *words) == (2, code)
    assert bench.docker.builds() == []


def test_an_overlay_without_stage(bench: Bench) -> None:
    bench.write("  - delete: {path: engine/legacy.py}\n")
    assert bench.no("overlay", "stage", "tune") == (2, "stage.none")


def test_an_unpinned_base_names_its_line(bench: Bench) -> None:
    (bench.space.root / "Dockerfiles" / "fast.Dockerfile").write_text(DOCKERFILE.replace(f"@{PIN}", ":12"))
    ran = bench.run("lock", "tuned", "--json")
    assert (ran.code, ran.document["code"]) == (1, "stage.unpinned")
    assert ran.document["message"].startswith("Dockerfiles/fast.Dockerfile:2: ")
    assert Path(ran.document["details"]["file"]) == Path("Dockerfiles/fast.Dockerfile")
