"""Installed versions that a wheel is to replace, and those that cannot be taken out (images.md, the artefacts layer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wheel_bench import AMD64, Wheels, items, with_layer

from imagebuild.testing.images import File, Folder, ImageSpec, LayerSpec, make_image
from imagebuild.testing.small_engine import CONFIG, SITE, distribution, interpreter_layer, root_layer, with_folders


def engine_with(info: dict[str, bytes | None]) -> Any:
    """A base whose engine has other files in its dist-info; None takes one out."""
    files = distribution("engine", "1.0", {"engine/__init__.py": b""})
    for name, data in info.items():
        if data is None:
            files.pop(f"engine-1.0.dist-info/{name}")
        else:
            files[f"engine-1.0.dist-info/{name}"] = data
    return files


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"RECORD": None}, "no RECORD"),
        ({"RECORD": b"engine/__init__.py,,\n"}, "does not list its own METADATA"),
        ({"RECORD": b'"never closed'}, "could not be read"),
        ({"direct_url.json": b'{"url": "file:///src", "dir_info": {"editable": true}}'}, "editable"),
        ({"RECORD": b"engine-1.0.dist-info/METADATA,,\n../../../../../etc/passwd,,\n"}, "outside"),
    ],
)
def test_installations_that_cannot_be_taken_out(
    wheels: Callable[..., Wheels], info: dict[str, bytes | None], why: str
) -> None:
    files = [File(f"{SITE}/{path}", data) for path, data in engine_with(info).items()]
    stack = (root_layer(AMD64), interpreter_layer(), with_folders(files))
    base = make_image(ImageSpec(tuple(LayerSpec(layer) for layer in stack), AMD64, config=CONFIG))
    w = wheels(base)
    w.overlay(w.make("engine", "2.0", {"engine/__init__.py": b"2\n"}), identity=None, roots=None)
    error = w.refused()
    assert error.code == "overlay.wheel-unremovable"
    assert why in error.message


def test_what_no_record_lists_stays_and_is_said(wheels: Callable[..., Wheels]) -> None:
    w = wheels(with_layer(File(f"{SITE}/engine/local_fix.py", b""), File(f"{SITE}/engine/cache.bin", b"")))
    w.overlay(w.make("engine", "2.0", {"engine/__init__.py": b"2\n"}), identity=None)
    locked = w.b.lock()
    (left,) = [finding for finding in locked.findings if finding.code == "overlay.wheel-leftover"]
    assert f"/{SITE}/engine/local_fix.py" in left.message
    assert f"/{SITE}/engine/local_fix.py" not in items(locked.lock)


@pytest.mark.parametrize(
    ("site", "code"),
    [("root/.local/lib/python3.12/site-packages", "overlay.wheel-shadowed"), ("usr/lib/python3/dist-packages", None)],
)
def test_installations_in_other_folders_of_the_interpreter(
    wheels: Callable[..., Wheels], site: str, code: str | None
) -> None:
    """The user's folder is searched first, that of the system's packages last."""
    files = [File(f"{site}/{path}", data) for path, data in distribution("plugin", "0.9", {"plugin.py": b""}).items()]
    w = wheels(with_layer(*with_folders(files, [Folder("root", 0o700)])))
    w.overlay(w.make("plugin", "1.0", {"plugin.py": b"1\n"}))
    if code is not None:
        assert w.refused().code == code
        return
    locked = w.b.lock()
    (stays,) = [finding for finding in locked.findings if finding.code == "overlay.wheel-older-copy"]
    assert stays.path == f"{site}/plugin-0.9.dist-info"
    assert not any(item.kind == "whiteout" for item in items(locked.lock).values())
