"""`imagebuild gsm8k` from the door: exit codes and the one document."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from imagebuild.cli.main import main


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
