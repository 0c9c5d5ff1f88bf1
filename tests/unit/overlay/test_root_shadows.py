"""What may be imported in place of an installed package, and what cannot be told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.overlay.import_hooks import Effect, finder_mapping, judge_line, judge_text
from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.roots import Root, find_root
from imagebuild.overlay.search_path import ShadowState
from imagebuild.testing.python_tree import TreeLayer, python_tree

SITE = "usr/local/lib/python3.12/dist-packages"
STDLIB = "usr/lib/python3.12"


class Vllm:
    python = "vllm"
    path = None
    purelib = False


def base(**more: bytes) -> TreeLayer:
    return TreeLayer(
        {
            "usr/bin/python3.12": b"ELF",
            f"{STDLIB}/os.py": b"",
            "usr/lib/python3/dist-packages/": b"",
            f"{SITE}/vllm/__init__.py": b"",
            f"{SITE}/vllm-0.33.0.dist-info/RECORD": b"vllm/__init__.py,,\n",
            f"{SITE}/vllm-0.33.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.33.0\n",
        },
        links={"usr/bin/python3": "python3.12"},
    )


def find(*layers: TreeLayer | Mapping[str, bytes] | None, config: RootConfig | None = None) -> Root:
    view, contents = python_tree(*layers)
    return find_root(Vllm(), view, contents, config or RootConfig(), name="vllm")


def refused(*layers: TreeLayer | Mapping[str, bytes] | None, config: RootConfig | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        find(*layers, config=config)
    assert caught.value.code == "overlay.root-shadowed"
    assert caught.value.details["path"] == f"/{SITE}/vllm"
    return caught.value


@pytest.mark.parametrize("name", ["vllm.py", "vllm/__init__.py", "vllm.so", "vllm.abi3.so", "vllm.cpython-312-x.so"])
def test_a_copy_under_workdir(name: str) -> None:
    error = refused(base(), {f"srv/app/{name}": b""}, config=RootConfig((), "/srv/app"))
    assert "WORKDIR" in error.message
    assert "/srv/app/vllm" in str(error.found)


@pytest.mark.parametrize("name", ["srv/vllm.py", "srv/vllm/__init__.py", "srv/vllm/models/__init__.py"])
def test_a_copy_of_the_top_level_name_hides_a_dotted_one(name: str) -> None:
    class Models:
        python = "vllm.models"
        path = None
        purelib = False

    files = {f"{SITE}/vllm/models/__init__.py": b"", name: b""}
    view, contents = python_tree(base(), files)
    config = RootConfig((), "/srv")
    if name.endswith("models/__init__.py"):
        # A folder without __init__ hides nothing.
        assert find_root(Models(), view, contents, config, name="m").folder == f"{SITE}/vllm/models"
        return
    with pytest.raises(RefusedError) as caught:
        find_root(Models(), view, contents, config, name="m")
    assert caught.value.code == "overlay.root-shadowed"


def test_a_checkout_under_workdir_is_no_package_and_no_shadow() -> None:
    root = find(base(), {"srv/app/vllm/vllm/__init__.py": b""}, config=RootConfig((), "/srv/app"))
    assert ("srv/app/vllm/__init__.py", ShadowState.ABSENT) in [(item.path, item.state) for item in root.shadows]


def test_a_program_of_that_name_under_workdir_is_no_shadow() -> None:
    root = find(base(), {"usr/local/bin/vllm": b"#!"}, config=RootConfig((), "/usr/local/bin"))
    assert ("usr/local/bin/vllm", ShadowState.PRESENT) in [(item.path, item.state) for item in root.shadows]
    assert ("usr/local/bin/vllm.py", ShadowState.ABSENT) in [(item.path, item.state) for item in root.shadows]


def test_a_dangling_link_of_that_name_is_no_shadow() -> None:
    find(base(), TreeLayer(links={"srv/vllm.py": "/nowhere"}), config=RootConfig((), "/srv"))


def test_workdir_does_not_count_in_safe_path_mode() -> None:
    config = RootConfig(("PYTHONSAFEPATH=1",), "/srv")
    assert find(base(), {"srv/vllm.py": b""}, config=config).folder == f"{SITE}/vllm"


@pytest.mark.parametrize("value", ["/opt/x:/srv", "srv", "/nowhere::/etc"])
def test_a_copy_on_pythonpath(value: str) -> None:
    config = RootConfig((f"PYTHONPATH={value}", "PYTHONSAFEPATH=1"), "/srv" if "::" in value else "/")
    error = refused(base(), {"srv/vllm/__init__.py": b""}, config=config)
    assert "PYTHONPATH" in error.message


def test_pythonpath_that_names_the_site_folder_is_no_shadow() -> None:
    assert find(base(), config=RootConfig((f"PYTHONPATH=/{SITE}",))).folder == f"{SITE}/vllm"


def test_a_copy_in_roots_user_site_whatever_the_user() -> None:
    user_site = {"root/.local/lib/python3.12/site-packages/vllm/__init__.py": b""}
    for user in ("", "root", "1000"):
        assert "user site" in refused(base(), user_site, config=RootConfig(user=user)).message
    assert find(base(), user_site, config=RootConfig(("PYTHONNOUSERSITE=1",))).folder == f"{SITE}/vllm"
    assert find(base(), {"root/.local/lib/python3.11/site-packages/vllm/__init__.py": b""}).folder == f"{SITE}/vllm"


def test_the_user_site_of_home_and_of_passwd() -> None:
    copy = {"data/me/.local/lib/python3.12/site-packages/vllm.py": b""}
    refused(base(), copy, config=RootConfig(("HOME=/data/me",)))
    passwd = {"etc/passwd": b"root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/data/me:/bin/sh\n"}
    for user in ("me", "1000:1000"):
        refused(base(), copy | passwd, config=RootConfig(user=user))


def test_a_copy_beside_the_standard_library() -> None:
    assert "standard library" in refused(base(), {f"{STDLIB}/vllm/__init__.py": b""}).message


APPORT = b"""# install the apport exception handler if available
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""


@pytest.mark.parametrize("text", [APPORT, b"# Empty sitecustomize.py to avoid a dangling symlink\n", b"import os\n"])
def test_a_harmless_sitecustomize_behind_debians_link(text: bytes) -> None:
    link = TreeLayer(
        {"etc/python3.12/sitecustomize.py": text},
        links={f"{STDLIB}/sitecustomize.py": "/etc/python3.12/sitecustomize.py"},
    )
    root = find(base(), link)
    assert root.not_proven == ()
    assert any("sitecustomize" in text for text in root.evidence)
    assert f"{STDLIB}/sitecustomize.py" in [item.path for item in root.shadows]


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_customize_module_that_changes_imports(name: str) -> None:
    error = refused(base(), {f"{SITE}/{name}.py": b"import sys\nsys.path.insert(0, '/opt/x')\n"})
    assert name in error.message
    refused(base(), {f"{SITE}/{name}.py": b"import my_vllm_patches\n"})
    refused(base(), {f"{SITE}/{name}.so": b"\x7fELF"})


def test_a_customize_module_that_runs_others_is_not_proven() -> None:
    root = find(base(), {f"{SITE}/sitecustomize.py": b"import tracer\n"})
    assert any("tracer" in text for text in root.not_proven)


def test_only_the_first_customize_module_runs() -> None:
    files = {f"{STDLIB}/sitecustomize.py": APPORT, f"{SITE}/sitecustomize.py": b"import vllm\n"}
    assert find(base(), files).folder == f"{SITE}/vllm"


def pth(line: str, name: str = "hook.pth", **modules: bytes) -> dict[str, bytes]:
    files = {f"{SITE}/{name}": line.encode() + b"\n"}
    return files | {f"{SITE}/{module}.py": text for module, text in modules.items()}


DISTUTILS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack'); "
)


@pytest.mark.parametrize(
    "files",
    [
        pth(DISTUTILS, "distutils-precedence.pth"),
        pth("import _virtualenv", "_virtualenv.pth"),
        pth("import coverage; coverage.process_startup()", "coverage.pth"),
        pth("import _cuda_bindings_redirector", "_cuda_bindings_redirector.pth"),
        pth(
            "import sys, types, os;p = os.path.join(sys._getframe(1).f_locals['sitedir'], *('google',));"
            "m = sys.modules.setdefault('google', types.ModuleType('google'))",
            "protobuf-nspkg.pth",
        ),
        pth("import _quiet", _quiet=b"import warnings\n"),
    ],
    ids=lambda files: next(iter(files)).rpartition("/")[2],
)
def test_known_and_readable_hooks_are_harmless(files: dict[str, bytes]) -> None:
    root = find(base(), files)
    assert root.not_proven == ()
    assert any(next(iter(files)) in text for text in root.evidence)


@pytest.mark.parametrize(
    "files",
    [
        pth("import _vllm_editable", "x.pth"),
        pth("import _hook", _hook=b"PACKAGES = {'vllm': '/x'}\n"),
        pth("import sys; sys.path.insert(0, '/opt/x')"),
        pth("import sys; sys.meta_path.insert(0, object())", "distutils-precedence.pth"),
        pth("import site; site.addsitedir('/opt/x')"),
        pth("import importlib; exec('x')"),
        pth("import coverage, sys; sys.path.insert(0, '/opt/x')", "coverage.pth"),
        pth(
            "import sys, types, os;p = os.path.join(sys._getframe(1).f_locals['sitedir'], *('vllm',));"
            "m = sys.modules.setdefault('vllm', types.ModuleType('vllm'))",
            "vllm-nspkg.pth",
        ),
    ],
    ids=lambda files: next(iter(files.values())).decode().strip()[:40],
)
def test_hooks_that_name_the_package_or_change_imports_are_refused(files: dict[str, bytes]) -> None:
    assert ".pth" in refused(base(), files).message


@pytest.mark.parametrize(
    "files", [pth("import tracer"), pth("import _hook", _hook=b"import sys\nsys.meta_path.append(Other())\n")]
)
def test_hooks_that_cannot_be_judged_are_not_proven(files: dict[str, bytes]) -> None:
    root = find(base(), files)
    assert len(root.not_proven) == 1
    assert "hook.pth" in root.not_proven[0]


def test_a_pth_file_that_was_not_captured_is_not_proven() -> None:
    view, contents = python_tree(base(), pth("/x"), hidden=frozenset({f"{SITE}/hook.pth"}))
    root = find_root(Vllm(), view, contents, RootConfig(), name="vllm")
    assert any("hook.pth" in text for text in root.not_proven)


def test_unread_layers_leave_every_place_that_they_could_hold_not_proven() -> None:
    root = find(None, base(), config=RootConfig(("PYTHONPATH=/opt/x",), "/srv"))
    assert root.folder == f"{SITE}/vllm"
    words = "\n".join(root.not_proven)
    for place in ("WORKDIR", "PYTHONPATH", "standard library", "user site", "sitecustomize"):
        assert place in words, place
    assert {item.state for item in root.shadows if "srv" in item.path} == {ShadowState.NOT_PROVEN}


def test_opaque_folders_of_read_layers_prove_absence() -> None:
    upper = TreeLayer({"srv/": b""}, opaques=frozenset({"srv"}))
    root = find(None, base(), upper, config=RootConfig((), "/srv"))
    assert not any("WORKDIR" in text for text in root.not_proven)
    assert ("srv/vllm.py", ShadowState.ABSENT) in [(item.path, item.state) for item in root.shadows]


def test_a_record_of_a_read_layer_finds_a_package_of_an_unread_one() -> None:
    files = {f"{SITE}/vllm-0.33.0.dist-info/RECORD": b"vllm/__init__.py,,\n", f"{SITE}/vllm/envs.py": b""}
    root = find(None, files)
    assert root.folder == f"{SITE}/vllm"
    assert any("RECORD lists it" in text or "is there" in text for text in root.evidence)


def test_a_package_that_no_read_layer_shows_is_unread_not_missing() -> None:
    with pytest.raises(UnavailableError) as caught:
        find(None, {"etc/x": b""})
    assert caught.value.code == "overlay.root-unread"


def test_pythonhome_is_not_proven() -> None:
    assert any("PYTHONHOME" in text for text in find(base(), config=RootConfig(("PYTHONHOME=/x",))).not_proven)


def test_a_finder_for_another_package_is_read_and_harmless() -> None:
    text = "MAPPING: dict[str, str] = {'other': '/x'}\nsys.meta_path.append(_EditableFinder)\n"
    assert finder_mapping(text) == {"other": "/x"}
    verdict = judge_line("a.pth", "import __editable___vllm_finder", "vllm", {"__editable___vllm_finder": text})
    assert verdict.effect is Effect.HARMLESS


@pytest.mark.parametrize("mapping", ["{'a': 1}", "{'a'}", "{'a': __import__('os')}", "{" * 500 + "}" * 500])
def test_a_mapping_that_is_no_mapping_of_texts_is_not_believed(mapping: str) -> None:
    assert finder_mapping(f"MAPPING = {mapping}\nsys.meta_path.append(_EditableFinder)\n") is None


def test_words_are_compared_whole() -> None:
    assert judge_text("import os  # vllms\n", "vllm").effect is Effect.HARMLESS
    assert judge_text("x = '_vllm_x'\n", "vllm").effect is Effect.SHADOWS
