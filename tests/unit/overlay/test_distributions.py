"""Distributions found by their metadata folders."""

from __future__ import annotations

import json

import pytest

from imagebuild.layer.entry import Found
from imagebuild.overlay.contents import wanted_name
from imagebuild.overlay.distributions import find_places, normalise_name, read_distributions
from imagebuild.testing.python_tree import TreeLayer, python_tree

SITE = "opt/venv/lib/python3.12/site-packages"
METADATA = b"Metadata-Version: 2.4\nName: My.Pkg\nVersion: 1.0\n\nVersion: 9 in the description\n"


def installed(site: str = SITE, **more: bytes) -> dict[str, bytes]:
    info = f"{site}/my_pkg-1.0.dist-info"
    rows = b"my_pkg/__init__.py,,\n../../../bin/tool,,\nmy_pkg-1.0.dist-info/RECORD,,\n"
    files = {
        f"{site}/my_pkg/__init__.py": b"",
        "opt/venv/bin/tool": b"#!",
        f"{info}/METADATA": METADATA,
        f"{info}/RECORD": rows,
        f"{info}/INSTALLER": b"pip\n",
    }
    files.update({f"{info}/{name.replace('__', '.')}": data for name, data in more.items()})
    return files


@pytest.mark.parametrize(
    ("path", "size", "wanted"),
    [
        (f"{SITE}/a-1.dist-info/RECORD", 900_000, True),
        (f"{SITE}/a-1.dist-info/RECORD", 17 << 20, False),
        (f"{SITE}/a-1.dist-info/METADATA", 10, True),
        (f"{SITE}/a-1.dist-info/direct_url.json", 10, True),
        (f"{SITE}/a.egg-info/PKG-INFO", 10, True),
        (f"{SITE}/a-1.egg-info", 10, True),
        (f"{SITE}/RECORD", 10, False),
        (f"{SITE}/__editable__.a-1.pth", 10, True),
        (f"{SITE}/__editable___a_1_finder.py", 10, True),
        (f"{SITE}/_hook.py", 10, True),
        (f"{SITE}/pkg/_hook.py", 10, False),
        (f"{SITE}/pkg/m.py", 10, False),
        ("opt/venv/pyvenv.cfg", 10, True),
        ("usr/lib/python3.12/sitecustomize.py", 10, True),
        ("usr/lib/python3.12/sitecustomize.py", 1 << 20, False),
        ("etc/passwd", 10, True),
        ("srv/etc/passwd", 10, False),
    ],
)
def test_which_files_are_captured(path: str, size: int, wanted: bool) -> None:
    assert wanted_name(path, size) is wanted


def test_names_are_compared_in_one_form() -> None:
    assert normalise_name("My__Pkg.-x") == "my-pkg-x"


def test_a_pip_made_distribution() -> None:
    (item,) = read_distributions(*python_tree(installed())).items
    assert (item.name, item.version, item.installer, item.site) == ("my-pkg", "1.0", "pip", SITE)
    assert item.record == f"{SITE}/my_pkg-1.0.dist-info/RECORD"
    assert item.unread == ()
    assert item.editable is None


def test_owners_by_path_scripts_too() -> None:
    known = read_distributions(*python_tree(installed()))
    assert [item.name for item in known.owners("opt/venv/bin/tool")] == ["my-pkg"]
    assert [item.name for item in known.owners(f"{SITE}/my_pkg/__init__.py")] == ["my-pkg"]
    assert known.owners(f"{SITE}/other.py") == ()
    assert [item.name for item in known.folder_owners(f"{SITE}/my_pkg")] == ["my-pkg"]


def test_a_file_of_two_distributions() -> None:
    files = installed()
    files[f"{SITE}/second-2.dist-info/RECORD"] = b"my_pkg/__init__.py,,\n"
    files[f"{SITE}/second-2.dist-info/METADATA"] = b"Name: second\nVersion: 2\n"
    known = read_distributions(*python_tree(files))
    assert [item.name for item in known.owners(f"{SITE}/my_pkg/__init__.py")] == ["my-pkg", "second"]


def test_a_loop_of_links_that_no_row_needs_refuses_nothing() -> None:
    layer = TreeLayer(installed(), links={f"{SITE}/loop": "loop"})
    layer.files[f"{SITE}/my_pkg-1.0.dist-info/RECORD"] = b"loop/m.py,,\nmy_pkg/__init__.py,,\n"
    known = read_distributions(*python_tree(layer))
    assert known.owners(f"{SITE}/my_pkg/__init__.py") == known.items


def test_rows_are_followed_through_linked_folders() -> None:
    layer = TreeLayer(installed(), links={f"{SITE}/linked": "/srv/code"})
    layer.files[f"{SITE}/my_pkg-1.0.dist-info/RECORD"] = b"linked/m.py,,\n"
    layer.files["srv/code/m.py"] = b""
    known = read_distributions(*python_tree(layer))
    assert [item.name for item in known.owners("srv/code/m.py")] == ["my-pkg"]


def test_debians_distributions_have_no_record() -> None:
    site = "usr/lib/python3/dist-packages"
    view, contents = python_tree(
        {
            f"{site}/yaml/__init__.py": b"",
            f"{site}/PyYAML-6.0.egg-info/PKG-INFO": b"Name: PyYAML\nVersion: 6.0\n",
            f"{site}/old-0.1.egg-info": b"Name: old\nVersion: 0.1\n",
        }
    )
    known = read_distributions(view, contents)
    assert [(item.name, item.version, item.installer, item.record) for item in known.items] == [
        ("pyyaml", "6.0", "debian", None),
        ("old", "0.1", "debian", None),
    ]


def test_an_editable_installation_says_where_its_project_is() -> None:
    url = {"url": "file:///workspace/my%20pkg", "dir_info": {"editable": True}}
    known = read_distributions(*python_tree(installed(direct_url__json=json.dumps(url).encode())))
    assert known.items[0].editable == "workspace/my pkg"


@pytest.mark.parametrize(
    "text",
    [
        b'{"url": "file:///workspace/x", "dir_info": {}}',
        b'{"url": "file:///workspace/x", "dir_info": {"editable": false}}',
        b'{"url": "https://example.com/x", "dir_info": {"editable": true}}',
        b"[]",
    ],
)
def test_other_direct_urls_are_not_editable(text: bytes) -> None:
    assert read_distributions(*python_tree(installed(direct_url__json=text))).items[0].editable is None


def test_a_damaged_direct_url_is_said_not_guessed() -> None:
    known = read_distributions(*python_tree(installed(direct_url__json=b"{")))
    assert known.items[0].editable is None
    assert "direct_url.json" in known.not_proven[0]


def test_an_egg_link_is_an_editable_installation() -> None:
    known = read_distributions(*python_tree({f"{SITE}/aiter.egg-link": b"/sgl/aiter\n.", "sgl/aiter/": b""}))
    assert [(item.name, item.editable) for item in known.items] == [("aiter", "sgl/aiter")]


def test_signed_records_are_known() -> None:
    known = read_distributions(*python_tree(installed(RECORD__p7s=b"x")))
    assert known.items[0].signatures == (f"{SITE}/my_pkg-1.0.dist-info/RECORD.p7s",)


def test_metadata_that_was_not_captured_is_named() -> None:
    hidden = frozenset({f"{SITE}/my_pkg-1.0.dist-info/METADATA", f"{SITE}/my_pkg-1.0.dist-info/RECORD"})
    known = read_distributions(*python_tree(installed(), hidden=hidden))
    (item,) = known.items
    assert (item.name, item.version) == ("my-pkg", "1.0")
    assert set(item.unread) == hidden
    assert len(known.not_proven) == 2


def test_a_malformed_record_is_unread() -> None:
    known = read_distributions(*python_tree(installed(RECORD=b'"pkg/m.py,,\n')))
    assert known.items[0].rows == {}
    assert known.items[0].unread == (f"{SITE}/my_pkg-1.0.dist-info/RECORD",)
    assert "no end" in known.not_proven[0]


def test_a_distribution_that_a_higher_layer_removed_is_not_seen() -> None:
    upper = TreeLayer(whiteouts=frozenset({f"{SITE}/my_pkg-1.0.dist-info"}))
    assert read_distributions(*python_tree(installed(), upper)).items == ()


def test_metadata_in_an_unread_layer_is_not_proven() -> None:
    info = f"{SITE}/my_pkg-1.0.dist-info"
    view, contents = python_tree(None, {f"{info}/RECORD": b"my_pkg/__init__.py,,\n"})
    known = read_distributions(view, contents)
    assert known.items[0].version == "1.0"
    assert f"{info}/METADATA" in known.items[0].unread
    assert not known.places.complete


def test_places_from_names_equal_places_from_a_walk() -> None:
    layer = TreeLayer(installed(), links={"opt/v2": "venv"})
    layer.files |= {"opt/venv/pyvenv.cfg": b"", "usr/lib/python3.12/os.py": b"", "srv/site-packages-old/x": b""}
    upper = TreeLayer({"opt/x.dist-info/y": b""}, whiteouts=frozenset({"usr/lib/python3.12"}))
    view, _ = python_tree(layer, upper)
    names = [*layer.facts().entries, *upper.facts().entries]
    walked = find_places(view)
    assert find_places(view, names) == walked
    assert find_places(view, [name for name in names if isinstance(view.lookup(name), Found)][::-1]) == walked
    assert walked.venvs == ("opt/venv",)
    assert walked.stdlibs == ("opt/venv/lib/python3.12",)
