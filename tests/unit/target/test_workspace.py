"""The workspace: how it is found, what it holds, and what init writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import InputError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.target.document import load_target, parse_base
from imagebuild.target.scaffold import NewFile, scaffold_target, scaffold_workspace, target_name
from imagebuild.target.workspace import Folders, Workspace

PIN = "sha256:" + "a" * 64
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def target_text(name: str, overlays: str = "[]") -> str:
    return f"schema: 1\nname: {name}\nbase: oci:b@{PIN}\nplatforms: [linux/amd64]\noverlays: {overlays}\n"


def overlay_text(name: str) -> str:
    return f"schema: 1\nname: {name}\ndescription: d\nchanges: [{{env: {{A: b}}}}]\n"


def plain(root: Path) -> Workspace:
    write(
        root,
        {
            "manifests/two/target.yaml": target_text("two", "[b, a]"),
            "manifests/one/target.yaml": target_text("one"),
            "manifests/empty/x": "",
            "manifests/Upper/target.yaml": "",
            "overlays/a/overlay.yaml": overlay_text("a"),
            "overlays/b/overlay.yaml": overlay_text("b"),
        },
    )
    return Workspace.find(root)


def test_the_nearest_folder_at_or_above_is_found(tmp_path: Path) -> None:
    plain(tmp_path)
    inner = tmp_path / "overlays" / "a" / "files"
    inner.mkdir()
    for start in (tmp_path, inner, tmp_path / "manifests" / "one", tmp_path / "none" / "deeper"):
        assert Workspace.find(start).root == tmp_path
    plain(inner)
    assert Workspace.find(inner / "manifests").root == inner


def test_one_of_the_two_folders_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    with pytest.raises(InputError) as caught:
        Workspace.find(tmp_path, tmp_path)
    assert caught.value.code == "target.no-workspace"
    assert "imagebuild init" in (caught.value.hint or "")
    (tmp_path / "overlays").write_text("a file, no folder")
    with pytest.raises(InputError):
        Workspace.find(tmp_path, tmp_path)


def test_nothing_above_is_an_input_error_with_the_verb_that_helps() -> None:
    with pytest.raises(InputError) as caught:
        Workspace.find(Path("/proc/self"))
    assert caught.value.code == "target.no-workspace"
    assert "`imagebuild init`" in (caught.value.hint or "")


def test_a_named_folder_is_taken_as_it_is_and_not_searched_above(tmp_path: Path) -> None:
    plain(tmp_path)
    assert Workspace.find(Path("/"), tmp_path).root == tmp_path
    assert Workspace.find(tmp_path.parent, tmp_path.name).root == tmp_path
    with pytest.raises(InputError) as caught:
        Workspace.find(tmp_path, "overlays")
    assert caught.value.code == "target.no-workspace"


def test_imagebuild_yaml_maps_the_folders(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".imagebuild.yaml": "manifests: images/manifests\noverlays: images/o\nwaivers: docs/waiver\nrecipes: bench\n"
            "masters: .github/m.yaml\nchangelog: perf-changelog.yaml\n",
            "images/manifests/one/target.yaml": target_text("one", "[a]"),
            "images/o/a/overlay.yaml": overlay_text("a"),
        },
    )
    workspace = Workspace.find(tmp_path / "images" / "o")
    assert workspace.root == tmp_path
    assert workspace.folders == Folders(
        "images/manifests", "images/o", "docs/waiver", "bench", (".github/m.yaml",), "perf-changelog.yaml"
    )
    assert workspace.targets() == ("one",)
    assert [overlay.name for overlay in workspace.series(workspace.target("one"))] == ["a"]
    assert workspace.waiver_path(4878) == tmp_path / "docs" / "waiver" / "4878.yaml"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("overlay: x\n", "schema.unknown-key"),
        ("manifests: /abs\n", "schema.bad-value"),
        ("manifests: ../x\n", "schema.bad-value"),
        ("schema: 2\n", "schema.unknown-version"),
        ("", "yaml.empty"),
    ],
)
def test_imagebuild_yaml_is_read_strictly(tmp_path: Path, text: str, code: str) -> None:
    write(tmp_path, {".imagebuild.yaml": text})
    with pytest.raises(InputError) as caught:
        Workspace.find(tmp_path)
    assert caught.value.code == code


def test_targets_and_overlays_are_listed_sorted_and_only_where_their_file_is(tmp_path: Path) -> None:
    workspace = plain(tmp_path)
    assert workspace.targets() == ("one", "two")
    assert workspace.overlays() == ("a", "b")


def test_paths_of_a_target(tmp_path: Path) -> None:
    workspace = plain(tmp_path)
    assert workspace.target_path("one") == tmp_path / "manifests/one/target.yaml"
    assert workspace.lock_path("one") == tmp_path / "manifests/one/target.lock.json"
    assert workspace.content_path("one") == tmp_path / "manifests/one/content"
    assert workspace.overlay_path("a") == tmp_path / "overlays/a"
    assert workspace.sites_path == tmp_path / "sites.yaml"
    assert workspace.policy_path == tmp_path / "policy.yaml"
    assert workspace.shown(workspace.lock_path("one")) == "manifests/one/target.lock.json"
    assert workspace.shown(Path("/elsewhere")) == "/elsewhere"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/abs", "A", "a\n", "a\0", "-a", ".git", "é", "x" * 65])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    workspace = plain(tmp_path)
    for act in (workspace.target, workspace.overlay, workspace.lock_path, workspace.content_path):
        with pytest.raises(InputError) as caught:
            act(name)
        assert caught.value.code == "target.bad-name"


def test_unknown_names_name_the_nearest(tmp_path: Path) -> None:
    workspace = plain(tmp_path)
    with pytest.raises(InputError) as caught:
        workspace.target("twoo")
    assert (caught.value.code, caught.value.hint) == ("target.unknown-target", "did you mean two?")
    with pytest.raises(InputError) as caught:
        workspace.overlay("zzz")
    assert (caught.value.code, caught.value.expected) == ("target.unknown-overlay", "a, b")


def test_the_series_keeps_the_order_written(tmp_path: Path) -> None:
    workspace = plain(tmp_path)
    assert [overlay.name for overlay in workspace.series(workspace.target("two"))] == ["b", "a"]


def test_faults_of_all_overlays_of_a_series_are_told_at_once(tmp_path: Path) -> None:
    workspace = plain(tmp_path)
    write(
        tmp_path, {"overlays/a/overlay.yaml": overlay_text("a") + "x: 1\ny: 2\n", "overlays/b/overlay.yaml": "a: [\n"}
    )
    with pytest.raises(SeveralErrors) as caught:
        workspace.series(workspace.target("two"))
    assert [error.code for error in caught.value.errors] == ["yaml.syntax", "schema.unknown-key", "schema.unknown-key"]


def put(root: Path, files: tuple[NewFile, ...]) -> None:
    for file in files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = file.merged(path.read_bytes() if path.exists() else None)
        if data is not None:
            path.write_bytes(data)


def test_a_scaffolded_workspace_is_found_and_empty(tmp_path: Path) -> None:
    put(tmp_path, scaffold_workspace())
    workspace = Workspace.find(tmp_path)
    assert (workspace.targets(), workspace.overlays()) == ((), ())
    assert (tmp_path / ".gitattributes").read_text() == "manifests/** -text\noverlays/** -text\n"
    assert {"/build/", "/.imagebuild/", "*.key"} <= set((tmp_path / ".gitignore").read_text().splitlines())


def test_existing_files_keep_what_they_hold_and_get_missing_lines_once(tmp_path: Path) -> None:
    write(tmp_path, {".gitattributes": "*.png binary\noverlays/** -text", "manifests/.gitkeep": "mine"})
    put(tmp_path, scaffold_workspace())
    put(tmp_path, scaffold_workspace())
    assert (tmp_path / ".gitattributes").read_text() == "*.png binary\noverlays/** -text\nmanifests/** -text\n"
    assert (tmp_path / "manifests/.gitkeep").read_text() == "mine"


@pytest.mark.parametrize(
    ("base", "platforms", "sku"),
    [
        (f"docker.io/vllm/vllm-openai:v1@{PIN}", (AMD64,), "b300"),
        (f"oci:bases/a b@{PIN}".replace(" ", "_"), (AMD64, ARM64), "gb200"),
        (f"oci:b@{PIN}", (ARM64,), None),
    ],
)
def test_a_scaffolded_target_reads_back(
    tmp_path: Path, base: str, platforms: tuple[Platform, ...], sku: str | None
) -> None:
    put(tmp_path, scaffold_workspace())
    put(tmp_path, scaffold_target("new", parse_base(base), platforms, sku, ["x"]))
    target = load_target(tmp_path / "manifests/new/target.yaml")
    assert (target.name, target.base, target.platforms, target.sku) == ("new", parse_base(base), platforms, sku)
    assert target.overlays == ("x",)


def test_the_commented_lines_of_a_scaffolded_target_are_valid_too(tmp_path: Path) -> None:
    for base in (f"x.org/y:v1@{PIN}", f"x.org/y@{PIN}"):
        (file,) = scaffold_target("new", parse_base(base), (AMD64,))
        text = file.data.decode().replace("# publish", "publish").replace("#   ", "  ")
        write(tmp_path, {"new/target.yaml": text})
        assert load_target(tmp_path / "new/target.yaml").publish is not None


def test_a_scaffold_refuses_hardware_that_the_base_is_not_for() -> None:
    base = parse_base(f"x.org/y@{PIN}")
    for sku in ("gb200", "nothing"):
        with pytest.raises(InputError) as caught:
            scaffold_target("new", base, (AMD64,), sku)
        assert caught.value.code == "target.sku-platform"
    with pytest.raises(InputError):
        scaffold_target("../x", base, (AMD64,))


@pytest.mark.parametrize(
    ("base", "sku", "name"),
    [
        (f"vllm/vllm-openai:v1@{PIN}", "b300", "b300-vllm-openai"),
        (f"oci:/data/My Base.tar@{PIN}".replace(" ", "_"), None, "my_base"),
        (f"oci:../@{PIN}", None, "target"),
        (f"x.org/{'y' * 200}@{PIN}", "h200", "h200-" + "y" * 48),
    ],
)
def test_an_unnamed_target_gets_a_safe_name(base: str, sku: str | None, name: str) -> None:
    assert target_name(parse_base(base), sku) == name
