"""The artefacts layer is checked entry by entry, as the changes are; identity rests on it."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from test_tampering import Case, failed
from wheel_bench import Wheels

from imagebuild.testing.small_engine import SITE


@pytest.fixture
def case(wheels: Callable[..., Wheels], tmp_path: Path) -> Case:
    w = wheels()
    w.overlay(
        w.make("plugin", "1.0", {"plugin/__init__.py": b"x = 1\n"}),
        "  - edit: {path: engine/envs.py, find: '8000', replace: '9000'}\n",
        identity={"engine": "1.0", "plugin": "1.0"},
    )
    lock = w.b.lock().lock
    return Case(w.b, lock, w.b.build(lock, tmp_path / "build"))


def test_the_image_as_it_was_built_is_good(case: Case) -> None:
    found = case.verify(case.untouched())
    assert failed(found) == {}
    identity = [check for check in found.checks if check.code == "verify.identity"]
    assert [check.passed for check in identity] == [True, True]


def test_other_bytes_in_the_artefacts_layer_are_found(case: Case) -> None:
    opened = case.opened()
    number = len(opened.layers) - 2
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(gzip.decompress(opened.layers[number]))) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for head in old:
            stream = old.extractfile(head)
            data = b"" if stream is None else stream.read()
            if head.name.endswith("plugin/__init__.py"):
                data = b"x = 2\n"
            head.size = len(data)
            new.addfile(head, io.BytesIO(data))
    opened.set_layer(number, out.getvalue())
    found = case.verify(opened.closed())
    wrong = failed(found)
    assert f"/{SITE}/plugin/__init__.py" in wrong["verify.layer-content"].message
    assert {check.passed for check in found.checks if check.code == "verify.identity"} == {False}


def test_an_image_without_its_artefacts_is_found(case: Case) -> None:
    opened = case.opened()
    number = len(opened.layers) - 2
    for values in (opened.layers, opened.manifest["layers"], opened.config["rootfs"]["diff_ids"]):
        del values[number]
    assert "verify.layer-count" in failed(case.verify(opened.closed()))
