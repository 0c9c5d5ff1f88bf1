"""Which RECORDs follow from a set of changes; identity; the provenance file."""

from __future__ import annotations

import json

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.overlay.distributions import Distributions, read_distributions
from imagebuild.overlay.identity import IdentityState, check_identity, normalise_version, require_identity
from imagebuild.overlay.provenance_file import ProvenanceBase, ProvenanceEntry, provenance_json
from imagebuild.overlay.record import RecordPlan, record_edits
from imagebuild.testing.python_tree import python_tree

SITE = "opt/v/lib/python3.12/site-packages"


def dist(name: str, *paths: str, version: str = "1.0", **more: bytes) -> dict[str, bytes]:
    info = f"{SITE}/{name}-{version}.dist-info"
    rows = "".join(f"{path},,\n" for path in [*paths, f"{name}-{version}.dist-info/RECORD"])
    files = {
        f"{info}/RECORD": rows.encode(),
        f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n".encode(),
    }
    return files | {f"{info}/{key}": value for key, value in more.items()}


def known(*parts: dict[str, bytes], hidden: frozenset[str] = frozenset()) -> Distributions:
    files: dict[str, bytes] = {}
    for part in parts:
        files |= part
    return read_distributions(*python_tree(files, hidden=hidden))


def plan(distributions: Distributions, *, keep: bool = False, **changes: list[str]) -> RecordPlan:
    return record_edits(
        distributions,
        written={f"{SITE}/{path}": None for path in changes.get("written", [])},
        removed=[f"{SITE}/{path}" for path in changes.get("removed", [])],
        added={f"{SITE}/{path}": None for path in changes.get("added", [])},
        keep=keep,
    )


def changed(result: RecordPlan) -> dict[str, list[str]]:
    return {
        change.distribution.name: sorted(
            path.removeprefix(SITE + "/")
            for path in [*change.edits.written, *change.edits.removed, *change.edits.added]
            if not path.endswith("imagebuild.json")
        )
        for change in result.changes
    }


ONE = dist("one", "one/a.py", "one/b.py", "one/__pycache__/a.cpython-312.pyc", "shared/x.py", "ns/one/m.py")
TWO = dist("two", "two/a.py", "shared/x.py", "ns/two/m.py")


def test_a_path_of_one_of_both_and_of_none() -> None:
    all_of_them = known(ONE, TWO)
    assert changed(plan(all_of_them, written=["one/a.py"])) == {"one": ["one/a.py"]}
    assert changed(plan(all_of_them, written=["shared/x.py"])) == {"one": ["shared/x.py"], "two": ["shared/x.py"]}
    assert changed(plan(all_of_them, written=["one/unlisted.py"])) == {}


def test_removed_files_and_whole_folders() -> None:
    all_of_them = known(ONE, TWO)
    pyc = "one/__pycache__/a.cpython-312.pyc"
    assert changed(plan(all_of_them, removed=[pyc])) == {"one": [pyc]}
    assert changed(plan(all_of_them, removed=["ns"])) == {"one": ["ns/one/m.py"], "two": ["ns/two/m.py"]}


def test_an_added_file_belongs_where_its_nearest_folder_belongs() -> None:
    all_of_them = known(ONE, TWO)
    assert changed(plan(all_of_them, added=["one/deep/er/new.py"])) == {"one": ["one/deep/er/new.py"]}
    assert changed(plan(all_of_them, added=["ns/two/new.py"])) == {"two": ["ns/two/new.py"]}
    assert changed(plan(all_of_them, added=["top.py", "stranger/x.py"])) == {}


def test_an_added_file_in_a_shared_folder_belongs_to_none_and_that_is_said() -> None:
    result = plan(known(ONE, TWO), added=["ns/new.py"])
    assert changed(result) == {}
    assert [(item.code, item.path) for item in result.findings] == [
        ("overlay.record-shared-folder", f"{SITE}/ns/new.py")
    ]


def test_an_editable_installation_is_patched_where_its_project_is() -> None:
    url = json.dumps({"url": "file:///workspace/ed", "dir_info": {"editable": True}}).encode()
    editable = dist("ed", "__editable__.ed.pth", **{"direct_url.json": url})
    all_of_them = known(ONE, editable, {"workspace/ed/ed/m.py": b""})
    result = record_edits(all_of_them, written={"workspace/ed/ed/m.py": None}, removed=[], added={})
    assert [item.name for item in result.patched] == ["ed"]
    (change,) = result.changes
    before = editable[f"{SITE}/ed-1.0.dist-info/RECORD"]
    assert change.apply(before) == before + b"ed-1.0.dist-info/imagebuild.json,,\n"
    assert record_edits(all_of_them, written={"workspace/edit.py": None}, removed=[], added={}).patched == ()


def test_a_script_folder_outside_the_site_folder_is_nobodys_package() -> None:
    scripts = dist("tool", "../../../bin/tool")
    result = record_edits(known(scripts), written={}, removed=[], added={"opt/v/bin/new": None})
    assert result.patched == ()
    result = record_edits(known(scripts), written={"opt/v/bin/tool": None}, removed=[], added={})
    assert [item.name for item in result.patched] == ["tool"]


def test_the_record_is_edited_and_lists_the_provenance_file() -> None:
    (change,) = plan(known(ONE), removed=["one/a.py"], added=["one/c.py"]).changes
    lines = change.apply(ONE[f"{SITE}/one-1.0.dist-info/RECORD"]).decode().splitlines()
    assert lines == [
        "one/b.py,,",
        "one/c.py,,",
        "one/__pycache__/a.cpython-312.pyc,,",
        "shared/x.py,,",
        "ns/one/m.py,,",
        "one-1.0.dist-info/RECORD,,",
        "one-1.0.dist-info/imagebuild.json,,",
    ]


def test_a_signed_record_is_refused_only_when_it_would_change() -> None:
    signed = known(ONE, dist("two", "two/a.py", **{"RECORD.jws": b"{}"}))
    assert changed(plan(signed, written=["one/a.py"])) == {"one": ["one/a.py"]}
    with pytest.raises(RefusedError) as caught:
        plan(signed, written=["two/a.py"])
    assert caught.value.code == "overlay.record-signed"
    assert plan(signed, written=["two/a.py"], keep=True).changes == ()


def test_keep_changes_nothing_and_says_which_record_is_no_longer_true() -> None:
    result = plan(known(ONE), written=["one/a.py"], keep=True)
    assert result.changes == ()
    assert [item.name for item in result.patched] == ["one"]
    assert [(item.code, item.path) for item in result.findings] == [
        ("overlay.record-kept", f"{SITE}/one-1.0.dist-info/RECORD")
    ]


def test_a_record_that_was_not_read_is_not_proven() -> None:
    hidden = frozenset({f"{SITE}/two-1.0.dist-info/RECORD"})
    assert any("two" in text for text in plan(known(ONE, TWO, hidden=hidden), written=["one/a.py"]).not_proven)


# Identity


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.33.0", "0.33"),
        ("v1.0", "1"),
        ("1.0-alpha.2", "1a2"),
        ("1.0.c1", "1rc1"),
        ("1.0-1", "1.0.post1"),
        ("1.0.rev3", "1.post3"),
        ("1.0DEV2", "1.dev2"),
        ("1!2.0", "1!2"),
        ("1.0+Ubuntu-01", "1+ubuntu.1"),
        (" not a version ", "NOT A VERSION"),
    ],
)
def test_spellings_of_one_version(first: str, second: str) -> None:
    assert normalise_version(first) == normalise_version(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1" * 5000, "1"),
        ("0.33.0", "0.33.0+cu129"),
        ("1.0", "1.0.1"),
        ("1.0rc1", "1.0"),
        ("1.10", "1.1"),
        ("1!1.0", "1.0"),
    ],
)
def test_different_versions(first: str, second: str) -> None:
    assert normalise_version(first) != normalise_version(second)


def test_identity_passes_in_any_spelling() -> None:
    found = check_identity({"ONE": "1"}, known(ONE))
    assert [item.state for item in found] == [IdentityState.PASSED]
    assert require_identity(found) == ()


def test_identity_names_every_difference() -> None:
    found = check_identity({"one": "2.0", "nowhere": "1", "two": "1.0"}, known(ONE, TWO))
    with pytest.raises(RefusedError) as caught:
        require_identity(found)
    assert caught.value.code == "overlay.identity-mismatch"
    assert "one 2.0" in str(caught.value.expected)
    assert "nowhere missing" in str(caught.value.found)
    assert "two" not in str(caught.value.expected)


def test_missing_while_layers_are_unread_is_not_proven() -> None:
    view, contents = python_tree(None, ONE)
    found = check_identity({"two": "1.0"}, read_distributions(view, contents))
    assert [item.state for item in found] == [IdentityState.NOT_PROVEN]
    assert "two" in require_identity(found)[0]


def test_a_version_of_the_folders_name_only_is_not_proven() -> None:
    hidden = frozenset({f"{SITE}/one-1.0.dist-info/METADATA"})
    found = check_identity({"one": "1.0"}, known(ONE, hidden=hidden))
    assert [item.state for item in found] == [IdentityState.NOT_PROVEN]


def test_of_two_installations_the_first_of_the_search_path_counts() -> None:
    other = {
        key.replace(SITE, "usr/lib/python3/dist-packages"): value for key, value in dist("one", version="0.9").items()
    }
    both = known(ONE, other)
    for order, state in (
        ((SITE, "usr/lib/python3/dist-packages"), IdentityState.PASSED),
        (("usr/lib/python3/dist-packages", SITE), IdentityState.FAILED),
        ((), IdentityState.FAILED),
        (("elsewhere",), IdentityState.FAILED),
    ):
        assert check_identity({"one": "1.0"}, both, order)[0].state is state, order


# Provenance file


def test_the_provenance_file_is_canonical() -> None:
    base = ProvenanceBase("docker.io/vllm/vllm-openai:x", Digest.of(b"base"))
    entries = [
        ProvenanceEntry("usr/b.py", Digest.of(b"old"), Digest.of(b"new")),
        ProvenanceEntry("usr/a.py", None, Digest.of(b"a")),
        ProvenanceEntry("usr/c.py", Digest.of(b"c"), None),
    ]
    data = provenance_json(Digest.of(b"id"), base, entries)
    assert data == provenance_json(Digest.of(b"id"), base, reversed(entries))
    assert data.endswith(b"}\n")
    value = json.loads(data)
    assert value["content_id"] == str(Digest.of(b"id"))
    assert value["base"] == {"reference": "docker.io/vllm/vllm-openai:x", "digest": str(Digest.of(b"base"))}
    assert value["files"] == {
        "/usr/a.py": {"preimage": "absent", "postimage": str(Digest.of(b"a"))},
        "/usr/b.py": {"preimage": str(Digest.of(b"old")), "postimage": str(Digest.of(b"new"))},
        "/usr/c.py": {"preimage": str(Digest.of(b"c")), "postimage": "absent"},
    }


@pytest.mark.parametrize("paths", [("a", "a"), ("\udcff",)])
def test_paths_that_the_provenance_file_cannot_hold(paths: tuple[str, ...]) -> None:
    base = ProvenanceBase("x", Digest.of(b"base"))
    with pytest.raises(RefusedError) as caught:
        provenance_json(Digest.of(b"id"), base, [ProvenanceEntry(path, None, None) for path in paths])
    assert caught.value.code == "overlay.provenance-path"
