"""A build from a lock: what it needs, what it refuses, and that nothing but the lock's inputs decides its bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build import contents as contents_module
from imagebuild.build.base_documents import load_base
from imagebuild.build.derived import derived_files
from imagebuild.build.image import check_result
from imagebuild.build.labels import PARENT, labels_for
from imagebuild.build.layer_data import new_entries
from imagebuild.build.locked import locked_base, patch_content, stale_parts, wanted_content
from imagebuild.build.wanted import describe_wanted, differences
from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore
from imagebuild.errors import RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.source import Image
from imagebuild.target.lock_types import Lock
from imagebuild.testing.small_engine import ENVS, ENVS_AFTER, INFO, SCHEDULER, SITE, engine_base


def never(*_: object) -> Any:
    pytest.fail("the base is not to be asked")


def files_of(bench: Any, lock: Lock) -> dict[str, bytes]:
    (platform,) = lock.inputs.platforms
    return derived_files(lock.inputs, platform, bench.contents, never)


def blobs(image: Image) -> dict[str, bytes]:
    out = {str(d.descriptor.digest): d.raw for d in (image.top, *image.manifests, *image.configs)}
    for blob in image.own:
        with blob.open() as stream:
            out[str(blob.descriptor.digest)] = stream.read()
    return out


def test_nothing_of_the_base_is_asked_for(bench: Any, tmp_path: Path) -> None:
    b = bench(platforms=("linux/amd64", "linux/arm64"))
    lock = b.lock().lock
    b.source.reads.clear()
    for path in (b.space.cache / "content").rglob("*"):
        if path.is_file():
            path.unlink()
    (b.space.root / "build" / "base").rename(tmp_path / "elsewhere")
    image = b.build(lock, tmp_path / "out")
    assert b.source.reads == []
    assert image.top.descriptor.digest == lock.result.digest
    assert len(image.own) == 1
    assert len(image.manifests) == 2


def test_two_builds_give_the_same_bytes_whatever_the_folder(bench: Any, tmp_path: Path) -> None:
    """podman-container-tools/buildah#7038: history says nothing of the machine."""
    b = bench()
    lock = b.lock().lock
    first, second = b.build(lock, tmp_path / "a"), b.build(lock, tmp_path / "some" / "where" / "else")
    assert blobs(first) == blobs(second)
    assert str(tmp_path).encode() not in b"".join(blobs(first).values())
    history = json.loads(first.configs[0].raw)["history"]
    assert history[:-1] == json.loads(load_base(lock.inputs, b.contents, never).configs["linux/amd64"].raw)["history"]
    assert history[-1]["created_by"] == "imagebuild tuned changes"


def test_the_derived_record_comes_from_its_compiled_patch(bench: Any) -> None:
    b = bench()
    lock = b.lock().lock
    text = files_of(b, lock)[f"/{INFO}/RECORD"].decode()
    rows = {line.split(",")[0]: line.split(",")[1:] for line in text.splitlines()}

    def hashed(data: bytes) -> list[str]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return [f"sha256={digest}", str(len(data))]

    assert rows["engine/envs.py"] == hashed(ENVS_AFTER)
    assert rows["engine/scheduler.py"] == hashed(SCHEDULER.replace(b"state + 17", b"state + 18"))
    assert "engine/extra.py" in rows
    assert "engine/legacy.py" not in rows
    assert not [row for row in rows if "envs.cpython" in row or "legacy" in row]
    provenance = files_of(b, lock)[f"/{INFO}/imagebuild.json"]
    assert rows["engine-1.0.dist-info/imagebuild.json"] == ["", ""] or rows[
        "engine-1.0.dist-info/imagebuild.json"
    ] == hashed(provenance)


def test_the_provenance_file_lists_what_was_changed(bench: Any) -> None:
    b = bench()
    lock = b.lock().lock
    value = json.loads(files_of(b, lock)[f"/{INFO}/imagebuild.json"])
    assert value["content_id"] == str(lock.inputs.content_id)
    listed = value["files"]
    assert listed[f"/{SITE}/engine/envs.py"]["preimage"] == str(Digest.of(ENVS))
    assert listed[f"/{SITE}/engine/envs.py"]["postimage"] == str(Digest.of(ENVS_AFTER))
    assert not [path for path in listed if path.endswith((".pyc", "imagebuild.json"))]


def test_a_kept_record_stays_and_is_said(bench: Any, tmp_path: Path) -> None:
    b = bench()
    b.space.write_target(derived={"record": "keep"})
    locked = b.lock()
    assert not [item for item in locked.lock.inputs.platforms[0].changes if item.path.endswith("/RECORD")]
    assert "overlay.record-kept" in {finding.code for finding in locked.findings}
    assert b.build(locked.lock, tmp_path / "out").top.descriptor.digest == locked.lock.result.digest


def test_a_preimage_that_is_nowhere_is_told(bench: Any) -> None:
    b = bench()
    lock = b.lock().lock
    (platform,) = lock.inputs.platforms
    record = next(item for item in platform.changes if item.patch is not None)
    b.contents.committed.path(record.patch).unlink()
    b.contents.cache.remove(record.patch)
    with pytest.raises(RefusedError) as caught:
        files_of(b, lock)
    assert (caught.value.code, caught.value.expected) == ("lock.content-missing", str(record.patch))


def test_guards_are_checked_again_by_the_build(bench: Any, tmp_path: Path) -> None:
    """The content folder is verified by digest, and so is what the series makes of it."""
    b = bench()
    lock = b.lock().lock
    b.space.write_overlay(
        guards=f"  engine/envs.py: {{preimage: {Digest.of(ENVS)}, postimage: {Digest.of(b'other')}}}\n"
    )
    with pytest.raises(RefusedError) as caught:
        b.build(lock, tmp_path / "out")
    assert caught.value.code == "overlay.postimage-mismatch"


def test_a_series_that_touches_other_paths_than_the_lock(bench: Any, tmp_path: Path) -> None:
    b = bench()
    lock = b.lock().lock
    b.space.write_overlay(changes="  - file: files/extra.py\n    to: engine/other.py\n")
    with pytest.raises(RefusedError) as caught:
        b.build(lock, tmp_path / "out")
    assert caught.value.code == "lock.stale"
    assert "engine/other.py" in caught.value.message


def test_the_last_guard_before_anything_is_written(bench: Any) -> None:
    b = bench()
    (platform,) = b.lock().lock.inputs.platforms
    files = {item.path: b"wrong" for item in platform.changes if item.kind == "file"}
    with pytest.raises(RefusedError) as caught:
        new_entries(platform.changes, files)
    assert caught.value.code == "build.postimage-mismatch"


def test_a_result_that_differs_is_refused(bench: Any) -> None:
    result = bench().lock().lock.result
    check_result(result, result)
    with pytest.raises(RefusedError) as caught:
        check_result(result, replace(result, digest=Digest.of(b"")))
    assert caught.value.code == "build.result-differs"


def test_the_locked_base_has_bytes_only_where_the_series_needs_them(bench: Any) -> None:
    b = bench()
    (platform,) = b.lock().lock.inputs.platforms
    base = locked_base(platform, b.contents, frozenset({"engine/envs.py"}), never)
    assert base.read("engine/envs.py").data == ENVS
    assert base.read("engine/legacy.py").data is None
    assert base.read("engine/extra.py") is None


def test_documents_of_the_base_come_from_the_content_folder(bench: Any) -> None:
    b = bench(engine_base(("linux/amd64", "linux/arm64"), mt.DOCKER, attestations=True))
    lock = b.lock().lock
    documents = load_base(lock.inputs, b.contents, never)
    assert documents.index is not None
    assert documents.index.raw == b.space.base.raw
    assert set(documents.manifests) == {"linux/amd64", "linux/arm64"}


def test_missing_documents_are_fetched_and_kept(bench: Any) -> None:
    b = bench()
    lock = b.lock().lock
    for folder in (b.space.cache / "content", b.workspace.content_path("tuned")):
        for path in folder.rglob("*"):
            if path.is_file():
                path.unlink()
    b.source.reads.clear()
    load_base(lock.inputs, b.contents, lambda: b.source)
    assert len(b.source.reads) == 2
    load_base(lock.inputs, b.contents, never)


def test_content_that_is_too_large_is_refused_before_anything_is_written(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    monkeypatch.setattr(contents_module, "CONTENT_LIMIT", 400)
    with pytest.raises(RefusedError) as caught:
        b.lock()
    assert caught.value.code == "lock.content-too-large"
    assert "content: cache" in caught.value.hint
    assert "largest" in caught.value.message
    assert not b.workspace.content_path("tuned").exists()


def test_content_that_no_lock_names_is_pruned(bench: Any) -> None:
    b = bench()
    locked = b.lock()
    stray = b.contents.committed.put(b"of an earlier lock")
    b.contents.prune(locked.content)
    assert stray not in b.contents.committed
    assert set(b.contents.committed.digests()) == set(locked.content)


def test_the_content_folder_holds_exactly_what_is_needed(bench: Any) -> None:
    b = bench()
    locked = b.lock()
    held = {d: b.contents.get(d) for d in CompressedStore(b.workspace.content_path("tuned")).digests()}
    texts = list(held.values())
    assert ENVS in texts
    assert SCHEDULER in texts
    assert b"OLD = True\n" not in texts
    assert b.space.base.raw in texts
    assert patch_content(locked.lock.inputs).keys() < held.keys()
    assert wanted_content(locked.lock.inputs, {}, {"linux/amd64": frozenset()}).keys() < held.keys()


def test_labels_and_annotations(bench: Any, tmp_path: Path) -> None:
    b = bench(platforms=("linux/amd64", "linux/arm64"))
    lock = b.lock().lock
    image = b.build(lock, tmp_path / "out")
    index = json.loads(image.top.raw)
    assert index["annotations"]["org.opencontainers.image.base.digest"] == str(b.space.base.digest)
    for document, platform in zip(image.manifests, lock.inputs.platforms, strict=True):
        value = json.loads(document.raw)
        assert value["annotations"]["org.opencontainers.image.base.digest"] == str(platform.manifest)
    config = json.loads(image.configs[0].raw)["config"]
    assert config["Labels"]["maintainer"] == "tests"
    assert {key.rpartition(".")[2] for key in config["Labels"]} >= {
        "target",
        "content-id",
        "overlays",
        "name",
        "digest",
    }
    assert str(lock.inputs.content_id) in config["Labels"].values()


def test_a_schema_2_base_gets_labels_and_no_annotations(bench: Any, tmp_path: Path) -> None:
    b = bench(family=mt.DOCKER)
    image = b.build(b.lock().lock, tmp_path / "out")
    manifest = json.loads(image.top.raw)
    assert "annotations" not in manifest
    assert {layer["mediaType"] for layer in manifest["layers"]} == {mt.DOCKER_LAYER_GZIP}
    assert manifest["mediaType"] == mt.DOCKER_MANIFEST
    assert len(json.loads(image.configs[0].raw)["config"]["Labels"]) > 5


def test_a_base_of_ours_becomes_the_parent(bench: Any) -> None:
    inputs = bench().lock().lock.inputs
    before = labels_for(inputs, inputs.base_digest, {})
    after = labels_for(inputs, inputs.base_digest, {**before, "maintainer": "x"})
    assert PARENT not in before
    assert after[PARENT] == str(inputs.content_id)


def test_what_makes_a_lock_stale(bench: Any) -> None:
    b = bench()
    lock = b.lock().lock

    def stale(**keys: Any) -> list[str]:
        b.space.write_target(**keys)
        target = b.workspace.target("tuned")
        return stale_parts(lock, target, b.workspace.series(target))

    assert stale() == []
    assert stale(description="only words", waiver=12) == []
    assert stale(env={"A": "1"}) == ["env has changed"]
    assert stale(roots={"engine": {"path": "/opt"}}) == ["roots has changed"]
    assert stale(base=f"oci:build/base:v2@{b.space.base.digest}") == ["the base has changed"]
    assert stale(identity={}) == ["identity has changed"]
    assert stale(derived={"record": "keep"}) == ["derived has changed"]
    assert stale(platforms=["linux/arm64"]) == ["platforms has changed"]


def test_differences_between_series_are_told_by_overlay(bench: Any) -> None:
    b = bench()
    b.space.write_overlay("more", changes="  - env: {A: '1'}\n", files={})
    target = b.workspace.target("tuned")
    tune, more = b.workspace.overlay("tune"), b.workspace.overlay("more")
    one, two = describe_wanted(target, [tune, more]), describe_wanted(target, [more, tune])
    assert list(differences(one, two)) == ["the order of the overlays has changed"]
    assert list(differences(describe_wanted(target, [tune]), one)) == ["overlay more is new"]
    assert list(differences(one, describe_wanted(target, [more]))) == ["overlay tune is gone"]


def test_the_digest_of_a_patch_is_that_of_its_meaning(bench: Any) -> None:
    """NixOS/nixpkgs#257446: the same diff served with longer index ids is the same patch."""
    b = bench()
    lock = b.lock().lock
    path = b.space.root / "overlays" / "tune" / "patches" / "0001-envs.patch"
    text = path.read_text()
    path.write_text(text.replace("--- a/", "index 1111111..2222222 100644\n--- a/"))
    target = b.workspace.target("tuned")
    first = stale_parts(lock, target, b.workspace.series(target))
    path.write_text(text.replace("--- a/", "index 11111111111..22222222222 100644\n--- a/"))
    assert (first, stale_parts(lock, target, b.workspace.series(target))) == ([], [])


def test_events_tell_what_happens(bench: Any, tmp_path: Path) -> None:
    b = bench()
    lock = b.lock(complete=True).lock
    names = [event.name for event in b.events if event.name != "progress"]
    assert names.count("layer.read") == 4
    done = [event.data for event in b.events if event.name == "progress"]
    assert {item["task"] for item in done if item["done"] == item["total"]} == {item["task"] for item in done}
    b.events.clear()
    b.build(lock, tmp_path / "out")
    assert [event.name for event in b.events] == ["changes.applied", "layer.made"]
    made = b.events[1].data
    assert made["digest"] == str(lock.result.platforms[0].layers[0].digest)
    json.dumps([event.data for event in b.events])
