"""The search path that we read off a virtual environment is the `sys.path` that its interpreter makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.module_search import Place
from imagebuild.overlay.roots import read_layout
from imagebuild.testing.python_tree import folder_layer, python_tree

pytestmark = pytest.mark.integration


def test_order_of_site_folders_and_pth_lines(tmp_path: Path) -> None:
    image = tmp_path / "image"
    venv.create(image / "opt/venv", with_pip=False, symlinks=True)
    site = image / f"opt/venv/lib/python3.{sys.version_info.minor}/site-packages"
    for folder in ("src/a", "src/b", "src/c", "pythonpath"):
        (image / folder).mkdir(parents=True)
    (site / "inner").mkdir()
    (image / "pythonpath/ignored.pth").write_text(f"{image}/src/c\n")
    (site / "b.pth").write_text(f"# comment\n\n{image}/src/b\n{image}/nowhere\ninner\n")
    (site / "a.pth").write_text(f"import os\n{image}/src/a   \n{image}/src/b\n")
    (site / "c.txt").write_text(f"{image}/src/c\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONPATH": f"{image}/pythonpath", "PYTHONNOUSERSITE": "1"}
    python = image / "opt/venv/bin/python"
    done = subprocess.run(
        [python, "-c", "import json, sys; print(json.dumps(sys.path))"],
        env=environment,
        capture_output=True,
        check=True,
        cwd=image / "src",
        timeout=60,
    )
    theirs = json.loads(done.stdout)
    theirs = [str(Path(path).relative_to(image)) for path in theirs if path.startswith(str(image))]

    layer = folder_layer(image)
    for path, data in layer.files.items():
        if path.endswith(".pth"):
            layer.files[path] = data.replace(str(image).encode(), b"")
    view, contents = python_tree(layer)
    config = RootConfig(("PYTHONPATH=/pythonpath", "PYTHONNOUSERSITE=1", "VIRTUAL_ENV=/opt/venv"), "/src")
    layout = read_layout(view, contents, config)
    (path,) = [path for path in layout.paths if path.interpreter == layout.default]
    ours = [entry.folder for entry in path.entries if entry.place not in (Place.STDLIB, Place.WORKDIR)]
    assert ours == theirs
    assert path.entries[0].folder == "src"
    assert [hook.line for hook in path.hooks if hook.path.endswith("a.pth")] == ["import os"]
