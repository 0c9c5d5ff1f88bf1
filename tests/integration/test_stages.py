"""Stages through a real BuildKit: compiled, proved, stored, laid into an image that runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import debian_base
import pytest
from real_engine import RealEngine
from real_registry import RealRegistry
from sid_programs import SidPrograms
from tools import missing

from imagebuild.content.digest import Digest

pytestmark = [pytest.mark.integration, pytest.mark.slow(60)]

EXTENSION = """\
#include <Python.h>

static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", "", -1, methods};
PyMODINIT_FUNC PyInit__fast(void) { return PyModule_Create(&module); }
"""
DOCKERFILE = """\
ARG BASE
FROM ${BASE} AS build
ARG ANSWER=1
COPY fast.c /src/
RUN gcc -shared -fPIC -O2 -DANSWER=${ANSWER} -I/usr/include/python3.11 /src/fast.c -o /fast.so
FROM scratch
COPY --from=build /fast.so /out/_fast.so
"""
SITE = "/usr/lib/python3/dist-packages"


@dataclass
class Space:
    """A workspace with a target on the Debian base, and an overlay with a stage."""

    root: Path
    base: str
    engine: RealEngine
    run: Callable[..., Any]

    def write(self, stage: str, more: str = "") -> None:
        (self.root / "manifests" / "fast").mkdir(parents=True, exist_ok=True)
        (self.root / "overlays" / "fast").mkdir(parents=True, exist_ok=True)
        context = self.root / "Dockerfiles" / "fast"
        context.mkdir(parents=True, exist_ok=True)
        (context / "fast.c").write_text(EXTENSION)
        (self.root / "Dockerfiles" / "fast.Dockerfile").write_text(DOCKERFILE)
        platform = "linux/arm64" if ":arm64@" in self.base else "linux/amd64"
        (self.root / "manifests" / "fast" / "target.yaml").write_text(
            f"schema: 1\nname: fast\nbase: {self.base}\nplatforms: [{platform}]\noverlays: [fast]\n"
            f"roots: {{site: {{path: {SITE}}}}}\n"
        )
        (self.root / "overlays" / "fast" / "overlay.yaml").write_text(
            "schema: 1\nname: fast\ndescription: a compiled answer\nauthor: tests\nchanges:\n"
            f"  - stage:\n{stage}\n{more}"
        )

    def overlay(self) -> str:
        return (self.root / "overlays" / "fast" / "overlay.yaml").read_text()

    def lock(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.root / "manifests" / "fast" / "target.lock.json").read_bytes())
        return value

    def forget(self) -> None:
        """What another machine's cache would be: empty."""
        shutil.rmtree(self.root.parent / "cache", ignore_errors=True)


def stage(base: str, *lines: str) -> str:
    return "\n".join(
        f"      {line}"
        for line in (
            "dockerfile: Dockerfiles/fast.Dockerfile",
            f'args: {{BASE: "{base}", ANSWER: "42"}}',
            "out: {/out/_fast.so: site/_fast.so}",
            *lines,
        )
    )


@pytest.fixture(scope="module")
def registry_of_bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with RealRegistry(tmp_path_factory.mktemp("bases")) as running:
        yield running


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("IMAGEBUILD_CI_CACHE")
    return Path(kept) if kept else tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module", params=["amd64", "arm64"])
def base(request: pytest.FixtureRequest, registry_of_bases: RealRegistry, tars: Path) -> str:
    architecture = str(request.param)
    lacking = debian_base.emulate_arm64() if architecture == "arm64" else None
    if lacking:
        missing(lacking)
    return debian_base.push_base(registry_of_bases, "debian", debian_base.debian_tar(tars, architecture), architecture)


@pytest.fixture
def space(
    base: str, engine: RealEngine, tmp_path: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Space:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "space"
    root.mkdir()
    made = Space(root, base, engine, verb)
    made.write(stage(base, "reproducible: true"))
    monkeypatch.chdir(root)
    return made


def without_docker(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine without Docker: no engine, no client."""
    (folder / "bin").mkdir()
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/nobody")


def test_a_compiled_extension_in_an_image_that_runs(space: Space) -> None:
    ran = space.run("lock", "fast", "--json")
    assert ran.code == 0, ran.err
    (note,) = space.lock()["notes"]["stages"]
    assert note["proof"] == "two-builds"
    assert note["network"] == "none"
    ran = space.run("build", "fast", "--output", "docker-daemon:fast:test", "--json")
    assert ran.code == 0, ran.err
    (made,) = ran.document["platforms"]
    assert [layer["role"] for layer in made["layers"]] == ["artefacts"]
    found = space.engine.inspect("fast:test")
    assert found["RootFS"]["Layers"][-1] == made["layers"][0]["diff_id"]
    program = "import platform, _fast; print(platform.machine(), _fast.__file__, _fast.answer())"
    said = space.engine.container("fast:test", "/usr/bin/python3", "-c", program).split()
    machine = "aarch64" if ":arm64@" in space.base else "x86_64"
    assert said == [machine, f"{SITE}/_fast.so", "42"]


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_a_file_of_equal_size_and_time_is_compiled_anew(space: Space) -> None:
    """BuildKit of docker 20.10 takes such a file as unchanged, where a context has the path of an earlier one."""
    source = space.root / "Dockerfiles" / "fast" / "fast.c"
    outputs = []
    for word in ("answer", "answex"):
        source.write_text(EXTENSION.replace('{"answer", answer', f'{{"{word}", answer'))
        os.utime(source, (1_000_000_000, 1_000_000_000))
        ran = space.run("overlay", "stage", "fast", "--json")
        assert ran.code == 0, ran.err
        (platform,) = ran.document["stages"][0]["platforms"].values()
        outputs.append(platform["outputs"][0]["sha256"])
    assert outputs[0] != outputs[1]


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_what_is_not_reproducible_is_refused_by_file(space: Space) -> None:
    dockerfile = space.root / "Dockerfiles" / "fast.Dockerfile"
    dockerfile.write_text(
        DOCKERFILE.replace("RUN gcc", "RUN date +%s.%N >> /src/fast.c.time; gcc")
        + "COPY --from=build /src/fast.c.time /out/t\n"
    )
    text = space.overlay().replace("site/_fast.so}", "site/_fast.so, /out/t: site/time.txt}")
    (space.root / "overlays" / "fast" / "overlay.yaml").write_text(text)
    ran = space.run("lock", "fast", "--json")
    assert ran.code == 1
    assert ran.document["code"] == "stage.not-reproducible"
    assert ran.document["details"]["files"] == ["/out/t"]
    assert not (space.root / "manifests" / "fast" / "target.lock.json").exists()


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_compiled_here_locked_and_built_where_no_docker_is(
    space: Space, registry_of_bases: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.write(stage(space.base, "reproducible: false"))
    ran = space.run("lock", "fast", "--json")
    assert (ran.code, ran.document["code"]) == (1, "stage.artifact-missing")
    ran = space.run("overlay", "stage", "fast", "--store", f"{registry_of_bases.host}/artifacts", "--json")
    assert ran.code == 0, ran.err
    reference = ran.document["stages"][0]["artifact"]
    assert f'artifact: "{reference}"' in space.overlay() or f"artifact: {reference}" in space.overlay()
    assert registry_of_bases.incomplete() == []
    space.forget()
    without_docker(monkeypatch, tmp_path)
    assert space.run("lock", "fast").code == 0
    (note,) = space.lock()["notes"]["stages"]
    assert (note["proof"], note["artifact"]) == ("artifact", reference)
    first = space.run("build", "fast", "--json")
    assert first.code == 0, first.err
    space.forget()
    shutil.rmtree(space.root / "build")
    assert space.run("build", "fast", "--json").document["digest"] == first.document["digest"]
    space.write(stage(space.base, "reproducible: false").replace("42", "43"))
    assert space.run("lock", "fast", "--json").document["code"] == "stage.artifact-missing"


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_a_locked_build_without_outputs_says_what_is_missing_and_docker_brings_them_again(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert space.run("lock", "fast").code == 0
    wanted = space.lock()["result"]["digest"]
    space.forget()
    with monkeypatch.context() as elsewhere:
        without_docker(elsewhere, tmp_path)
        ran = space.run("build", "fast", "--json")
        assert ran.code == 3
        assert ran.document["code"] == "stage.outputs-missing"
        assert ran.document["details"]["missing"] == ["/out/_fast.so"]
        assert not (space.root / "build").exists()
    ran = space.run("build", "fast", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["digest"] == wanted


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_the_lock_is_stale_when_the_source_changes(space: Space) -> None:
    assert space.run("lock", "fast").code == 0
    assert space.run("lock", "fast", "--check").code == 0
    with (space.root / "Dockerfiles" / "fast" / "fast.c").open("a") as file:
        file.write("/* more */\n")
    assert space.run("build", "fast", "--json").document["code"] == "lock.stale"


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_no_network_unless_asked_for(space: Space) -> None:
    """/proc/net/dev of a container without network lists the loopback alone, after two lines of heads."""
    dockerfile = space.root / "Dockerfiles" / "fast.Dockerfile"
    dockerfile.write_text(DOCKERFILE.replace("RUN gcc", "RUN test $(wc -l < /proc/net/dev) = 3 && gcc"))
    assert space.run("overlay", "stage", "fast").code == 0


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_a_step_that_fails_shows_why(space: Space) -> None:
    (space.root / "Dockerfiles" / "fast" / "fast.c").write_text("int x = ;\n")
    ran = space.run("lock", "fast", "--json")
    assert ran.code == 1
    assert ran.document["code"] == "stage.build-failed"
    assert "expected expression" in ran.document["details"]["found"]


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_verify_and_reproduce_know_stages(space: Space) -> None:
    assert space.run("lock", "fast").code == 0
    assert space.run("build", "fast").code == 0
    ran = space.run("verify", "oci:build/fast", "--target", "fast", "--json")
    assert ran.code == 0, ran.out
    ran = space.run("reproduce", "fast", "--json")
    assert ran.code == 0, ran.out
    assert space.run("overlay", "check", "fast").code == 0


@pytest.mark.parametrize("base", ["amd64"], indirect=True)
def test_other_tools_fetch_the_outputs_as_files(
    space: Space, registry_of_bases: RealRegistry, sid: SidPrograms
) -> None:
    repository = f"{registry_of_bases.host}/fetched"
    ran = space.run("overlay", "stage", "fast", "--store", repository, "--json")
    assert ran.code == 0, ran.err
    (found,) = ran.document["stages"]
    platform, made = next(iter(found["platforms"].items()))
    (sid.folder / "fetched").mkdir()
    sid.run("oras", "pull", "--plain-http", f"--platform={platform}", "--output=/mnt/fetched", found["artifact"])
    data = (sid.folder / "fetched" / "out" / "_fast.so").read_bytes()
    assert str(Digest.of(data)) == made["outputs"][0]["sha256"]
