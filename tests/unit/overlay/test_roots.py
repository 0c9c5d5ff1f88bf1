"""Where roots are found in made-up images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.roots import Root, find_root, read_layout
from imagebuild.testing.python_tree import TreeLayer, python_tree

DIST = "usr/local/lib/python3.12/dist-packages"
SITE = "opt/venv/lib/python3.12/site-packages"


@dataclass(frozen=True)
class Spec:
    python: str | None = None
    path: str | None = None
    purelib: bool = False


def package(site: str, name: str = "vllm", version: str = "0.33.0") -> dict[str, bytes]:
    return {
        f"{site}/{name}/__init__.py": b"",
        f"{site}/{name}/models/__init__.py": b"",
        f"{site}/{name}-{version}.dist-info/RECORD": f"{name}/__init__.py,,\n{name}/models/__init__.py,,\n".encode(),
        f"{site}/{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n".encode(),
    }


def debian(**files: bytes) -> dict[str, bytes]:
    return {
        "usr/bin/python3.12": b"ELF",
        "usr/lib/python3.12/os.py": b"",
        "usr/lib/python3/dist-packages/": b"",
        f"{DIST}/": b"",
        **files,
    }


def system() -> TreeLayer:
    return TreeLayer(debian(), links={"usr/bin/python3": "python3.12", "bin": "usr/bin"})


def find(spec: Spec, *layers: TreeLayer | Mapping[str, bytes] | None, env: tuple[str, ...] = (), **config: str) -> Root:
    view, contents = python_tree(*layers)
    return find_root(spec, view, contents, RootConfig(env, **config), name="r")


def code(spec: Spec, *layers: TreeLayer | Mapping[str, bytes] | None, env: tuple[str, ...] = ()) -> str:
    with pytest.raises((RefusedError, UnavailableError, InputError)) as caught:
        find(spec, *layers, env=env)
    return caught.value.code


def test_a_package_of_debians_interpreter() -> None:
    root = find(Spec("vllm"), system(), package(DIST))
    assert (root.folder, root.site) == (f"{DIST}/vllm", DIST)
    assert root.distribution is not None
    assert root.distribution.name == "vllm"
    assert root.not_proven == ()
    assert any("python3 of PATH is /usr/bin/python3" in text for text in root.evidence)


def test_a_subpackage_by_its_dotted_name() -> None:
    root = find(Spec("vllm.models"), system(), package(DIST))
    assert (root.folder, root.site) == (f"{DIST}/vllm/models", DIST)


def test_debian_looks_in_usr_local_before_its_own_folder() -> None:
    both = package(DIST) | package("usr/lib/python3/dist-packages", version="0.1")
    root = find(Spec("vllm"), system(), both)
    assert root.folder == f"{DIST}/vllm"


def test_a_site_folder_behind_a_link_is_resolved() -> None:
    layer = TreeLayer(
        {"usr/local/bin/python3.12": b"ELF", "usr/local/lib/python3.12/os.py": b"", **package("srv/packages")},
        links={"usr/local/bin/python3": "python3.12", "usr/local/lib/python3.12/site-packages": "/srv/packages"},
    )
    assert find(Spec("vllm"), layer).folder == "srv/packages/vllm"


def venv(settings: bytes = b"home = /usr/bin\nversion = 3.12.3\n") -> TreeLayer:
    return TreeLayer(
        {"opt/venv/pyvenv.cfg": settings, **package(SITE)}, links={"opt/venv/bin/python3": "/usr/bin/python3"}
    )


PATHS = ("PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV=/opt/venv")


def test_the_virtual_environment_of_path_decides() -> None:
    root = find(Spec("vllm"), system(), package(DIST), venv(), env=PATHS)
    assert root.folder == f"{SITE}/vllm"


def test_without_it_in_path_the_system_decides() -> None:
    assert find(Spec("vllm"), system(), package(DIST), venv()).folder == f"{DIST}/vllm"


def test_an_environment_that_path_does_not_name_is_taken_where_it_alone_has_the_package() -> None:
    root = find(Spec("vllm"), system(), venv())
    assert root.folder == f"{SITE}/vllm"
    assert any("opt/venv" in text for text in root.evidence)


def test_two_environments_and_no_interpreter_to_decide_are_ambiguous() -> None:
    layer = venv()
    layer.files |= {"opt/two/pyvenv.cfg": b"home = /usr/bin\n", **package("opt/two/lib/python3.12/site-packages")}
    with pytest.raises(RefusedError) as caught:
        find(Spec("vllm"), system(), layer)
    assert caught.value.code == "overlay.root-ambiguous"
    assert caught.value.details["candidates"] == ["/opt/two/lib/python3.12/site-packages/vllm", f"/{SITE}/vllm"]
    assert "path:" in str(caught.value.hint)


def test_a_package_of_the_system_is_seen_from_an_environment_that_asks_for_it() -> None:
    layer = TreeLayer(
        {"opt/venv/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = true\n", f"{SITE}/": b""},
        links={"opt/venv/bin/python3": "/usr/bin/python3"},
    )
    assert find(Spec("vllm"), system(), package(DIST), layer, env=PATHS).folder == f"{DIST}/vllm"


def test_a_copy_in_an_installers_cache_is_no_candidate() -> None:
    cache = package("root/.cache/uv/archive-v0/abc")
    assert find(Spec("vllm"), system(), cache, package(DIST)).folder == f"{DIST}/vllm"
    assert code(Spec("vllm"), system(), cache) == "overlay.root-not-found"


def test_a_plain_pth_line_leads_to_the_project() -> None:
    site = {f"{DIST}/__editable__.vllm-0.33.0.pth": b"# c\n\n/workspace/vllm/src\n"}
    url = json.dumps({"url": "file:///workspace/vllm", "dir_info": {"editable": True}}).encode()
    info = {
        f"{DIST}/vllm-0.33.0.dist-info/direct_url.json": url,
        f"{DIST}/vllm-0.33.0.dist-info/RECORD": b"__editable__.vllm-0.33.0.pth,,\n",
        f"{DIST}/vllm-0.33.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.33.0\n",
    }
    root = find(Spec("vllm"), system(), site | info | {"workspace/vllm/src/vllm/__init__.py": b""})
    assert root.folder == "workspace/vllm/src/vllm"
    assert root.distribution is not None
    assert root.distribution.editable == "workspace/vllm"


def test_an_installed_copy_in_the_same_site_folder_wins_over_a_pth_line() -> None:
    pth = {f"{DIST}/x.pth": b"/workspace/vllm\n", "workspace/vllm/vllm/__init__.py": b""}
    assert find(Spec("vllm"), system(), package(DIST) | pth).folder == f"{DIST}/vllm"


def test_the_project_is_also_workdir_and_that_is_no_shadow() -> None:
    pth = {f"{DIST}/x.pth": b"/workspace\n", "workspace/vllm/__init__.py": b""}
    assert find(Spec("vllm"), system(), pth, working_dir="/workspace").folder == "workspace/vllm"


FINDER = b"""import sys
MAPPING: dict[str, str] = {'vllm': '/workspace/vllm/python/vllm'}
def install():
    if not any(finder == _EditableFinder for finder in sys.meta_path):
        sys.meta_path.append(_EditableFinder)
"""


def test_setuptools_editable_finder_is_read() -> None:
    files = {
        f"{DIST}/__editable__.vllm-0.33.0.pth": b"import __editable___vllm_0_33_finder; "
        b"__editable___vllm_0_33_finder.install()\n",
        f"{DIST}/__editable___vllm_0_33_finder.py": FINDER,
        "workspace/vllm/python/vllm/__init__.py": b"",
    }
    assert find(Spec("vllm"), system(), files).folder == "workspace/vllm/python/vllm"
    assert find(Spec("vllm"), system(), files | package(DIST)).folder == f"{DIST}/vllm"


def test_a_namespace_package_is_found_through_its_one_portion() -> None:
    files = {f"{DIST}/google/cloud/m.py": b"", f"{DIST}/google/proto/__init__.py": b""}
    assert find(Spec("google.cloud"), system(), files).folder == f"{DIST}/google/cloud"
    assert find(Spec("google"), system(), files).folder == f"{DIST}/google"


def test_a_package_in_the_second_portion_of_a_namespace() -> None:
    files = {f"{DIST}/google/a/__init__.py": b"", "usr/lib/python3/dist-packages/google/b/__init__.py": b""}
    assert find(Spec("google.b"), system(), files).folder == "usr/lib/python3/dist-packages/google/b"


def test_a_namespace_of_two_portions_is_ambiguous() -> None:
    files = {f"{DIST}/google/a/__init__.py": b"", "usr/lib/python3/dist-packages/google/b/__init__.py": b""}
    assert code(Spec("google"), system(), files) == "overlay.root-ambiguous"


def test_a_package_later_on_the_path_beats_an_earlier_folder_without_init() -> None:
    files = {f"{DIST}/vllm/stray.txt": b"", **package("usr/lib/python3/dist-packages")}
    root = find(Spec("vllm"), system(), files)
    assert root.folder == "usr/lib/python3/dist-packages/vllm"
    assert f"{DIST}/vllm/__init__.py" in [shadow.path for shadow in root.shadows]


def test_a_single_file_module_is_refused() -> None:
    assert code(Spec("six"), system(), {f"{DIST}/six.py": b""}) == "overlay.root-is-a-file"
    assert code(Spec("six"), system(), {f"{DIST}/six.py": b"", f"{DIST}/six/x.txt": b""}) == "overlay.root-is-a-file"
    assert code(Spec("six.moves"), system(), {f"{DIST}/six.py": b""}) == "overlay.root-not-found"


def test_an_unknown_package_names_the_editable_ones() -> None:
    with pytest.raises(RefusedError) as caught:
        find(Spec("nowhere"), system(), {f"{DIST}/aiter.egg-link": b"/sgl/aiter\n."})
    assert caught.value.code == "overlay.root-not-found"
    assert "aiter is editable: /sgl/aiter" in str(caught.value.found)


def test_only_in_workdir_is_not_installed() -> None:
    view, contents = python_tree(system(), {"workspace/vllm/__init__.py": b""})
    with pytest.raises(RefusedError) as caught:
        find_root(Spec("vllm"), view, contents, RootConfig((), "/workspace"), name="r")
    assert caught.value.code == "overlay.root-not-found"


def test_only_on_pythonpath_is_found_there() -> None:
    root = find(Spec("vllm"), system(), package("opt/target"), env=("PYTHONPATH=/opt/target",))
    assert (root.folder, root.site) == ("opt/target/vllm", "opt/target")


def test_a_pth_file_on_pythonpath_is_not_read() -> None:
    files = {"opt/target/x.pth": b"/workspace\n", "workspace/vllm/__init__.py": b""}
    assert code(Spec("vllm"), system(), files, env=("PYTHONPATH=/opt/target",)) == "overlay.root-not-found"


def test_a_folder_by_its_path_through_a_link() -> None:
    layer = TreeLayer({"srv/code/": b""}, links={"code": "/srv/code"})
    root = find(Spec(path="/code"), layer)
    assert (root.folder, root.distribution, root.site) == ("srv/code", None, "")


def test_a_path_root_that_the_base_does_not_have() -> None:
    assert find(Spec(path="/opt/new"), {"a": b""}).shadows[0].state.value == "absent"
    assert code(Spec(path="/opt/new"), None, {"a": b""}) == "overlay.root-unread"


@pytest.mark.parametrize("path", ["relative", "/a/../b"])
def test_a_bad_path_root(path: str) -> None:
    assert code(Spec(path=path), {"a": b""}) == "overlay.bad-root"


def test_a_path_root_that_is_a_file() -> None:
    assert code(Spec(path="/a"), {"a": b""}) == "overlay.root-is-a-file"


def test_purelib_is_where_pip_would_install() -> None:
    assert find(Spec(purelib=True), system()).folder == DIST
    assert find(Spec(purelib=True), system(), venv(), env=PATHS).folder == SITE


def test_purelib_of_several_and_no_default_is_ambiguous() -> None:
    layer = venv()
    layer.files |= {"opt/two/pyvenv.cfg": b"home = /usr/bin\n", "opt/two/lib/python3.12/site-packages/": b""}
    assert code(Spec(purelib=True), layer) == "overlay.root-ambiguous"
    assert code(Spec(purelib=True), {"etc/os-release": b""}) == "overlay.root-not-found"


def test_fedora_looks_in_usr_local_and_lib64_first() -> None:
    layer = TreeLayer(
        {
            "usr/bin/python3.12": b"ELF",
            "usr/lib64/python3.12/os.py": b"",
            "usr/lib64/python3.12/site-packages/": b"",
            "usr/local/lib/python3.12/site-packages/": b"",
            **package("usr/lib/python3.12/site-packages"),
        },
        links={"usr/bin/python3": "python3.12"},
    )
    root = find(Spec("vllm"), layer)
    assert root.folder == "usr/lib/python3.12/site-packages/vllm"
    order = read_layout(*python_tree(layer), RootConfig()).import_order()
    assert order.index("usr/local/lib/python3.12/site-packages") < order.index("usr/lib64/python3.12/site-packages")
