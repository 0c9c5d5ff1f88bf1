"""Distances between answers, what a spread allows, and the verdicts of kernels, switches and overlays' own checks."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from smoke_bench import Bench, UnpackedRunner

from imagebuild.check import inside
from imagebuild.check.smoke import run_smoke
from imagebuild.check.smoke.expected import module_of
from imagebuild.check.smoke.result import together
from imagebuild.check.smoke.step_kernel import judged as kernel_parts
from imagebuild.check.smoke.step_overlay import judged as overlay_part
from imagebuild.check.smoke.step_parity import _verdicts as claimed
from imagebuild.check.smoke.step_parity import distance
from imagebuild.check.verdicts import Verdict
from imagebuild.target.lock_types import RootFact


def answers(*rows: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [{"tokens": [token for token, _ in row], "logprobs": [value for _, value in row]} for row in rows]


BASE = answers([(5, -0.5), (6, -0.25)], [(7, -1.0), (8, -2.0)])


def test_equal_answers_have_no_distance() -> None:
    found = distance(BASE, BASE)
    assert found.zero
    assert (found.tokens, found.largest, found.mean) == (4, 0.0, 0.0)


def test_differences_count_up_to_the_first_other_token() -> None:
    other = answers([(5, -0.25), (6, -0.25)], [(7, -1.0), (9, -9.0)])
    found = distance(BASE, other)
    assert found.largest == 0.25
    assert found.mean == pytest.approx(0.25 / 3)
    assert dict(found.diverged) == {1: 1}
    assert found.to_json()["first_diverging"] == {"prompt": 1, "token": 1}
    assert not found.zero


@pytest.mark.parametrize(
    "other",
    [
        answers([(5, -0.5)], [(7, -1.0)])[:1],
        answers([(5, -0.5), (6, None)], [(7, -1.0), (8, -2.0)]),
        [{"tokens": [], "logprobs": []}, BASE[1]],
        [{"tokens": [5, 6], "logprobs": [-0.5]}, BASE[1]],
        answers([(5, "nan"), (6, -0.25)], [(7, -1.0), (8, -2.0)]),
    ],
)
def test_what_cannot_be_compared_is_a_fault_and_never_equal(other: list[dict[str, Any]]) -> None:
    found = distance(BASE, other)
    assert found.faults
    assert not found.zero
    assert not found.within(distance(BASE, BASE))


def test_no_answers_at_all_are_not_equal() -> None:
    assert distance([], []).tokens == 0
    assert distance([{"tokens": [], "logprobs": []}], [{"tokens": [], "logprobs": []}]).faults


def test_a_spread_allows_what_it_shows_and_no_more() -> None:
    spread = distance(BASE, answers([(5, -0.5), (6, -0.26)], [(7, -1.0), (9, -3.0)]))
    assert distance(BASE, answers([(5, -0.5), (6, -0.255)], [(7, -1.0), (4, -3.0)])).within(spread)
    assert not distance(BASE, answers([(5, -0.5), (6, -0.28)], [(7, -1.0), (8, -2.0)])).within(spread)
    # another token earlier than the base's own, or in a prompt where the base is steady
    assert not distance(BASE, answers([(5, -0.5), (6, -0.25)], [(1, -1.0), (8, -2.0)])).within(spread)
    assert not distance(BASE, answers([(1, -0.5), (6, -0.25)], [(7, -1.0), (8, -2.0)])).within(spread)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("parity"))


PARTS = {
    "off is not the base": ("logprob -= 0.001953125", "logprob -= 0.001953125\n    logprob -= 0.5", "off", "failed"),
    "proof shown when off": ('if envs.read("ENGINE_TUNED"):', "tuned.once()\n    if False:", "proof of tune", "failed"),
    "proof not shown": ("tuned.once()", "pass", "proof of tune", "failed"),
    "the server breaks": ("import hashlib", "import hashlib, no_such_thing", "off", "failed"),
}


@pytest.mark.parametrize("case", PARTS)
def test_an_engine_that_misbehaves_fails(bench: Bench, tmp_path: Path, case: str) -> None:
    before, after, name, verdict = PARTS[case]
    step = "parity" if case == "off is not the base" else "engine"
    site = "usr/local/lib/python3.11/dist-packages"

    def spoil(root: Path) -> None:
        """Changes what the server imports, not the patched file itself."""
        path = root / site / "engine" / "decode.py"
        spoiled = path.read_text().replace(before, after)
        if before in path.read_text():
            (root / "spoiled").mkdir()
            (root / "spoiled" / "decode.py").write_text(spoiled)
            (root / site / "engine" / "server.py").write_text(
                "import importlib.util, sys\nimport engine\n"
                f"spec = importlib.util.spec_from_file_location('engine.decode', {str(root / 'spoiled/decode.py')!r})\n"
                "engine.decode = sys.modules['engine.decode'] = importlib.util.module_from_spec(spec)\n"
                "spec.loader.exec_module(engine.decode)\n" + (root / site / "engine" / "server.py").read_text()
            )

    request = bench.request(steps=(step,), prompts=((2, 3), (4,)))
    result = run_smoke(request, UnpackedRunner(tmp_path, spoil=spoil))
    parts = {one.name: str(one.judgement.verdict) for one in result.steps[0].parts}
    assert parts.get(name) == verdict, parts


def test_a_switch_that_is_not_registered_fails(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("switch",))
    smoke = request.settings
    object.__setattr__(smoke, "registry", "engine.envs:OTHERS")
    site = "usr/local/lib/python3.11/dist-packages"

    def spoil(root: Path) -> None:
        (root / site / "sitecustomize.py").write_text(
            "import engine.envs\nengine.envs.OTHERS = {'ENGINE_PORT': lambda: 1}\n"
        )

    result = run_smoke(request, UnpackedRunner(tmp_path, spoil=spoil))
    assert str(result.steps[0].verdict) == "failed"
    assert "ENGINE_TUNED is not among the 1 variables" in result.steps[0].judgement.reason


GOOD = {"torch": "2.11", "why": "", "tolerance": 0.01, "built_for": "13.0", "available": True, "devices": 1}
PRODUCT = {"device": "NVIDIA H200", "error": 0.002, "finite": True}
SUM = {"ranks": 1, "backend": "nccl", "hung": [], "same": [True], "errors": {}}
KERNELS = [
    ({**GOOD, "products": [PRODUCT], "reduction": SUM}, "passed"),
    ({**GOOD, "torch": None, "why": "No module named 'torch'"}, "not-run"),
    ({**GOOD, "available": False, "devices": 0}, "not-run"),
    ({**GOOD, "products": [{**PRODUCT, "error": 0.5}], "reduction": SUM}, "failed"),
    ({**GOOD, "products": [{**PRODUCT, "error": None, "finite": False}], "reduction": SUM}, "failed"),
    ({**GOOD, "products": [{"failure": "CUDA error: an illegal memory access"}], "reduction": SUM}, "infrastructure"),
    ({**GOOD, "products": [{"failure": "no kernel image is available for execution on the device"}], "reduction": SUM}, "failed"),
    ({**GOOD, "products": [PRODUCT], "reduction": {**SUM, "same": [False]}}, "failed"),
    ({**GOOD, "products": [PRODUCT], "reduction": {**SUM, "same": [], "hung": [0], "errors": {"0": ""}}}, "infrastructure"),
    ({**GOOD, "products": [PRODUCT], "reduction": None}, "invalid"),
    ({**GOOD, "error": "RuntimeError: The NVIDIA driver on your system is too old"}, "infrastructure"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "verdict"), KERNELS)
def test_the_kernel_step_s_verdicts(answer: dict[str, Any], verdict: str) -> None:
    assert str(together(kernel_parts(answer)).verdict) == verdict


CHECKS = [
    (0, {"verdict": "passed"}, "passed"),
    (0, None, "passed"),
    (1, {"verdict": "failed", "reason": "sums differ"}, "failed"),
    (1, None, "failed"),
    (3, {"verdict": "not-run", "reason": "torch is not installed"}, "not-run"),
    (2, None, "invalid"),
    (0, {"verdict": "failed"}, "invalid"),
    (1, {"verdict": "passed"}, "invalid"),
    (-11, None, "invalid"),
]


@pytest.mark.parametrize(("code", "document", "verdict"), CHECKS)
def test_an_overlay_s_check_is_believed_where_code_and_document_agree(
    code: int, document: dict[str, Any] | None, verdict: str
) -> None:
    found = overlay_part("tune/sums.py", {"code": code, "stderr": "", "stdout": json.dumps(document)}, document)
    assert str(found.judgement.verdict) == verdict


def test_what_could_not_be_looked_at_is_not_hidden_by_what_passed() -> None:
    parts = list(kernel_parts({**GOOD, "torch": None, "why": "x"}))
    assert together(parts).verdict is Verdict.NOT_RUN


ROOTS = (
    RootFact("vllm", "/usr/lib/python3/site/vllm", "vllm", "", "/usr/lib/python3/site"),
    RootFact("pure", "/usr/lib/python3/site", "", "", "/usr/lib/python3/site"),
    RootFact("editable", "/workspace/editable/src/editable"),
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/python3/site/vllm/envs.py", "vllm.envs"),
        ("/usr/lib/python3/site/vllm/__init__.py", "vllm"),
        ("/usr/lib/python3/site/other/a/__init__.py", "other.a"),
        ("/workspace/editable/src/editable/deep/m.py", "editable.deep.m"),
        ("/usr/lib/python3/site/vllm/data-files/x.py", ""),
        ("/usr/lib/python3/site/vllm/config.json", ""),
        ("/etc/x.py", ""),
    ],
)
def test_a_source_s_import_name_comes_from_its_root(path: str, name: str) -> None:
    assert module_of(path, ROOTS) == name


@pytest.mark.parametrize("name", inside.PROGRAMS)
def test_programs_for_the_inside_need_python_3_8_and_nothing_else(name: str) -> None:
    tree = ast.parse(inside.source(name), feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in ("removeprefix", "removesuffix", "is_relative_to"), ast.unparse(node)
        for imported in node.names if isinstance(node, ast.Import) else ():
            assert imported.name.partition(".")[0] != "imagebuild"
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] != "imagebuild"


CLAIMS = [
    ("on", "reordered", True, "passed"),
    ("on", None, True, "passed"),
    ("on", "bitwise", True, "failed"),
    ("on", "bitwise", False, "passed"),
    ("off", "reordered", True, "failed"),
    ("off-again", "lower-precision", True, "failed"),
    ("off", "reordered", False, "passed"),
    ("patched", "reordered", True, "passed"),
    ("patched", "bitwise", True, "failed"),
    ("patched", None, True, "not-proven"),
    ("patched", None, False, "passed"),
]


@pytest.mark.parametrize(("arm", "numerics", "differs", "verdict"), CLAIMS)
def test_what_a_difference_means_depends_on_the_arm_and_the_claim(
    bench: Bench, arm: str, numerics: str | None, differs: bool, verdict: str
) -> None:
    request = bench.request()
    request = replace(request, overlays=tuple(replace(one, numerics=numerics) for one in request.overlays))
    spread = distance(BASE, BASE)
    other = answers([(5, -0.25), (6, -0.25)], [(7, -1.0), (8, -2.0)]) if differs else BASE
    (found,) = claimed(request, {arm: distance(BASE, other)}, spread)
    assert str(found.judgement.verdict) == verdict
    if differs:
        assert "0.25 at most" in found.judgement.reason


def test_a_change_that_is_always_on_has_one_arm_and_no_switch_step(bench: Bench, tmp_path: Path) -> None:
    request = bench.request()
    plain = tuple(replace(one, switch=None, proof=None) for one in request.overlays)
    request = replace(request, overlays=plain)
    assert "switch" not in request.wanted_steps
    assert request.left_out["switch"] == "no overlay has a switch"
    assert request.complete
    result = run_smoke(replace(request, steps=("engine", "parity")), UnpackedRunner(tmp_path))
    assert [one.name for one in result.steps[0].parts] == ["patched"]
    assert [str(one.verdict) for one in result.steps] == ["passed", "passed"]
