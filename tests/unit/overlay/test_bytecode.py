"""Compiled forms of changed sources, and the time that keeps the others from fitting."""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path

import pytest

from imagebuild.overlay.bytecode import PycKind, find_bytecode, find_jit_caches, parse_pyc_head
from imagebuild.overlay.findings import Severity
from imagebuild.overlay.times import entry_time
from imagebuild.testing.python_tree import TreeLayer, python_tree

PKG = "usr/lib/python3/dist-packages/pkg"
CACHE = f"{PKG}/__pycache__"


def head(flags: int, first: int = 0, second: int = 0) -> bytes:
    words = flags.to_bytes(4, "little") + first.to_bytes(4, "little") + second.to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + words


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (py_compile.PycInvalidationMode.TIMESTAMP, PycKind.TIMESTAMP),
        (py_compile.PycInvalidationMode.CHECKED_HASH, PycKind.CHECKED_HASH),
        (py_compile.PycInvalidationMode.UNCHECKED_HASH, PycKind.UNCHECKED_HASH),
    ],
)
def test_heads_as_this_python_writes_them(tmp_path: Path, mode: py_compile.PycInvalidationMode, kind: PycKind) -> None:
    source = tmp_path / "m.py"
    source.write_text("x = 1\n")
    compiled = py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
    assert compiled is not None
    data = Path(compiled).read_bytes()
    parsed = parse_pyc_head(data[:16])
    assert parsed is not None
    assert parsed.kind is kind
    assert parsed.magic == importlib.util.MAGIC_NUMBER
    if kind is PycKind.TIMESTAMP:
        assert (parsed.mtime, parsed.size) == (int(source.stat().st_mtime), 6)
    else:
        assert parsed.source_hash == importlib.util.source_hash(b"x = 1\n")


@pytest.mark.parametrize("data", [b"", head(0)[:15], b"\0" * 16, head(2), head(4), head(0xFFFFFFFF)])
def test_heads_that_no_python_accepts(data: bytes) -> None:
    assert parse_pyc_head(data) is None


def test_which_source_a_pyc_would_run_for() -> None:
    stamp = parse_pyc_head(head(0, 5, 7))
    unchecked = parse_pyc_head(head(1))
    checked = parse_pyc_head(head(3))
    assert stamp is not None
    assert unchecked is not None
    assert checked is not None
    assert stamp.runs_for(5 + 2**32, 7)
    assert not stamp.runs_for(6, 7)
    assert not stamp.runs_for(5, 8)
    assert unchecked.runs_for(1, 2)
    assert not checked.runs_for(0, 0)


def tree(**layer: bytes) -> TreeLayer:
    return TreeLayer(
        {
            f"{PKG}/m.py": b"old",
            f"{CACHE}/m.cpython-312.pyc": head(0, 10, 3) + b"code",
            f"{CACHE}/m.cpython-312.opt-1.pyc": head(1) + b"code",
            f"{CACHE}/m.cpython-312-pytest-8.3.4.pyc": head(0, 10, 3),
            f"{CACHE}/m2.cpython-312.pyc": head(0),
            f"{CACHE}/m.txt": b"",
            f"{PKG}/m.pyc": head(0),
            **layer,
        }
    )


def test_every_pyc_of_a_replaced_source_goes_and_no_other() -> None:
    found = find_bytecode(python_tree(tree())[0], f"{PKG}/m.py")
    assert found.whiteouts == (
        f"{CACHE}/m.cpython-312-pytest-8.3.4.pyc",
        f"{CACHE}/m.cpython-312.opt-1.pyc",
        f"{CACHE}/m.cpython-312.pyc",
    )
    kinds = {item.path.rpartition("/")[2]: item.head.kind for item in found.pycs if item.head}
    assert kinds["m.cpython-312.opt-1.pyc"] is PycKind.UNCHECKED_HASH
    assert found.not_proven == ()
    assert found.findings == ()


def test_the_legacy_pyc_goes_with_a_deleted_source_only() -> None:
    view, _ = python_tree(tree())
    assert f"{PKG}/m.pyc" not in find_bytecode(view, f"{PKG}/m.py").whiteouts
    assert f"{PKG}/m.pyc" in find_bytecode(view, f"{PKG}/m.py", deleted=True).whiteouts


def test_an_added_source_finds_what_an_older_copy_left() -> None:
    layer = TreeLayer({f"{CACHE}/new.cpython-312.pyc": head(1), f"{PKG}/__init__.py": b""})
    assert find_bytecode(python_tree(layer)[0], f"{PKG}/new.py").whiteouts == (f"{CACHE}/new.cpython-312.pyc",)


def test_bytecode_that_a_higher_layer_hides_is_not_hidden_again() -> None:
    upper = TreeLayer({f"{PKG}/m.py": b"newer"}, whiteouts=frozenset({f"{CACHE}/m.cpython-312.pyc"}))
    found = find_bytecode(python_tree(tree(), upper)[0], f"{PKG}/m.py")
    assert f"{CACHE}/m.cpython-312.pyc" not in found.whiteouts
    assert len(found.whiteouts) == 2


def test_a_cache_folder_that_is_a_link_is_followed() -> None:
    layer = TreeLayer({f"{PKG}/m.py": b"", "var/cache/m.cpython-312.pyc": head(1)}, links={CACHE: "/var/cache"})
    assert find_bytecode(python_tree(layer)[0], f"{PKG}/m.py").whiteouts == ("var/cache/m.cpython-312.pyc",)


def test_pycacheprefix_of_the_config() -> None:
    layer = tree()
    layer.files[f"var/pyc/{PKG}/m.cpython-312.pyc"] = head(1)
    found = find_bytecode(python_tree(layer)[0], f"{PKG}/m.py", environment={"PYTHONPYCACHEPREFIX": "/var/pyc"})
    assert f"var/pyc/{PKG}/m.cpython-312.pyc" in found.whiteouts
    assert f"{CACHE}/m.cpython-312.pyc" in found.whiteouts


def test_absent_folders_are_named_for_the_lock() -> None:
    view, _ = python_tree({f"{PKG}/m.py": b""})
    assert find_bytecode(view, f"{PKG}/m.py").watched == (CACHE,)
    assert find_bytecode(view, f"{PKG}/m.py", deleted=True).watched == (CACHE, f"{PKG}/m.pyc")


def test_bytecode_in_unread_layers_is_not_proven() -> None:
    layer = TreeLayer({f"{PKG}/m.py": b"", f"{CACHE}/m.cpython-312.pyc": head(0)})
    found = find_bytecode(python_tree(None, layer)[0], f"{PKG}/m.py", deleted=True)
    assert found.whiteouts == (f"{CACHE}/m.cpython-312.pyc",)
    assert any(CACHE in text for text in found.not_proven)
    assert any("m.pyc" in text for text in found.not_proven)


def test_what_is_no_python_source_has_none() -> None:
    view, _ = python_tree(tree())
    assert find_bytecode(view, f"{PKG}/m.txt").whiteouts == ()
    assert find_bytecode(view, f"{PKG}/m.pyi").whiteouts == ()


@pytest.mark.parametrize(
    ("name", "wins"),
    [
        ("m.so", True),
        ("m.abi3.so", True),
        ("m.cpython-312-x86_64-linux-gnu.so", True),
        ("m.pypy310-pp73-x86_64-linux-gnu.so", True),
        ("m_C.abi3.so", False),
        ("m.other.so", False),
        ("m.so.1", False),
    ],
)
def test_compiled_neighbours_that_win_over_the_source(name: str, wins: bool) -> None:
    layer = tree()
    layer.files[f"{PKG}/{name}"] = b"\x7fELF"
    view, _ = python_tree(layer)
    found = find_bytecode(view, f"{PKG}/m.py").findings
    assert [(item.code, item.severity, item.path) for item in found] == (
        [("overlay.compiled-neighbour", Severity.BLOCKING, f"{PKG}/{name}")] if wins else []
    )
    assert find_bytecode(view, f"{PKG}/m.py", gone={f"{PKG}/{name}"}).findings == ()


def test_a_package_beside_the_module_wins_over_it() -> None:
    layer = tree()
    layer.files[f"{PKG}/m/__init__.py"] = b""
    assert [item.code for item in find_bytecode(python_tree(layer)[0], f"{PKG}/m.py").findings] == [
        "overlay.package-wins"
    ]
    layer = tree()
    layer.files[f"{PKG}/m/data.txt"] = b""
    assert find_bytecode(python_tree(layer)[0], f"{PKG}/m.py").findings == ()


def test_prebuilt_modules_of_a_changed_package() -> None:
    files = {
        "site/aiter/__init__.py": b"",
        "site/aiter/jit/module_a.so": b"",
        "site/aiter/jit/build/x/module_b.so": b"",
        "site/aiter/jit/core.py": b"",
        "site/aiter/_C.so": b"",
    }
    view, _ = python_tree(files)
    found = find_jit_caches(view, "site/aiter", ["site/aiter/ops/moe.py"])
    assert [(item.path, item.severity) for item in found] == [("site/aiter/jit", Severity.WARNING)]
    assert "2: build/x/module_b.so, module_a.so)" in found[0].message
    kept = find_jit_caches(view, "site/aiter", ["site/aiter/ops/moe.py"], gone={"site/aiter/jit/module_a.so"})
    assert "1: build/x/module_b.so)" in kept[0].message
    assert find_jit_caches(view, "site/aiter", ["site/aiter/ops/moe.py"], gone={"site/aiter/jit"}) == ()
    assert find_jit_caches(view, "site/aiter", ["site/vllm/envs.py", "site/aiter/README.md"]) == ()


def test_kernels_by_the_hundred_are_one_warning_a_folder() -> None:
    files = {f"site/aiter/ops/aot/k{n:03}/k.hsaco": b"" for n in range(300)} | {"site/aiter/jit/m.so": b""}
    view, _ = python_tree(files)
    found = find_jit_caches(view, "site/aiter", ["site/aiter/ops/moe.py"])
    assert [item.path for item in found] == ["site/aiter/jit", "site/aiter/ops/aot"]
    assert "300: k000/k.hsaco, k001/k.hsaco, k002/k.hsaco, …)" in found[1].message


def test_the_time_is_created_unless_something_stale_would_fit() -> None:
    stamp = parse_pyc_head(head(0, 100, 7))
    assert entry_time(100) == 100
    assert entry_time(100, 99) == 100
    assert entry_time(100, 100) == 101
    assert entry_time(100, None, [stamp], 7) == 101
    assert entry_time(100, None, [stamp], 8) == 100
    assert entry_time(100, None, [stamp]) == 101
    assert entry_time(99, 99, [stamp], 7) == 101
    assert entry_time(100, None, [None, parse_pyc_head(head(3, 100, 7))], 7) == 100
    assert entry_time(2**32 + 100, 100) == 2**32 + 101
