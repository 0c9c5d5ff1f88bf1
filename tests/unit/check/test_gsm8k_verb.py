"""`imagebuild gsm8k` from the door: exit codes and the one document."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from imagebuild.cli.main import main
from imagebuild.testing.openai_double import OpenAIDouble, Script

CHECK = {"amd64": "base", "arm64": "base counts"}


def verb(*words: str | Path) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["gsm8k", *map(str, words)])
    return code, out.getvalue(), err.getvalue()


def test_compare_answers_with_its_own_document_and_exit_code(make_run: Callable[..., Path]) -> None:
    good, bad = make_run("good", [True] * 300), make_run("bad", [True] * 200 + [False] * 100)
    for words, expected in (((good, bad), (0, "non-inferior")), ((bad, good), (1, "inferior"))):
        code, out, _ = verb("compare", *words, "--margin", "2", "--json")
        document = json.loads(out)
        assert (code, document["verdict"]) == expected
        assert document["margin_points"] == 2.0
    other = make_run("other", [True] * 300, prompts="q")
    assert verb("compare", good, other)[0] == 3


def test_compare_of_figures_takes_them_after_the_option() -> None:
    code, out, _ = verb("compare", "--unpaired", "1295/1319", "1292/1319", "--json")
    document = json.loads(out)
    assert (code, document["verdict"]) == (3, "not-proven")
    assert [round(limit, 2) for limit in document["wald_interval_points"]] == [-0.82, 1.28]


def test_a_picture_without_matplotlib_is_a_clear_error(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = make_run("a", [True] * 3)
    code, out, err = verb("compare", run, run, "--plot", tmp_path / "x.svg")
    assert (code, out) == (3, "")
    assert "imagebuild[report]" in err
    assert verb("compare", run, run, "--plot", tmp_path / "x.gif")[0] == 2


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "manifests" / "t").mkdir(parents=True)
    (folder / "overlays").mkdir()
    (folder / "manifests" / "t" / "target.yaml").write_text(
        f"schema: 1\nname: t\nbase: docker.io/example/engine@sha256:{'0' * 64}\nplatforms: [linux/amd64]\n"
        "checks:\n  gsm8k: {arms: [base, on], max_null: 1}\n"
    )
    return folder


def test_run_and_gate_of_a_target(workspace: Path, questions: Path, eval_python: str) -> None:
    rows = [json.loads(line) for line in (questions / "test.jsonl").read_text().splitlines()]
    script = Script([(row["question"], row["answer"].split("#### ")[1]) for row in rows], faults={1: ["null"]})
    common = ("-C", workspace, "--data", questions, "--eval-python", eval_python, "--json")
    for arm, image in (("base", "a"), ("on", "b")):
        with OpenAIDouble(script) as double:
            words = ("--arm", arm, "--endpoint", double.url, "--image", "sha256:" + image * 64)
            code, out, err = verb("run", "t", *words, *common)
        document = json.loads(out)
        assert (code, document["verdict"]) == (0, "passed"), err
        assert document["counts"]["null"] == 1
        assert document["folder"] == str(workspace / "build" / "gsm8k" / "t" / arm)
    code, out, _ = verb("gate", "t", "-C", workspace, "--json")
    gate = json.loads(out)
    assert (code, gate["verdict"]) == (3, "invalid")
    assert "other questions than the pinned ones" in gate["reason"]
    assert "proves" not in gate["reason"], "a target whose overlays have no switch needs no proof of one"
    assert {check["name"]: check["verdict"] for check in gate["checks"]}["on strict-match"] == "passed"
    assert gate["statement"] is None, "an invalid run is attested to nobody"
    assert (workspace / "build" / "gsm8k" / "t" / "gate.json").is_file()
    assert verb("gate", "t", "-C", workspace, "--junit", workspace / "out.xml")[0] == 3
    assert 'testsuite name="gsm8k t"' in (workspace / "out.xml").read_text()


def test_the_runs_of_two_platforms_lie_apart(workspace: Path, questions: Path, eval_python: str) -> None:
    path = workspace / "manifests" / "t" / "target.yaml"
    path.write_text(path.read_text().replace("[linux/amd64]", "[linux/amd64, linux/arm64]"))
    rows = [json.loads(line) for line in (questions / "test.jsonl").read_text().splitlines()]
    script = Script([(row["question"], row["answer"].split("#### ")[1]) for row in rows])
    common = ("-C", workspace, "--data", questions, "--eval-python", eval_python, "--json", "--arm", "base")
    for arch, image in (("amd64", "a"), ("arm64", "b")):
        with OpenAIDouble(script) as double:
            words = ("--platform", f"linux/{arch}", "--endpoint", double.url, "--image", "sha256:" + image * 64)
            code, out, err = verb("run", "t", *words, *common)
        assert code == 0, err
        assert json.loads(out)["folder"] == str(workspace / "build" / "gsm8k" / "t" / arch / "base")
    shutil.rmtree(workspace / "build" / "gsm8k" / "t" / "amd64")
    for arch, words in (("amd64", "no run of this arm"), ("arm64", "other questions than the pinned ones")):
        gate = json.loads(verb("gate", "t", "-C", workspace, "--platform", f"linux/{arch}", "--json")[1])
        assert words in {check["name"]: check["reason"] for check in gate["checks"]}[CHECK[arch]], arch


def test_a_gate_without_runs_is_not_run(workspace: Path) -> None:
    code, out, _ = verb("gate", "t", "-C", workspace)
    assert code == 3
    assert out.splitlines()[-1].startswith("not-run: t: ")


def test_a_target_without_an_accuracy_check_has_no_gate(workspace: Path) -> None:
    path = workspace / "manifests" / "t" / "target.yaml"
    path.write_text(path.read_text().partition("checks:")[0])
    code, out, _ = verb("gate", "t", "-C", workspace, "--json")
    assert (code, json.loads(out)["code"]) == (2, "check.no-gate")
