"""What we say an import finds is what this interpreter's own finder finds, on random folders."""

from __future__ import annotations

import importlib.machinery
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.overlay.distributions import Distributions, Places
from imagebuild.overlay.module_search import PathEntry, Place, search
from imagebuild.testing.python_tree import folder_layer, python_tree

FOLDERS = ("one", "two", "three")
NOTHING = Distributions(Places((), (), (), (), True), ())
TAG = importlib.machinery.EXTENSION_SUFFIXES[0]
EXTENSIONS = st.sampled_from([f"p{TAG}", f"p/__init__{TAG}"])
FILES = EXTENSIONS | st.sampled_from(
    [
        "p.py",
        "p.pyc",
        "p.abi3.so",
        "p.so",
        "p.txt",
        "p.so.1",
        "p.other.so",
        "px/__init__.py",
        "px.py",
        "p/__init__.py",
        "p/__init__.pyc",
        "p/s.py",
        "p/s/__init__.py",
        "p/s/x.txt",
        "p/data",
    ]
)
TREES = st.fixed_dictionaries({folder: st.sets(FILES, max_size=4) for folder in FOLDERS})


def found_by_python(root: Path, name: str) -> tuple[str, ...]:
    """The folders or the file that PathFinder gives, below `root`."""
    path: list[str] | None = [str(root / folder) for folder in FOLDERS]
    spec = None
    for part in name.split("."):
        if path is None:
            return ()
        # A fresh finder each time: the cached ones look at a folder's time, which need not move between two examples.
        importlib.machinery.PathFinder.invalidate_caches()
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return ()
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    assert spec is not None
    places = path if path is not None else [spec.origin or ""]
    return tuple(str(Path(place).relative_to(root)) for place in places)


@settings(max_examples=60, deadline=None)
@given(TREES, st.sampled_from(["p", "p.s"]))
def test_search_finds_what_pathfinder_finds(tree: dict[str, set[str]], name: str) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        for folder, files in tree.items():
            (root / folder).mkdir()
            for file in sorted(files):
                (root / folder / file).parent.mkdir(parents=True, exist_ok=True)
                (root / folder / file).write_bytes(b"")
        view, _ = python_tree(folder_layer(root))
        entries = [PathEntry(Place.SITE, folder, folder) for folder in FOLDERS]
        ours = search(view, NOTHING, entries, (), name)
        theirs = found_by_python(root, name)
        if ours.winner is not None and not (root / ours.winner.path).is_dir():
            # Of several files of one module we name one; that it is a file of that module in that folder is what counts.
            assert len(theirs) == 1
            assert Path(theirs[0]).parent == Path(ours.winner.path).parent
            assert not (root / theirs[0]).is_dir()
        else:
            assert ours.folders == theirs
    finally:
        shutil.rmtree(root)
