"""`--diff`, `--changelog` and `--repo`: the pull request and the repository around a waiver."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_made import PAGE
from ix_repository import CHANGELOG, ENTRY, KEY, git_diff, write_repository

from imagebuild.testing.small_engine import SmallWorkspace
from imagebuild.waiver.change import parse_change, run_time_patches

Verb = Callable[..., Any]


def judge(verb: Verb, *words: str | Path) -> list[dict[str, Any]]:
    (report,) = verb("waiver", "check", *words, "--json").document["waivers"]
    return report["findings"]  # type: ignore[no-any-return]


def codes(findings: list[dict[str, Any]], severity: str = "blocking") -> list[str]:
    return [f["code"] for f in findings if f["severity"] == severity]


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("git -C /opt/engine apply fix.diff", "git apply"),
        ("patch -p1 < fix.diff", "patch -p"),
        ("(cd $D && patch --fuzz=3 -p 0 -i x)", "patch -p"),
        ("sed -i 's/a/b/' $ENGINE/x.py", "sed -i"),
        ("sed -E -i.bak 's/a/b/' x", "sed -i"),
        ("sed --in-place s/a/b/ x", "sed -i"),
        ("sed -e 's|a|b|' -i $ENGINE/x.py", "sed -i"),
        ("git show 1234 | patch -Np1", "patch -p"),
        ("/usr/bin/patch -p0 -d /opt -i x", "patch -p"),
        ("echo import fix > sitecustomize.py", "sitecustomize"),
        ("pip install --force-reinstall ./engine.whl", "a forced wheel install"),
        ("pip3 install git+https://host.example/engine", "a wheel install"),
        ("curl -L https://host.example/k.co -o k.co", "a downloaded .so or .co"),
        ("cp fix.py /usr/lib/python3/dist-packages/engine/", "a write into installed packages"),
    ],
)
def test_each_way_of_patching_at_run_time_is_seen(line: str, how: str) -> None:
    change = parse_change(git_diff("bench/run.sh", "set -e\n", f"set -e\n{line}\n"), "d")
    (found,) = [one for one in run_time_patches(change) if one.how == how]
    assert (found.path, found.line, found.text) == ("bench/run.sh", 2, line)


@pytest.mark.parametrize(
    "line",
    [
        "# sed -i is forbidden here",
        "git status",
        "dispatch -p 8000",
        "pip install lm_eval==0.4",
        "cat x | sed s/-i/b/",
        "sed -n p x | grep -i name",
        "cp a b",
        """sed -i "s/^name:.*/name: x/" "$CONFIG_PATH\"""",
        "sed -i s/a/b/ recipe.yaml",
        "pip install --index-url https://host.example/simple torch",
        "pip install --no-deps .",
    ],
)
def test_what_patches_nothing_is_not_accused(line: str) -> None:
    assert not list(run_time_patches(parse_change(git_diff("bench/run.sh", "", f"{line}\n"), "d")))


def test_a_heredoc_over_installed_packages_is_seen_and_a_document_is_not() -> None:
    text = "python3 - <<'EOF'\nimport engine, pathlib\np = pathlib.Path(engine.__file__)\np.write_text(p.read_text())\nEOF\n"
    (found,) = run_time_patches(parse_change(git_diff("run.sh", None, text), "d"))
    assert found.how == "a heredoc over installed packages"
    for name in ("notes.md", ".github/workflows/ci.yml", "perf-changelog.yaml", "utils/test_run.sh"):
        assert not list(run_time_patches(parse_change(git_diff(name, None, text + "sed -i x\n"), "d")))


@pytest.mark.parametrize(
    ("header", "old", "new", "path"),
    [
        ("a/run.sh b/run.sh", "a/run.sh", "b/run.sh", "run.sh"),
        ("c/run.sh i/run.sh", "c/run.sh", "i/run.sh", "run.sh"),  # diff.mnemonicPrefix
        ("bench/run.sh bench/run.sh", "bench/run.sh", "bench/run.sh", "bench/run.sh"),  # diff.noprefix
        ("b/run.sh b/run.sh", "b/run.sh", "b/run.sh", "b/run.sh"),
        ("a/my run.sh b/my run.sh", "a/my run.sh\t", "b/my run.sh\t", "my run.sh"),
        ('"a/\\350\\241\\245.sh" "b/\\350\\241\\245.sh"', '"a/\\350\\241\\245.sh"', '"b/\\350\\241\\245.sh"', "补.sh"),
    ],
)
def test_names_are_read_as_git_writes_them(header: str, old: str, new: str, path: str) -> None:
    text = (
        f"diff --git {header}\nindex 11111111..22222222 100644\n--- {old}\n+++ {new}\n@@ -1 +1,2 @@\n x\n+git apply y\n"
    )
    (file,) = parse_change(text, "d").files
    assert (file.old, file.new, file.old_blob, file.new_blob) == (path, path, "11111111", "22222222")
    assert [found.path for found in run_time_patches(parse_change(text, "d"))] == [path]


def test_a_renamed_file_has_both_its_names() -> None:
    text = "diff --git a/old.sh b/b/new.sh\nsimilarity index 100%\nrename from old.sh\nrename to b/new.sh\n"
    (file,) = parse_change(text, "d").files
    assert (file.old, file.new) == ("old.sh", "b/new.sh")


def test_the_combined_diff_of_a_merge_is_no_answer(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "310.md").write_text(PAGE)
    (tmp_path / "d").write_text(
        "diff --cc run.sh\nindex 1111111,2222222..3333333\n--- a/run.sh\n+++ b/run.sh\n@@@ -1 -1 +1,2 @@@\n  x\n++git apply y\n"
    )
    done = verb("waiver", "check", tmp_path / "310.md", "--diff", tmp_path / "d", "--json")
    assert (done.code, done.document["code"]) == (2, "waiver.bad-diff")


def test_removed_lines_and_deleted_scripts_accuse_nobody() -> None:
    change = git_diff("a.sh", "sed -i x y\nz\n", "z\n") + git_diff("b.sh", "git apply x\n", None)
    assert not list(run_time_patches(parse_change(change, "d")))


def test_a_script_that_the_waiver_names_is_covered_and_another_blocks(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "310.md").write_text(PAGE)
    own = git_diff("docs/waiver/310.md", None, PAGE) + git_diff("benchmarks/fix_engine.sh", None, "git apply x\n")
    (tmp_path / "d").write_text(own)
    assert codes(judge(verb, tmp_path / "310.md", "--diff", tmp_path / "d")) == []
    (tmp_path / "d").write_text(own + git_diff("benchmarks/other.sh", "a\n", "a\nsed -i s/a/b/ x\n"))
    (found,) = [f for f in judge(verb, tmp_path / "310.md", "--diff", tmp_path / "d") if f["severity"] == "blocking"]
    assert (found["code"], found["file"], found["line"]) == ("waiver.run-time-patch", "benchmarks/other.sh", 2)


def test_the_overlays_own_patches_are_no_run_time_patches_and_the_same_file_elsewhere_is(
    waived: Callable[..., SmallWorkspace], tmp_path: Path, verb: Verb
) -> None:
    space = waived()
    patch = (space.root / "overlays/tune/patches/0001-envs.patch").read_text()
    accused = []
    for path in (
        "overlays/tune/patches/0001-envs.patch",
        "patches/0001-envs.patch",
        "other/tune/patches/0001-envs.patch",
    ):
        (tmp_path / "d").write_text(git_diff(path, None, patch))
        accused += [
            f["file"] for f in judge(verb, "77", "--diff", tmp_path / "d") if f["code"] == "waiver.run-time-patch"
        ]
    assert accused == ["patches/0001-envs.patch", "other/tune/patches/0001-envs.patch"]


def test_rule_1_the_page_may_not_be_deleted_and_may_stand_on_the_base_branch(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "310.md").write_text(PAGE)
    (tmp_path / "d").write_text(git_diff("docs/waiver/310.md", PAGE, None))
    assert codes(judge(verb, tmp_path / "310.md", "--diff", tmp_path / "d")) == ["waiver.page-removed"]
    (tmp_path / "d").write_text(git_diff("x", "a\n", "b\n"))
    found = judge(verb, tmp_path / "310.md", "--diff", tmp_path / "d")
    assert (codes(found), codes(found, "note")) == ([], ["waiver.page-not-in-change"])


def test_a_text_that_is_no_diff_is_exit_2(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "310.md").write_text(PAGE)
    (tmp_path / "d").write_text("hello\n")
    done = verb("waiver", "check", tmp_path / "310.md", "--diff", tmp_path / "d", "--json")
    assert (done.code, done.document["code"]) == (2, "waiver.bad-diff")
    done = verb("waiver", "check", tmp_path / "310.md", "--changelog", tmp_path / "d", "--json")
    assert (done.code, done.document["code"]) == (2, "cli.usage")


def changelog(verb: Verb, folder: Path, before: str, after: str, diff: str | None = None) -> list[dict[str, Any]]:
    (folder / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    (folder / "perf-changelog.yaml").write_text(after)
    (folder / "d").write_text(git_diff("perf-changelog.yaml", before, after) if diff is None else diff)
    words = (folder / "310.md", "--diff", folder / "d", "--changelog", folder / "perf-changelog.yaml")
    return [f for f in judge(verb, *words) if f["code"].startswith("changelog")]


def test_an_entry_at_the_physical_end_is_proved_by_bytes(tmp_path: Path, verb: Verb) -> None:
    entry = ENTRY.replace("/77", "/310")
    (found,) = changelog(verb, tmp_path, CHANGELOG, CHANGELOG + entry)
    assert (found["code"], found["severity"], found["line"]) == ("changelog.appended", "note", 12)
    assert f"{len(entry)} bytes appended, the {len(CHANGELOG)} before" in found["message"]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (CHANGELOG.replace("Raise", "Lower") + ENTRY, "1 earlier line changed"),
        (ENTRY.lstrip("\n") + "\n" + CHANGELOG, "physical end"),
        (CHANGELOG.replace("    - engine", ENTRY.lstrip("\n") + "    - engine"), "physical end"),
        (CHANGELOG[:-1] + " " + ENTRY, "earlier line"),
    ],
)
def test_anything_but_an_append_is_refused(tmp_path: Path, verb: Verb, after: str, words: str) -> None:
    found = changelog(verb, tmp_path, CHANGELOG, after)
    assert codes(found) == ["changelog.not-appended"]
    assert words in found[0]["message"]


def test_hunks_that_lie_about_the_bytes_are_found_out(tmp_path: Path, verb: Verb) -> None:
    """The diff says append; the file on disk differs from its base in a byte that no hunk shows."""
    honest = git_diff("perf-changelog.yaml", CHANGELOG, CHANGELOG + ENTRY)
    bent = CHANGELOG.replace("Raise", "Lower")
    found = changelog(verb, tmp_path, CHANGELOG, bent + ENTRY, honest)
    assert codes(found) == ["changelog.not-appended"]
    both = git_diff("perf-changelog.yaml", CHANGELOG, bent + ENTRY).split("\n")
    index = next(line for line in both if line.startswith("index"))
    lying = "\n".join(index if line.startswith("index") else line for line in honest.split("\n"))
    found = changelog(verb, tmp_path, CHANGELOG, bent + ENTRY, lying)
    assert "an earlier byte changed" in found[0]["message"]
    found = changelog(verb, tmp_path, CHANGELOG, CHANGELOG + ENTRY, honest.replace("index", "xednI"))
    assert "no `index` line" in found[0]["message"]


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (ENTRY.lstrip("\n"), "changelog.separator"),
        ("\n" + ENTRY, "changelog.separator"),
        (ENTRY + "\n", "changelog.separator"),
        (ENTRY.rstrip("\n"), "changelog.separator"),
        ("\nwords\n", "changelog.bad-entry"),
        (ENTRY.replace("pr-link", "link"), "changelog.bad-entry"),
    ],
)
def test_the_entry_follows_the_files_own_manner(tmp_path: Path, verb: Verb, entry: str, code: str) -> None:
    assert code in codes(changelog(verb, tmp_path, CHANGELOG, CHANGELOG + entry))


def test_link_and_keys_are_those_of_the_waiver(tmp_path: Path, verb: Verb) -> None:
    found = changelog(verb, tmp_path, CHANGELOG, CHANGELOG + ENTRY.replace(KEY, "another-*"))
    assert sorted(codes(found, "warning")) == ["changelog.key-missing", "changelog.wrong-link"]
    assert codes(changelog(verb, tmp_path, CHANGELOG, CHANGELOG, git_diff("x", "a\n", "b\n"))) == ["changelog.no-entry"]


def in_repository(
    verb: Verb, waived: Callable[..., SmallWorkspace], folder: Path, **repository: str
) -> list[dict[str, Any]]:
    space = waived(switch=True)
    image = f"docker.io/example/engine:v1-tuned@{space.digest()}"
    write_repository(folder, repository.pop("image", image), **repository)
    return [f for f in judge(verb, "77", "--repo", folder) if f["code"].startswith("repo")]


def test_a_repository_that_fits_has_nothing_blocking_and_tells_the_points(
    waived: Callable[..., SmallWorkspace], verb: Verb, tmp_path: Path
) -> None:
    found = in_repository(verb, waived, tmp_path / "ix")
    assert codes(found) == []
    assert [(f["code"], f["file"]) for f in found if f["severity"] == "warning"] == [
        ("repo.unreadable", "benchmarks/broken.yaml")
    ]
    (points,) = [f["message"] for f in found if f["code"] == "repo.switch-points"]
    assert "tep.yaml (backend.decode_environment.ENGINE_TUNED=1)" in points
    assert "engine_b300.sh" not in points


def test_master_recipe_and_release_name_one_image(
    waived: Callable[..., SmallWorkspace], verb: Verb, tmp_path: Path
) -> None:
    found = in_repository(verb, waived, tmp_path / "a", image="vllm/vllm-openai:v1")
    assert codes(found) == ["repo.image-differs"]
    found = in_repository(
        verb, waived, tmp_path / "b", container="docker.io/example/engine:v1-tuned@sha256:" + "0" * 64
    )
    assert codes(found) == ["repo.image-differs"] * 2
    assert {f["message"].split()[0] for f in found if f["severity"] == "blocking"} == {
        "model.container",
        "identity.container.image",
    }


def test_a_variable_that_the_image_does_not_register_is_found_with_the_nearest(
    waived: Callable[..., SmallWorkspace], verb: Verb, tmp_path: Path
) -> None:
    found = in_repository(verb, waived, tmp_path / "ix", variable="ENGINE_TUNE")
    (fault,) = [f for f in found if f["severity"] == "blocking"]
    assert (fault["code"], fault["file"]) == ("repo.variable-unregistered", "benchmarks/recipes/engine/tep.yaml")
    assert "ENGINE_TUNED is" in fault["message"]


def test_an_unknown_configuration_is_found_with_the_nearest(tmp_path: Path, verb: Verb) -> None:
    write_repository(tmp_path / "ix", "vllm/vllm-openai:v1")
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", "engine-fp4-b300-vlm"))
    found = judge(verb, tmp_path / "310.md", "--repo", tmp_path / "ix")
    assert codes(found) == ["repo.config-unknown"]
    assert KEY in next(f["message"] for f in found if f["code"] == "repo.config-unknown")
    done = verb("waiver", "check", tmp_path / "310.md", "--repo", tmp_path / "none", "--json")
    assert (done.code, done.document["code"]) == (2, "waiver.no-repository")


def test_an_image_bump_needs_its_entry(tmp_path: Path, verb: Verb) -> None:
    root = write_repository(tmp_path / "ix", "vllm/vllm-openai:v2")
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    master = (root / "configs/nvidia-master.yaml").read_text()
    bump = git_diff("configs/nvidia-master.yaml", master.replace(":v2", ":v1"), master)
    (tmp_path / "d").write_text(bump)
    words = (tmp_path / "310.md", "--repo", root, "--diff", tmp_path / "d")
    assert codes(judge(verb, *words)) == ["repo.no-changelog-entry"]
    (tmp_path / "d").write_text(bump + git_diff("perf-changelog.yaml", CHANGELOG, CHANGELOG + ENTRY))
    assert codes(judge(verb, *words)) == []


def test_a_mapped_repository_is_read_where_its_map_says(tmp_path: Path, verb: Verb) -> None:
    root = write_repository(tmp_path / "ix", "vllm/vllm-openai:v1")
    (root / "configs").rename(root / "lists")
    (root / ".imagebuild.yaml").write_text("masters: lists/nvidia-master.yaml\nrecipes: benchmarks\n")
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    assert codes(judge(verb, tmp_path / "310.md", "--repo", root)) == []


def test_an_alias_bomb_in_a_strangers_recipe_is_left_out(tmp_path: Path, verb: Verb) -> None:
    root = write_repository(tmp_path / "ix", "vllm/vllm-openai:v1")
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (root / "benchmarks/bomb.yaml").write_text("\n".join(lines))
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    found = judge(verb, tmp_path / "310.md", "--repo", root)
    assert {f["file"] for f in found if f["code"] == "repo.unreadable"} == {
        "benchmarks/bomb.yaml",
        "benchmarks/broken.yaml",
    }


def test_files_of_a_strangers_repository_that_never_end_are_not_opened(tmp_path: Path, verb: Verb) -> None:
    root = write_repository(tmp_path / "ix", "vllm/vllm-openai:v1")
    os.mkfifo(root / "benchmarks" / "pipe.yaml")
    (root / "benchmarks" / "endless.sh").symlink_to("/dev/zero")
    (root / "configs" / "endless-master.yaml").symlink_to("/dev/zero")
    (root / "benchmarks" / "large.sh").write_bytes(b"export ENGINE_TUNED=1\n" * 200_000)
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    found = judge(verb, tmp_path / "310.md", "--repo", root)
    assert {f["file"] for f in found if f["code"] == "repo.unreadable"} == {
        "benchmarks/broken.yaml",
        "benchmarks/large.sh",
    }


def test_no_text_of_others_begins_a_line(tmp_path: Path, verb: Verb) -> None:
    """A CI runner obeys lines of a log that begin with `::`, spaces before them or not."""
    root = write_repository(tmp_path / "ix", '"evil\\n::stop-commands::x"', "other:1")
    (tmp_path / "310.md").write_text(PAGE.replace("engine-fp8-mi355x-vllm-mtp", KEY))
    said = verb("waiver", "check", tmp_path / "310.md", "--repo", root).out
    assert "evil ::stop-commands::x" in said
    assert not [line for line in said.splitlines() if line.lstrip().startswith("::")]


@pytest.mark.parametrize("offset", [0, 1500, 1990, 9000])
def test_a_patch_far_into_a_long_line_is_seen(offset: int) -> None:
    change = parse_change(git_diff("run.sh", "", "x" * offset + "; git apply fix.diff\n"), "d")
    assert [one.how for one in run_time_patches(change)] == ["git apply"]
