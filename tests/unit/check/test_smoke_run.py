"""The smoke test end to end over unpacked files: all steps good, an inert patch caught in each way, honest verdicts."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from smoke_bench import SITE, Bench, UnpackedRunner, outcome

from imagebuild.check.runner import End, Outcome
from imagebuild.check.smoke import SmokeResult, judge_smoke, plan_smoke, run_smoke
from imagebuild.check.smoke.run import run_jobs
from imagebuild.check.verdicts import Verdict
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.smoke_engine import DECODE, DECODE_AFTER


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("smoke"))


def verdicts(result: SmokeResult) -> dict[str, str]:
    return {one.step: str(one.verdict) for one in result.steps}


def reasons(result: SmokeResult, step: str) -> str:
    return next(one.judgement.reason for one in result.steps if one.step == step)


def test_a_good_image_passes_every_step_and_equal_jobs_run_once(bench: Bench, tmp_path: Path) -> None:
    runner = UnpackedRunner(tmp_path)
    result = run_smoke(bench.request(), runner)
    assert verdicts(result) == dict.fromkeys(("files", "python", "switch", "engine", "parity", "overlay"), "passed")
    assert result.judgement.verdict is Verdict.PASSED
    assert result.complete
    # parity takes the arms of the engine step, and runs the base beside them
    assert runner.ran.count("smoke-engine") == 1
    assert [name for name in runner.ran if "parity" in name] == ["smoke-parity-base"]
    assert "decode step runs tuned" in reasons(result, "engine")
    step = next(one for one in result.steps if one.step == "parity")
    # what was measured before is said to be, and its seconds count once
    assert "parity-base" in step.commands[0]
    assert "run once" not in step.commands[0]
    assert step.commands[1].endswith(": run once, as smoke-engine")
    assert step.seconds == runner.seconds["smoke-parity-base"]
    parity = step.facts
    assert parity["off"]["largest"] == 0.0
    assert parity["on"]["largest"] == pytest.approx(0.001953125)


def stale(root: Path) -> None:
    """Unchecked-hash bytecode of the base's source (PEP 552): Python never looks at the source beside it."""
    path = root / SITE / "engine" / "decode.py"
    code = compile(DECODE, str(path), "exec")
    data = importlib._bootstrap_external._code_to_hash_pyc(code, b"8 bytes.", False)  # type: ignore[attr-defined]
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(data)


def test_stale_bytecode_is_named(bench: Bench, tmp_path: Path) -> None:
    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=stale))
    assert verdicts(result) == {"python": "failed"}
    assert f"decode.{sys.implementation.cache_tag}.pyc runs instead of the patched source" in reasons(result, "python")


def test_other_bytes_at_a_patched_path_void_the_run(bench: Bench, tmp_path: Path) -> None:
    def spoil(root: Path) -> None:
        (root / SITE / "engine" / "decode.py").write_bytes(DECODE_AFTER + b"# more\n")

    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "invalid"}
    assert "engine/decode.py is not the image's" in reasons(result, "python")


def test_a_job_that_ran_on_the_host_instead_counts_for_nothing(bench: Bench, tmp_path: Path) -> None:
    """As `srun --container` without oci.conf: everything is there but the image."""
    result = run_smoke(bench.request(steps=("python", "engine"), relocated=False), UnpackedRunner(tmp_path))
    assert verdicts(result) == {"python": "invalid", "engine": "not-run"}
    assert "it did not run in the image" in reasons(result, "python")


def test_an_engine_that_tells_of_another_image_voids_the_run(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("python",))
    plan = plan_smoke(request)
    runner = UnpackedRunner(tmp_path)
    (job,) = plan.jobs
    ran = runner.run(job.image, job.job)
    config = next(iter(read_image_tree(job.image.source, job.image.digest).children.values())).manifest.config
    for said, verdict in ((str(config.digest), Verdict.PASSED), ("sha256:" + "0" * 64, Verdict.INVALID)):
        outcomes = {("python", "python"): replace(ran, machine={"imageId": said})}
        assert judge_smoke(plan, outcomes, "docker").judgement.verdict is verdict


def test_an_import_that_hangs_ends_by_the_deadline(bench: Bench, tmp_path: Path) -> None:
    def spoil(root: Path) -> None:
        (root / SITE / "engine" / "__init__.py").write_bytes(b"import time\nwhile True:\n    time.sleep(1)\n")

    request = bench.request(steps=("python", "switch"))
    object.__setattr__(request.settings, "deadline", 4)
    result = run_smoke(request, UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "infrastructure", "switch": "not-run"}
    assert "hung: smoke-python did not end within 4 s" in reasons(result, "python")
    assert result.steps[0].seconds < 30


def test_another_content_id_voids_the_run(bench: Bench, tmp_path: Path) -> None:
    def spoil(root: Path) -> None:
        path = root / SITE / "engine-1.0.dist-info" / "imagebuild.json"
        value = json.loads(path.read_text())
        value["content_id"] = "sha256:" + "0" * 64
        path.write_text(json.dumps(value))

    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "invalid"}
    assert "an image of another content: sha256:0000" in reasons(result, "python")


def test_a_module_that_needs_what_is_not_there_is_not_run(bench: Bench, tmp_path: Path) -> None:
    def spoil(root: Path) -> None:
        (root / SITE / "engine" / "__init__.py").write_bytes(b"import no_such_dependency\n")

    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "not-run"}
    assert "needs no_such_dependency, not to be had here" in reasons(result, "python")
    names = {one.name: str(one.judgement.verdict) for one in result.steps[0].parts}
    assert names["imported files"] == "passed"
    assert names["import"] == "not-run"


def test_a_module_that_needs_an_accelerator_is_not_run(bench: Bench, tmp_path: Path) -> None:
    """The step asks for none, so that it runs everywhere."""

    def spoil(root: Path) -> None:
        text = b"raise RuntimeError('Found no NVIDIA driver on your system. Please check that you have a GPU')\n"
        (root / SITE / "engine" / "__init__.py").write_bytes(text)

    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "not-run"}
    assert "needs an accelerator" in reasons(result, "python")


def test_an_import_that_breaks_is_a_failure(bench: Bench, tmp_path: Path) -> None:
    def spoil(root: Path) -> None:
        (root / SITE / "engine" / "__init__.py").write_bytes(b"raise RuntimeError('broken')\n")

    result = run_smoke(bench.request(steps=("python",)), UnpackedRunner(tmp_path, spoil=spoil))
    assert verdicts(result) == {"python": "failed"}
    assert "RuntimeError: broken" in reasons(result, "python")


ENDS = {
    "no answer": (outcome(stderr=b"nothing here"), Verdict.INVALID),
    "an answer of something else": (outcome(b'{"kind": "other"}'), Verdict.INVALID),
    "not JSON": (outcome(b"{"), Verdict.INVALID),
    "lost": (outcome(end=End.LOST, code=None, detail="node n2 is down"), Verdict.INFRASTRUCTURE),
    "deadline": (outcome(end=End.DEADLINE, code=None), Verdict.INFRASTRUCTURE),
    "not started": (outcome(end=End.NOT_STARTED, code=None, detail="no space left"), Verdict.INFRASTRUCTURE),
    "no Python": (
        outcome(end=End.NOT_STARTED, code=None, detail='exec: "python3": executable file not found in $PATH'),
        Verdict.NOT_RUN,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_how_a_job_ended_decides_before_what_it_said(bench: Bench, tmp_path: Path, end: str) -> None:
    given, verdict = ENDS[end]
    runner = UnpackedRunner(tmp_path, {"smoke-python": given})
    result = run_smoke(bench.request(steps=("python",)), runner)
    assert result.judgement.verdict is verdict, result.judgement


def test_a_runner_that_cannot_work_leaves_steps_not_run(bench: Bench, tmp_path: Path) -> None:
    runner = UnpackedRunner(tmp_path)
    runner.reason = "no engine answers"
    result = run_smoke(bench.request(), runner)
    assert verdicts(result)["files"] == "passed"
    assert set(verdicts(result).values()) == {"passed", "not-run"}
    assert "no engine answers" in reasons(result, "python")
    assert runner.ran == []


def test_jobs_that_ran_elsewhere_are_judged_alike(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("files", "python", "switch"))
    plan = plan_smoke(request)
    runner = UnpackedRunner(tmp_path)
    outcomes: dict[tuple[str, str], Outcome] = {}
    for step in ("python", "switch"):
        done = run_jobs(plan.jobs_of(step), lambda one: runner.run(one.image, one.job))
        outcomes.update({(step, key): found for key, found in done.items()})
    assert set(verdicts(judge_smoke(plan, outcomes, "elsewhere")).values()) == {"passed"}
    del outcomes["switch", "switch"]
    assert verdicts(judge_smoke(plan, outcomes, "elsewhere"))["switch"] == "not-run"


def test_a_changed_layer_fails_the_first_step(bench: Bench, tmp_path: Path) -> None:
    request = bench.request(steps=("files",))
    other = bench.request(steps=("files",), relocated=True)
    wrong = type(request)(
        **{
            **{name: getattr(request, name) for name in ("target", "overlays", "lock", "documents", "steps")},
            "image": other.base,
            "base": other.base,
        }
    )
    result = run_smoke(wrong, UnpackedRunner(tmp_path))
    assert verdicts(result) == {"files": "invalid"}
    assert "the image is the one that the lock names" in reasons(result, "files")
