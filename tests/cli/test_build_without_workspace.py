"""`build --base REF --overlay DIR`: the image follows from base and overlay alone, not from where they lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import write_layout
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

BASE = engine_base(("linux/amd64", "linux/arm64"))


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    return SmallWorkspace(tmp_path / "somewhere", BASE).write_overlay()


def built(verb: Any, base: str, overlay: Path, *words: str) -> dict[str, Any]:
    done = verb("build", "--base", base, "--overlay", overlay, "--json", *words)
    assert done.code == 0, done.err
    document: dict[str, Any] = done.document
    return document


def test_the_folder_of_base_and_overlay_makes_no_other_image(
    tmp_path: Path, overlay: Path, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(tmp_path / "cache"))
    digests = set()
    for name, path in (("one", "base"), ("two", "deep/er/layout"), ("three", "base")):
        here = tmp_path / name
        write_layout(here / path, {"v1": BASE})
        shutil.copytree(overlay, here / "overlay" / overlay.name)
        monkeypatch.chdir(here)
        typed = str(here / path) if name == "three" else path
        document = built(verb, f"oci:{typed}:v1@{BASE.digest}", here / "overlay" / overlay.name, "--output", "oci:out")
        digests.add((document["digest"], document["content_id"]))
        tree = read_image_tree(LayoutSource(here / "out"), Digest.parse(document["digest"]))
        for child in tree.children.values():
            label = child.config.labels["org.opencontainers.image.base.name"]
            assert label == "oci:base:v1"
    assert len(digests) == 1


def test_a_base_that_is_not_there_is_named_as_typed(
    tmp_path: Path, overlay: Path, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = verb("build", "--base", f"oci:nowhere@{BASE.digest}", "--overlay", overlay, "--output", "oci:out")
    assert done.code in (2, 3)
    assert "nowhere" in done.err
    assert "imagebuild-" not in done.err


def test_a_schema_is_a_schema_with_json_too(verb: Any) -> None:
    """Editors read it: a document of ours around it would be none of theirs."""
    plain, asked = verb("schema", "target"), verb("schema", "target", "--json")
    assert plain.out == asked.out
    assert asked.document["$schema"].startswith("https://json-schema.org/")
