"""The SBOM in the dist-info of a patched distribution (PEP 770), as a scanner of the finished image finds it."""

from __future__ import annotations

import fnmatch
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.attest.predicates.package_sbom import PatchedFile, package_sbom
from imagebuild.attest.predicates.sbom import Package
from imagebuild.build.building import BaseFiles, build_image, platform_files
from imagebuild.build.derived import SBOM
from imagebuild.build.opening import Opener
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.host import clock
from imagebuild.oci.layout import LayoutSink
from imagebuild.testing.small_engine import CHANGES, INFO, SITE

PATTERN = "*.dist-info/sboms/*.cdx.json"
PATH = f"/{INFO}/sboms/imagebuild.cdx.json"


def scan(layout: Path) -> dict[str, dict[str, Any]]:
    """What a scanner that knows nothing of us finds: every PEP 770 document in the layers of the layout's images."""

    def blob(digest: str) -> bytes:
        return (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()

    found: dict[str, dict[str, Any]] = {}
    pending = list(json.loads((layout / "index.json").read_bytes())["manifests"])
    while pending:
        document = json.loads(blob(pending.pop()["digest"]))
        pending += document.get("manifests", [])
        for layer in document.get("layers", []):
            with tarfile.open(fileobj=io.BytesIO(blob(layer["digest"]))) as tar:
                for member in tar:
                    if fnmatch.fnmatch("/" + member.name, PATTERN):
                        stream = tar.extractfile(member)
                        assert stream is not None
                        found["/" + member.name] = json.loads(stream.read())
    return found


def built(bench: Any, tmp_path: Path) -> Path:
    lock = bench.lock().lock
    target = bench.workspace.target("tuned")
    base_files = BaseFiles(lock, Opener(bench.space.root), target, bench.contents, bench.facts, bench.emitter)
    series = bench.workspace.series(target)
    image = build_image(lock, target, series, bench.contents, base_files, tmp_path / "w", bench.emitter, bench.store)
    LayoutSink(tmp_path / "layout").store(replace(image, base=bench.source), None, complete=True)
    return tmp_path / "layout"


def files_of(bench: Any, lock: Any) -> dict[str, bytes]:
    target = bench.workspace.target("tuned")
    base_files = BaseFiles(lock, Opener(bench.space.root), target, bench.contents, bench.facts, bench.emitter)
    (platform,) = lock.inputs.platforms
    series = bench.workspace.series(target)
    return dict(platform_files(lock.inputs, platform, series, bench.contents, base_files, bench.store).changes)


def document(bench: Any) -> dict[str, Any]:
    return json.loads(files_of(bench, bench.lock().lock)[PATH])


def test_a_scanner_finds_the_patched_package(bench: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    found = scan(built(bench(), tmp_path))
    assert list(found) == [PATH]
    text = json.dumps(found[PATH])
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    (component,) = found[PATH]["components"]
    assert (component["name"], component["version"], component["purl"]) == ("engine", "1.0", "pkg:pypi/engine@1.0")
    (patch,) = component["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    assert [issue["id"] for issue in patch["resolves"]] == ["tune"]
    diff = patch["diff"]["text"]["content"]
    assert '+    "ENGINE_TUNED": lambda' in diff
    assert "-    return state + 17" in diff
    assert "Added by the overlay" not in diff, "a new file stands in the image itself"
    assert sorted((x["name"].rpartition(":")[2], x["value"]) for x in component["properties"]) == [
        ("added-file", f"/{SITE}/engine/extra.py"),
        ("changed-file", f"/{SITE}/engine/envs.py"),
        ("changed-file", f"/{SITE}/engine/scheduler.py"),
        ("removed-file", f"/{SITE}/engine/legacy.py"),
    ]


def test_its_record_row_and_the_provenance_file_have_its_digest(bench: Callable[..., Any]) -> None:
    b = bench()
    files = files_of(b, b.lock().lock)
    assert "sboms/imagebuild.cdx.json,sha256=" in files[f"/{INFO}/RECORD"].decode()
    assert json.loads(files[f"/{INFO}/imagebuild.json"])["files"][PATH] == {
        "preimage": "absent",
        "postimage": str(Digest.of(files[PATH])),
    }


def test_commentary_is_no_part_of_it(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """images.md, Writing 11: an edited author, link or licence changes no digest; nor do the day and the tool's version."""
    b = bench()
    before = b.lock().lock
    commented = (
        "author: A <a@example.org>\nlicense: Apache-2.0\norigin: {kind: upstream, url: https://example.org/pull/1}\n"
    )
    overlay = b.space.root / "overlays" / "tune" / "overlay.yaml"
    text = overlay.read_text()
    kept = [line for line in text.splitlines(True) if not line.startswith(("author:", "license:", "origin:"))]
    overlay.write_text("".join(kept) + commented)
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + 1e8)
    monkeypatch.setattr("imagebuild.__version__", "99.0")
    assert b.lock().lock.result == before.result
    assert "99.0" not in json.dumps(document(b))
    assert document(b)["metadata"]["timestamp"] == clock.rfc3339(before.inputs.created)


def test_a_replaced_file_has_no_diff_that_would_depend_on_the_cache(bench: Callable[..., Any]) -> None:
    b = bench()
    b.space.write_overlay(changes="  - file: files/extra.py\n    to: engine/envs.py\n")
    overlay = b.space.root / "overlays" / "tune" / "overlay.yaml"
    assert "engine/envs.py" in overlay.read_text()
    (patch,) = document(b)["components"][0]["pedigree"]["patches"]
    assert "diff" not in patch


def test_a_kept_record_does_not_keep_the_sbom_out(bench: Callable[..., Any]) -> None:
    b = bench()
    b.space.write_target(derived={"record": "keep"})
    assert document(b)["components"][0]["name"] == "engine"


def test_a_lost_document_is_told_and_never_made_up(bench: Callable[..., Any]) -> None:
    b = bench()
    lock = b.lock().lock
    (digest,) = [x.postimage for x in lock.inputs.platforms[0].changes if x.origin.startswith(SBOM)]
    b.contents.committed.path(digest).unlink()
    b.contents.cache.remove(digest)
    with pytest.raises(RefusedError) as caught:
        files_of(b, lock)
    assert (caught.value.code, caught.value.expected) == ("lock.content-missing", str(digest))


def test_equal_facts_give_equal_bytes_whatever_their_order() -> None:
    files = [PatchedFile("/b", "changed", ("one",), b"--- a\n"), PatchedFile("/a", "added", ("one", "two"))]
    package = Package.of("x/Some_Engine-1.0+cu130.dist-info")
    assert package is not None
    one = package_sbom(package, files, 1_700_000_000)
    assert one == package_sbom(package, files[::-1], 1_700_000_000)
    assert one != package_sbom(package, files, 1_700_000_001)
    (component,) = json.loads(one)["components"]
    assert component["purl"] == "pkg:pypi/some-engine@1.0%2Bcu130"
    assert [[x["id"] for x in patch["resolves"]] for patch in component["pedigree"]["patches"]] == [
        ["one", "two"],
        ["one"],
    ]


def test_a_diff_that_is_no_text_or_too_long_is_left_out() -> None:
    package = Package("", "engine", "1.0")
    for diff in (b"-\xff\n", b"-" * ((1 << 20) + 1)):
        (patch,) = json.loads(package_sbom(package, [PatchedFile("/a", "changed", ("one",), diff)], 0))["components"][
            0
        ]["pedigree"]["patches"]
        assert "diff" not in patch


assert CHANGES.count("- ") == 4, "the cases above are written for these changes"
