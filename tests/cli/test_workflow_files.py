"""The shipped workflows: one source, actions by commit, no expression in a script, commands that the program has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuild.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "imagebuild" / "release" / "workflows"
FILES = [*sorted((ROOT / ".github" / "workflows").glob("*.yaml")), *sorted(TEMPLATES.glob("*.yaml"))]


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


def test_the_workflow_that_init_writes_is_the_one_of_this_repository() -> None:
    assert (TEMPLATES / "images.yaml").read_bytes() == (ROOT / ".github" / "workflows" / "images.yaml").read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_actions_of_others_are_pinned_by_commit(path: Path) -> None:
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
    assert not re.search(r"uses: actions/\S+(?! # v)$", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_expression_stands_in_a_script(path: Path) -> None:
    """A branch's or target's name in a script would be run as one."""
    assert [step["name"] for step in steps(path) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_jobs_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())


def test_the_called_workflow_gets_the_secrets_that_it_names_and_no_other() -> None:
    called = yaml.safe_load((TEMPLATES / "images.yaml").read_text(encoding="utf-8"))
    calling = yaml.safe_load((TEMPLATES / "images-on-change.yaml").read_text(encoding="utf-8"))
    wanted = called[True]["workflow_call"]["secrets"]  # YAML 1.1 reads `on` as true
    assert calling["jobs"]["images"]["secrets"] == {name: f"${{{{ secrets.{name} }}}}" for name in wanted}


def test_every_command_names_a_verb_and_options_that_it_has(verb: Any) -> None:
    known = {one.name for one in VERBS}
    helps: dict[tuple[str, ...], str] = {}
    ran = 0
    for step in steps(TEMPLATES / "images.yaml"):
        for line in re.findall(r"(?:^|\$\(|[ ;{(])(imagebuild [a-z][^\n|>)]*)", step.get("run", ""), re.MULTILINE):
            words = shlex.split(line.replace("||", ""))
            assert words[1] in known, line
            action = words[2:3] if words[1] in ("overlay", "waiver", "gsm8k", "release") and words[2][0] != "$" else []
            key = (words[1], *action)
            if key not in helps:
                with pytest.raises(SystemExit) as ended:
                    verb(*key, "--help")
                assert ended.value.code == 0
                helps[key] = ""
            ran += 1
    assert ran >= 15
    assert {key[0] for key in helps} >= {"lock", "build", "reproduce", "verify", "smoke", "gsm8k", "waiver", "release"}


def test_init_writes_them_once(tmp_path: Path, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb("init", "--ci", "github").code == 0
    mine = tmp_path / ".github" / "workflows" / "images.yaml"
    assert mine.read_bytes() == (TEMPLATES / "images.yaml").read_bytes()
    mine.write_text("# mine now\n")
    assert "images" not in verb("init", "--ci", "github").out
    assert mine.read_text() == "# mine now\n"
