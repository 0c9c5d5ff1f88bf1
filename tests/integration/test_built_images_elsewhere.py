"""Images that whole runs made and pushed, in the hands of a real registry, skopeo, umoci, podman, docker, crane, oras.

Reports retold here: containers/skopeo#1451 (a copy keeps the digest), bazel-contrib/rules_img#751 (the base is mounted,
never uploaded), google/go-containerregistry#1456 (all platforms), moby/go-archive#99 and the unpackers' own rules.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_engine import RealEngine
from real_registry import RealRegistry
from sid_programs import SidPrograms
from tools import program, root
from unpackers import docker_tree, run, tree

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.testing.images import MadeImage
from imagebuild.testing.small_engine import ENVS_AFTER, EXTRA, INFO, SCHEDULER, SITE, TIME, SmallWorkspace, engine_base

pytestmark = pytest.mark.integration

PUBLISH = {"tag": "{base.tag}-tuned", "arch_tag": "{base.tag}-tuned-{arch}"}


@pytest.fixture
def published(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> Callable[..., tuple[SmallWorkspace, dict[str, Any]]]:
    """Puts a base into the registry, locks, builds and pushes; workspace and the document of build."""

    def make(base: MadeImage) -> tuple[SmallWorkspace, dict[str, Any]]:
        registry.put_image("lib/engine", "1.0", base)
        space = SmallWorkspace(tmp_path / "ws", base, f"{registry.host}/lib/engine:1.0@{base.digest}")
        space.write_target(publish={"repository": f"{registry.host}/team/engine", **PUBLISH})
        space.write_overlay()
        monkeypatch.chdir(space.root)
        monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
        assert verb("lock", "tuned").code == 0
        built = verb("build", "tuned", "--push", "--json")
        assert built.code == 0, built.err
        return space, built.document

    return make


def check_tree(rootfs: Path, *, owners: bool) -> None:
    """The unpacked root is the base's with the changes of the overlay, and nothing else."""
    package = rootfs / SITE / "engine"
    assert (package / "envs.py").read_bytes() == ENVS_AFTER
    assert (package / "extra.py").read_bytes() == EXTRA
    assert (package / "scheduler.py").read_bytes() == SCHEDULER.replace(b"state + 17", b"state + 18")
    assert not (package / "legacy.py").exists()
    kept = {path.name for path in (package / "__pycache__").iterdir()}
    assert kept == {"__init__.cpython-312.pyc"}
    assert json.loads((rootfs / INFO / "imagebuild.json").read_bytes())["content_id"].startswith("sha256:")
    (sbom,) = rootfs.glob(f"{SITE}/*.dist-info/sboms/*.cdx.json")
    assert json.loads(sbom.read_bytes())["components"][0]["pedigree"]["patches"]
    for line in (rootfs / INFO / "RECORD").read_text().splitlines():
        path, digest, size = line.split(",")
        data = (rootfs / SITE / path).read_bytes()
        if digest:
            assert base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() == digest[7:]
            assert len(data) == int(size)
    # an equal time would let stale bytecode pass, so a replaced file is one second later than the base's
    assert (package / "envs.py").stat().st_mtime == TIME + 1
    assert (package / "extra.py").stat().st_mtime == TIME
    assert stat.S_IMODE((rootfs / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((package / "envs.py").stat().st_mode) == 0o644
    assert os.readlink(rootfs / "bin") == "usr/bin"
    if owners:
        assert (package / "data" / "table.json").stat().st_uid == 1000
        assert os.getxattr(package / "envs.py", "user.note") == b"kept"


def test_skopeo_copies_what_was_pushed_and_no_digest_changes(
    published: Any, any_base: MadeImage, registry: RealRegistry, tmp_path: Path
) -> None:
    skopeo = program("skopeo")
    space, document = published(any_base)
    assert registry.incomplete() == []
    assert document["transfer"]["mounted_blobs"] == len({x.descriptor.digest for x in any_base.layers})
    top = "team/engine:1.0-tuned"
    arch = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
    for number, platform in enumerate(document["platforms"]):
        tag = f"team/engine:1.0-tuned-{arch[platform['platform']]}"
        assert registry.tags()[tag] == platform["digest"]
        out = tmp_path / f"dir{number}"
        run(
            skopeo,
            "copy",
            "--preserve-digests",
            "--src-tls-verify=false",
            f"docker://{registry.host}/{tag}",
            f"dir:{out}",
        )
        assert Digest.of((out / "manifest.json").read_bytes()) == Digest.parse(platform["digest"])
    assert registry.tags()[top] == document["digest"] == str(space.digest())
    out = tmp_path / "all"
    run(
        skopeo,
        "copy",
        "--all",
        "--preserve-digests",
        "--src-tls-verify=false",
        f"docker://{registry.host}/{top}",
        f"dir:{out}",
    )
    assert str(Digest.of((out / "manifest.json").read_bytes())) == document["digest"]


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
def test_umoci_unpacks_exactly_the_base_with_the_changes(
    published: Any, registry: RealRegistry, tmp_path: Path, platform: str
) -> None:
    skopeo, umoci = program("skopeo"), program("umoci")
    base = engine_base(("linux/amd64", "linux/arm64"))
    _, document = published(base)
    _, _, machine = platform.partition("/")
    layout = tmp_path / "pulled"
    for name, reference in (("base", f"lib/engine@{base.digest}"), ("ours", f"team/engine@{document['digest']}")):
        run(
            skopeo, "--override-arch", machine, "copy", "--src-tls-verify=false",
            f"docker://{registry.host}/{reference}", f"oci:{layout}:{name}",
        )  # fmt: skip
        how = [] if os.geteuid() == 0 else ["--rootless"]
        run(umoci, "unpack", *how, "--image", f"{layout}:{name}", str(tmp_path / name))
    ours, theirs = tmp_path / "ours" / "rootfs", tmp_path / "base" / "rootfs"
    check_tree(ours, owners=os.geteuid() == 0)
    before, after = tree(theirs), tree(ours)
    different = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert different == {
        *(f"{SITE}/engine/{name}.py" for name in ("envs", "extra", "legacy", "scheduler")),
        *(f"{SITE}/engine/__pycache__/{name}.cpython-312.pyc" for name in ("envs", "legacy")),
        *(f"{INFO}/{name}" for name in ("RECORD", "imagebuild.json", "sboms", "sboms/imagebuild.cdx.json")),
    }


def test_the_layout_of_a_complete_build_is_unpacked_without_a_registry(
    in_workspace: Any, verb: Any, tmp_path: Path
) -> None:
    umoci = program("umoci")
    in_workspace()
    verb("lock", "tuned")
    built = verb("build", "tuned", "--output", f"oci:{tmp_path}/out:v", "--complete", "--json")
    assert (built.code, built.document["missing_blobs"]) == (0, [])
    how = [] if os.geteuid() == 0 else ["--rootless"]
    run(umoci, "unpack", *how, "--image", f"{tmp_path}/out:v", str(tmp_path / "bundle"))
    check_tree(tmp_path / "bundle" / "rootfs", owners=os.geteuid() == 0)


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_podman_pulls_it_and_exports_the_changed_root(
    published: Any, registry: RealRegistry, tmp_path: Path, family: mt.Family
) -> None:
    root()
    _, document = published(engine_base(family=family))
    with tempfile.TemporaryDirectory(prefix="ib-") as short:
        podman = [program("podman"), "--root", f"{tmp_path}/podman", "--runroot", short, "--storage-driver", "vfs"]
        reference = f"{registry.host}/team/engine@{document['digest']}"
        run(*podman, "pull", "-q", "--tls-verify=false", reference)
        assert document["digest"] in run(*podman, "inspect", "--format", "{{.Digest}}", reference)
        container = run(*podman, "create", reference).strip()
        run(*podman, "export", "-o", str(tmp_path / "export.tar"), container)
        run(*podman, "system", "reset", "--force")
    (tmp_path / "root").mkdir()
    run("tar", "--xattrs", "-C", str(tmp_path / "root"), "-xpf", str(tmp_path / "export.tar"))
    check_tree(tmp_path / "root", owners=False)


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_a_docker_archive_is_read_by_skopeo(in_workspace: Any, verb: Any, tmp_path: Path, family: mt.Family) -> None:
    root()
    skopeo = program("skopeo")
    in_workspace(family=family)
    verb("lock", "tuned")
    archive = tmp_path / "engine.tar"
    assert verb("build", "tuned", "--output", f"docker-archive:{archive}:localhost/engine:v").code == 0
    run(skopeo, "copy", f"docker-archive:{archive}:localhost/engine:v", f"oci:{tmp_path}/copied:v")
    run(program("umoci"), "unpack", "--image", f"{tmp_path}/copied:v", str(tmp_path / "bundle"))
    check_tree(tmp_path / "bundle" / "rootfs", owners=True)


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_docker_loads_a_docker_archive(in_workspace: Any, verb: Any, tmp_path: Path, family: mt.Family) -> None:
    root()
    in_workspace(family=family)
    verb("lock", "tuned")
    archive = tmp_path / "engine.tar"
    assert verb("build", "tuned", "--output", f"docker-archive:{archive}:localhost/engine:v").code == 0
    with RealEngine() as engine:
        seen = docker_tree(engine, archive, "localhost/engine:v", tmp_path)
    assert seen[f"{SITE}/engine/envs.py"].content == hashlib.sha256(ENVS_AFTER).hexdigest()
    assert seen[f"{SITE}/engine/extra.py"].content == hashlib.sha256(EXTRA).hexdigest()
    assert f"{SITE}/engine/legacy.py" not in seen
    assert seen["srv"].uid == 1000
    assert seen[f"{SITE}/engine/data/table.json"].mode == 0o640


def test_a_real_interpreter_imports_the_changed_modules(in_workspace: Any, verb: Any, tmp_path: Path) -> None:
    """The machine's own Python on the unpacked site folder: the overlay's code runs, the old bytecode does not."""
    umoci, python = program("umoci"), program("python3")
    in_workspace()
    verb("lock", "tuned")
    verb("build", "tuned", "--output", f"oci:{tmp_path}/out:v", "--complete")
    how = [] if os.geteuid() == 0 else ["--rootless"]
    run(umoci, "unpack", *how, "--image", f"{tmp_path}/out:v", str(tmp_path / "bundle"))
    script = (
        "import engine.envs, engine.extra, engine.scheduler, importlib.metadata as m\n"
        "print(engine.envs.read('ENGINE_TUNED'), engine.extra.TUNED, engine.scheduler.step_17(0))\n"
        "print(sum(1 for f in m.files('engine') if not f.locate().is_file()))\n"
    )
    done = subprocess.run(
        [python, "-B", "-c", script],
        env={"PYTHONPATH": str(tmp_path / "bundle" / "rootfs" / SITE), "ENGINE_TUNED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["7", "True", "18", "0"]


def test_crane_oras_and_skopeo_of_debian_unstable_agree(
    published: Any, registry: RealRegistry, sid: SidPrograms
) -> None:
    _, document = published(engine_base(("linux/amd64", "linux/arm64")))
    reference = f"{registry.host}/team/engine:1.0-tuned"
    assert sid.run("crane", "digest", "--insecure", reference).stdout.decode().strip() == document["digest"]
    for platform in document["platforms"]:
        pinned = f"{registry.host}/team/engine@{platform['digest']}"
        assert b"PASS" in sid.run("crane", "validate", "--insecure", "--remote", pinned).stdout
    assert b"PASS" in sid.run("crane", "validate", "--insecure", "--remote", reference).stdout
    raw = sid.run("oras", "manifest", "fetch", "--plain-http", reference).stdout
    assert str(Digest.of(raw)) == document["digest"]
    raw = sid.run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{reference}").stdout
    assert str(Digest.of(raw)) == document["digest"]


def test_crane_and_oras_push_our_sparse_layout_where_the_base_is(
    in_workspace: Any, verb: Any, registry: RealRegistry, sid: SidPrograms
) -> None:
    """A sparse layout is no dead end: other tools push it to a repository that holds the base."""
    space = in_workspace()
    registry.put_image("team/engine", "base", space.base)
    verb("lock", "tuned")
    shutil.rmtree(space.root / "build" / "base")
    built = verb("build", "tuned", "--output", "oci:sparse:v", "--json")
    assert built.code == 0, built.err
    assert len(built.document["missing_blobs"]) == 4
    layout = space.root / "sparse"
    sid.run("crane", "push", "--insecure", sid.inside(layout), f"{registry.host}/team/engine:by-crane")
    assert registry.tags()["team/engine:by-crane"] == built.document["digest"]
    assert registry.incomplete() == []
