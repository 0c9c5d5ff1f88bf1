"""Inputs on which other tools went wrong, through whole verbs: lock, build, verify.

Reports retold here: opencontainers/image-spec#737, GoogleContainerTools/kaniko#2308, moby/moby#41035, moby/buildkit#4805
and #4614 (SOURCE_DATE_EPOCH older than the base), google/go-containerregistry#2450 (history), #1930 and
nlewo/nix2container#198 (unknown keys), #1427, #2433 and containers/image#2972 (one family throughout),
containers/buildah#5331 and ko-build/ko#975 (attestations), bazel-contrib/rules_oci#645 (one history entry a layer),
project-dalec/dalec#456 (one PATH), moby/buildkit#3067 (126 layers), gpustack/runner#179 (editable installations),
oven-sh/bun#35099 (another git work tree), pypa/pip#4705.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import Child, read_image_tree
from imagebuild.testing.images import (
    File,
    Folder,
    HistoryKind,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    Link,
    MadeImage,
    make_image,
    make_index,
)
from imagebuild.testing.small_engine import (
    CONFIG,
    ENVS,
    ENVS_AFTER,
    INFO,
    SITE,
    SmallWorkspace,
    engine_base,
    engine_layers,
    pyc,
    with_folders,
)

AMD64 = Platform.parse("linux/amd64")
STACK = engine_layers(AMD64)


@pytest.fixture
def run(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> Callable[..., tuple[SmallWorkspace, list[Child]]]:
    """Locks, builds completely and verifies on a base; the workspace, and each platform's image."""

    def make(base: MadeImage, **target: Any) -> tuple[SmallWorkspace, list[Child]]:
        space = in_workspace(base)
        space.write_target(**target)
        locked = verb("lock", "tuned", "--complete", "--json")
        assert locked.code == 0, locked.err
        built = verb("build", "tuned", "--complete", "--json")
        assert built.code == 0, built.err
        verified = verb("verify", built.document["reference"], "--target", "tuned")
        assert verified.code == 0, verified.out
        tree = read_image_tree(LayoutSource(space.root / "build" / "tuned"), space.digest())
        return space, list(tree.children.values())

    return make


def ours(space: SmallWorkspace, child: Child) -> list[tarfile.TarInfo]:
    """The entries of the layer that was added."""
    data = (space.root / "build" / "tuned" / "blobs" / "sha256" / child.manifest.layers[-1].digest.hex).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def _file(space: SmallWorkspace, child: Child, name: str) -> bytes:
    data = (space.root / "build" / "tuned" / "blobs" / "sha256" / child.manifest.layers[-1].digest.hex).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        stream = archive.extractfile(name)
        assert stream is not None
        return stream.read()


def on(layers: tuple[LayerSpec, ...] = STACK, **spec: Any) -> MadeImage:
    return make_image(ImageSpec(layers, **{"config": CONFIG, **spec}))


def test_two_files_deep_in_a_package_and_what_follows_from_them_are_the_layer(run: Any) -> None:
    space, (child,) = run(on())
    names = [head.name for head in ours(space, child)]
    assert sorted(names) == sorted(
        [
            *(f"{SITE}/engine/{name}.py" for name in ("envs", "extra", "scheduler")),
            f"{SITE}/engine/.wh.legacy.py",
            *(f"{SITE}/engine/__pycache__/.wh.{name}.cpython-312.pyc" for name in ("envs", "legacy")),
            *(f"{INFO}/{name}" for name in ("RECORD", "imagebuild.json", "sboms", "sboms/imagebuild.cdx.json")),
        ]
    )


def test_a_folder_is_replaced_by_a_link(run: Any, verb: Any, in_workspace: Any) -> None:
    space = in_workspace(on())
    space.write_overlay(
        changes="  - delete: {path: engine/data}\n  - symlink: {path: engine/data, to: ../common}\n", files={}
    )
    assert verb("lock", "tuned", "--complete").code == 0
    built = verb("build", "tuned", "--complete", "--json")
    assert built.code == 0, built.err
    assert verb("verify", built.document["reference"], "--target", "tuned").code == 0
    (child,) = read_image_tree(LayoutSource(space.root / "build" / "tuned"), space.digest()).children.values()
    heads = {head.name: head for head in ours(space, child)}
    assert heads[f"{SITE}/engine/data"].linkname == "../common"
    assert f"{SITE}/engine/.wh.data" not in heads
    rows = _file(space, child, f"{INFO}/RECORD").decode().splitlines()
    assert not [row for row in rows if row.startswith("engine/data/")]
    assert [row for row in rows if row.startswith("engine/data,")]


def test_a_folder_below_a_link_of_the_base(run: Any, in_workspace: Any, verb: Any) -> None:
    base = on((*STACK, LayerSpec((*with_folders([File("etc/x")]), Link("etc/service", "/run/s")))))
    space = in_workspace(base)
    space.write_target(roots={"etc": {"path": "/etc"}}, identity=None)
    space.write_overlay(
        changes="  - file: files/run\n    to: etc/service/mine/run\n", files={"files/run": b"#!/bin/sh\n"}
    )
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb("build", "tuned", "--complete").code == 0
    (child,) = read_image_tree(LayoutSource(space.root / "build" / "tuned"), space.digest()).children.values()
    assert [head.name for head in ours(space, child)] == ["run/s", "run/s/mine", "run/s/mine/run"]


@pytest.mark.parametrize("history", ["full", "missing", "null", "short", "all-empty", "with-empty"])
def test_every_history_keeps_its_values_and_gains_one_entry(run: Any, history: HistoryKind) -> None:
    base = on(history=history)
    _, (child,) = run(base)
    before = json.loads(base.blobs[Digest.parse(json.loads(base.raw)["config"]["digest"])])
    after = json.loads(child.config.raw)
    old = before.get("history") or []
    assert after["history"][: len(old)] == old
    assert len(child.config.diff_ids) == len(STACK) + 1
    added = after["history"][len(old) :]
    assert [entry["created_by"] for entry in added][-1] == "imagebuild tuned changes"
    if history == "full":
        assert len(added) == 1
    assert all("empty_layer" not in entry for entry in added)


def test_an_epoch_older_than_the_base_changes_nothing_of_the_base(
    run: Any, monkeypatch: pytest.MonkeyPatch, in_workspace: Any, verb: Any
) -> None:
    base = on()
    space = in_workspace(base)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert verb("lock", "tuned").code == 0
    # the moment is fixed when locking: a build's own epoch is no input
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1900000000")
    assert verb("build", "tuned", "--complete").code == 0
    (child,) = read_image_tree(LayoutSource(space.root / "build" / "tuned"), space.digest()).children.values()
    assert child.manifest.layers[:4] == tuple(layer.descriptor for layer in base.layers)
    config = json.loads(child.config.raw)
    assert config["created"] == "1980-01-01T00:00:00Z"
    assert {entry["created"] for entry in config["history"][:-1]} == {"2023-11-14T22:13:20Z"}
    assert {head.mtime for head in ours(space, child)} == {315532800}


def test_times_are_never_before_1980(run: Any) -> None:
    space, (child,) = run(on(extra_config={"created": "1970-01-01T00:00:00Z"}))
    assert min(head.mtime for head in ours(space, child)) == 315532800


def test_keys_that_nobody_knows_survive_in_their_order(run: Any) -> None:
    health = {"Test": ["CMD", "true"], "StartInterval": 5_000_000_000, "X-Vendor": 1.50}
    config = {**CONFIG, "Healthcheck": health, "com.example.key": {"z": 1, "a": [None]}}
    base = on(config=config, extra_config={"x-top": "kept"}, extra_manifest={"x-manifest": [1, 2]})
    _, (child,) = run(base)
    after = json.loads(child.config.raw)
    assert list(after["config"])[: len(config)] == list(config)
    assert after["config"]["Healthcheck"] == health
    assert b"1.5" in child.config.raw
    assert after["x-top"] == "kept"
    assert json.loads(child.manifest.raw)["x-manifest"] == [1, 2]


def test_descriptors_of_the_base_stay_verbatim(run: Any) -> None:
    marked = LayerSpec((File("marked"),), annotations={"a": "b"}, compression="zstd")
    plain = LayerSpec((File("plain"),), compression="none")
    base = on((*STACK, marked, plain))
    _, (child,) = run(base)
    assert json.loads(child.manifest.raw)["layers"][:-1] == json.loads(base.raw)["layers"]


def test_one_family_throughout_and_the_index_says_the_childs_type(run: Any, any_base: MadeImage) -> None:
    space, children = run(any_base)
    family = mt.family_of(any_base.descriptor.media_type)
    assert family is not None
    for child in children:
        assert child.manifest.media_type == family.manifest
        assert child.manifest.config.media_type == family.config
        assert {layer.media_type for layer in child.manifest.layers} == {family.layer_gzip}
    raw = (space.root / "build" / "tuned" / "blobs" / "sha256" / space.digest().hex).read_bytes()
    if any_base.images:
        assert {entry["mediaType"] for entry in json.loads(raw)["manifests"]} == {family.manifest}
        assert json.loads(raw)["mediaType"] == family.index


def test_attestations_of_the_base_are_dropped_and_named(in_workspace: Any, verb: Any) -> None:
    images = tuple(
        ImageSpec(engine_layers(Platform.parse(p)), Platform.parse(p), config=CONFIG) for p in ("amd64", "arm64")
    )
    base = make_index(IndexSpec(images, attestations=True))
    space = in_workspace(base)
    children = json.loads(base.raw)["manifests"]
    attestations = {child["digest"] for child in children[2:]}
    assert set(verb("plan", "tuned", "--json").document["attestations_dropped"]) == attestations
    assert verb("lock", "tuned").code == 0
    assert verb("build", "tuned").code == 0
    assert set(space.lock()["notes"]["dropped"]) == attestations
    raw = (space.root / "build" / "tuned" / "blobs" / "sha256" / space.digest().hex).read_bytes()
    listed = json.loads(raw)["manifests"]
    assert [entry["platform"]["architecture"] for entry in listed] == ["amd64", "arm64"]
    assert not {entry["digest"] for entry in listed} & {child["digest"] for child in children}


def test_an_edited_path_stays_one_in_its_place(run: Any) -> None:
    _, (child,) = run(on(), env={"PATH": "/opt/bin:/usr/bin", "NEW": ""})
    assert tuple(child.config.environment) == ("PATH=/opt/bin:/usr/bin", "ENGINE_PORT=8000", "NEW=")


@pytest.mark.parametrize(("count", "code"), [(126, 0), (127, 1)])
def test_the_limit_of_layers(in_workspace: Any, verb: Any, count: int, code: int) -> None:
    """Two overlays on 126 layers are one layer more; on 127 the answer is no, before anything is written."""
    thin = tuple(LayerSpec((File(f"opt/{number}"),), compression="none") for number in range(count - len(STACK)))
    space = in_workspace(on((*thin, *STACK)))
    space.write_target(overlays=["tune", "more"])
    space.write_overlay(
        "more", changes="  - file: files/m.py\n    to: engine/more.py\n", files={"files/m.py": b"M = 1\n"}
    )
    before = space.snapshot()
    locked = verb("lock", "tuned", "--complete", "--json")
    assert locked.code == code, locked.err
    if code:
        assert locked.document["code"] == "oci.too-many-layers"
        assert space.snapshot() == before
    else:
        built = verb("build", "tuned", "--json")
        assert len(built.document["platforms"][0]["layers"]) == 1


@pytest.mark.parametrize("flags", [0, 1, 3], ids=["by-time", "unchecked-hash", "checked-hash"])
def test_bytecode_that_would_run_the_old_code_is_hidden(in_workspace: Any, verb: Any, flags: int) -> None:
    """Equal size and time, or a hash that nobody checks: the interpreter would take the old bytecode."""
    stale = pyc(ENVS)[:4] + bytes([flags]) + pyc(ENVS)[5:]
    names = [f"{SITE}/engine/__pycache__/envs.cpython-{v}.pyc" for v in ("311", "312", "312.opt-1")]
    base = on((*STACK, LayerSpec(with_folders([File(name, stale) for name in names]))))
    space = in_workspace(base)
    assert verb("lock", "tuned", "--complete").code == 0
    changes = space.lock()["inputs"]["platforms"]["linux/amd64"]["changes"]
    hidden = {item["path"] for item in changes if item["kind"] == "whiteout"}
    assert {f"/{name}" for name in names} <= hidden


def test_a_package_installed_editable_is_patched_where_it_is_imported_from(in_workspace: Any, verb: Any) -> None:
    info = f"{SITE}/engine-1.0.dist-info"
    direct = {"url": "file:///workspace/engine-src", "dir_info": {"editable": True}}
    installed = [
        File(f"{SITE}/__editable__.engine-1.0.pth", b"/workspace/engine-src\n"),
        File(f"{info}/METADATA", b"Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n"),
        File(f"{info}/direct_url.json", json.dumps(direct).encode()),
        File(f"{info}/RECORD", f"__editable__.engine-1.0.pth,,\n{info.rpartition('/')[2]}/RECORD,,\n".encode()),
        File("workspace/engine-src/engine/__init__.py", b""),
        File("workspace/engine-src/engine/envs.py", ENVS),
    ]
    base = on((*STACK[:2], LayerSpec(with_folders(installed)), STACK[3]), config={**CONFIG, "WorkingDir": "/"})
    space = in_workspace(base)
    space.write_overlay(
        changes="  - file: files/envs.py\n    to: engine/envs.py\n",
        files={"files/envs.py": ENVS_AFTER},
        guards=f"  engine/envs.py: {{preimage: '{Digest.of(ENVS)}', postimage: '{Digest.of(ENVS_AFTER)}'}}\n",
    )
    locked = verb("lock", "tuned", "--complete", "--json")
    assert locked.code == 0, locked.err
    changes = space.lock()["inputs"]["platforms"]["linux/amd64"]["changes"]
    assert "/workspace/engine-src/engine/envs.py" in {item["path"] for item in changes}
    assert verb("build", "tuned").code == 0


def test_a_workspace_inside_another_git_work_tree(in_workspace: Any, verb: Any, tmp_path: Path) -> None:
    plain = in_workspace(name="plain")
    assert verb("lock", "tuned").code == 0
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "repo" / ".gitattributes").write_text("* text eol=crlf\n")
    inside = in_workspace(name="repo/ws")
    assert verb("lock", "tuned").code == 0
    assert inside.digest() == plain.digest()


def test_what_engines_unpack_differently_is_refused_where_it_is_ours(in_workspace: Any, verb: Any) -> None:
    """One layer holds a file and its whiteout, or goes through a lower link without saying so."""
    from imagebuild.testing.images import Whiteout

    odd = LayerSpec((*with_folders([File(f"{SITE}/engine/odd.py", b"1\n")]), Whiteout(f"{SITE}/engine/odd.py")))
    space = in_workspace(on((*STACK[:3], odd, STACK[3])))
    assert verb("lock", "tuned", "--json").code == 0
    space.write_overlay(changes="  - file: files/o.py\n    to: engine/odd.py\n", files={"files/o.py": b"2\n"})
    refused = verb("lock", "tuned", "--json")
    assert (refused.code, refused.document["code"]) == (1, "base.unportable")


def test_a_requirement_that_the_base_does_not_meet(in_workspace: Any, verb: Any) -> None:
    space = in_workspace(engine_base())
    space.write_target(requires={"env": {"ENGINE_PORT": "9999"}})
    refused = verb("lock", "tuned", "--json")
    assert (refused.code, refused.document["code"]) == (1, "lock.requires-env")
    assert refused.document["details"]["found"] == "ENGINE_PORT=8000"
    space.write_target(identity={"engine": "2.0"})
    refused = verb("lock", "tuned", "--json")
    assert refused.code == 1
    assert "2.0" in refused.err
    assert "1.0" in refused.err


def test_another_copy_that_would_be_imported_is_refused(in_workspace: Any, verb: Any) -> None:
    """A package of that name in the working folder comes first on the search path."""
    shadow = LayerSpec(with_folders([File("workspace/engine/__init__.py", b"")], [Folder("workspace")]))
    in_workspace(on((*STACK, shadow)))
    refused = verb("lock", "tuned", "--json")
    assert (refused.code, refused.document["code"]) == (1, "overlay.root-shadowed")
