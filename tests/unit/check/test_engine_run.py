"""An arm with an engine of its own: started, waited for, known from inside, asked, stopped, and its log read."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in_runner import StandInRunner

from imagebuild.check.arms import Arm
from imagebuild.check.engine_run import ArmResult, EngineSettings, run_arm
from imagebuild.check.engine_server import Expected, find_report, identity_faults
from imagebuild.check.gsm8k import RunRequest, Watch
from imagebuild.check.proofs import WantedProof
from imagebuild.check.protocol import load_dataset
from imagebuild.check.runner import CheckedImage
from imagebuild.check.verdicts import Verdict
from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.target.serve import Serve, Speculative
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.memory import MemorySource

ENGINE = str(Path(__file__).with_name("engine_double.py"))
CONTENT = Digest("c" * 64)
PROOF = WantedProof("tune", log="tuned branch runs over [0-9]+ ranks")


@pytest.fixture
def runner() -> Iterator[StandInRunner]:
    made = StandInRunner()
    yield made
    made.close()


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """A folder on the search path with the account that a patched distribution gives of itself."""
    info = tmp_path / "site" / "engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "imagebuild.json").write_text(json.dumps({"content_id": str(CONTENT)}))
    (tmp_path / "site" / "engine.py").write_text("tuned = 1\n")
    return tmp_path / "site"


class Bench:
    def __init__(self, folder: Path, questions: Path, python: str, runner: StandInRunner, site: Path) -> None:
        made = make_image(ImageSpec((), Platform("linux", "amd64")))
        self.image = CheckedImage("oci:x", made.digest, Platform("linux", "amd64"), MemorySource(made))
        self.questions, self.runner, self.site = questions, runner, site
        self.request = RunRequest(folder, "t", "on", load_dataset(questions), python, concurrency=2)
        self.waited: list[float] = []
        self.resumed: list[int] = []

    def arm(self, name: str = "on", **changes: Any) -> Arm:
        ours = name in ("off", "on")
        arm = Arm(
            name,
            self.image,
            Expected(CONTENT if ours else None),
            {"TUNE": "1" if name == "on" else "0"} if ours else {},
            () if ours else ("TUNE",),
            (PROOF,) if name == "on" else (),
        )
        return replace(arm, **changes)

    def run(self, arm: Arm, *words: str, serve: dict[str, Any] | None = None, **request: Any) -> ArmResult:
        command = (sys.executable, ENGINE, "{port}", str(self.questions), *words)
        env = {} if arm.name.startswith("base") else {"PYTHONPATH": str(self.site)}
        definition = Serve("openai", command=command, env=env, ready_deadline=30)
        settings = EngineSettings(
            replace(definition, **(serve or {})), self.runner, deadline=100.0, secrets=("sekret",), waiting=self.waited.append,
            sleep=lambda seconds: time.sleep(min(seconds, 0.05)),
        )  # fmt: skip
        asked = replace(self.request, **{"arm": arm.name, "folder": self.request.folder / arm.name, **request})
        return run_arm(asked, arm, settings, Watch(self.resumed.append))


@pytest.fixture
def bench(tmp_path: Path, questions: Path, eval_python: str, runner: StandInRunner, patched: Path) -> Bench:
    return Bench(tmp_path / "runs", questions, eval_python, runner, patched)


def meta(result: ArmResult) -> Any:
    return json.loads((result.folder / "meta_env.json").read_text())


def test_an_arm_is_served_asked_proven_and_stopped(bench: Bench) -> None:
    done = bench.run(bench.arm("on"), "wrong=2")
    assert done.judgement.verdict is Verdict.PASSED, done.judgement.reason
    assert done.run is not None
    assert done.run.right("strict-match") == 10
    found = meta(done)
    assert found["switch_proof"][0]["lines"] == 1
    assert found["switch_proof"][0]["first"] == "INFO tuned branch runs over 4 ranks"
    assert found["image_digest"] == str(bench.image.digest)
    assert found["content_id"] == str(CONTENT)
    assert (found["switch"], found["runner"], found["server"]["by_itself"]) == ("TUNE=1", "stand-in", False)
    assert found["inside"]["content_ids"] == [str(CONTENT)]
    assert found["settings"]["image_digest"] == str(bench.image.digest)
    assert "tuned branch runs" in (done.folder / "server.log").read_text()
    assert bench.runner.servers[0].stopped
    assert bench.runner.wait_gone()
    assert bench.runner.jobs[0].network


def test_base_serves_with_the_switches_unset(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE", "1")
    done = bench.run(bench.arm("base"))
    assert done.judgement.verdict is Verdict.PASSED
    assert "engine starts, TUNE=None" in (done.folder / "server.log").read_text()
    assert meta(done)["switch"] is None
    assert meta(bench.run(bench.arm("off")))["switch"] == "TUNE=0"


def test_an_on_arm_whose_log_proves_nothing_is_invalid(bench: Bench) -> None:
    done = bench.run(bench.arm("on", switches={"TUNE": "0"}))
    assert done.judgement.verdict is Verdict.INVALID
    assert "no line of the server's log matches" in done.judgement.reason
    nothing = bench.run(bench.arm("on", proofs=(WantedProof("tune"),)), folder=bench.request.folder / "second")
    assert "declares no proof" in nothing.judgement.reason


@pytest.mark.parametrize(
    ("arm", "expected", "words"),
    [
        ("on", Expected(Digest("d" * 64)), "a server of another image answers"),
        ("base", Expected(Digest("d" * 64)), "inside the image nothing says its content id"),
        ("on", Expected(None), "expected no content id of ours"),
        ("on", Expected(CONTENT, files={"/nowhere/x.py": "sha256:" + "0" * 64}), "1 of 1 files"),
        ("base", Expected(None, files={__file__: "absent"}), "1 of 1 files"),
    ],
)
def test_a_server_of_another_image_is_asked_nothing(bench: Bench, arm: str, expected: Expected, words: str) -> None:
    done = bench.run(bench.arm(arm, expected=expected))
    assert (done.judgement.verdict, done.run) == (Verdict.INVALID, None)
    assert words in done.judgement.reason
    assert not (done.folder / "answers.jsonl").exists()
    assert bench.runner.wait_gone()


def test_a_server_that_says_nothing_from_inside_is_not_trusted() -> None:
    assert list(identity_faults(None, Expected(None)))
    assert find_report("imagebuild-launch: {}") is None, "a line that is not whole yet"
    assert find_report("x\nimagebuild-launch: {}\ny") == {}
    parent = Expected(CONTENT, (Digest("a" * 64),))
    assert not list(identity_faults({"content_ids": [str(parent.parents[0]), str(CONTENT)]}, parent))


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        ({"engine": "vllm", "command": (), "speculative": Speculative("mtp", acceptance="synthetic")}, "acceptance is synthetic"),
        ({"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}}, "SGLANG_SIMULATE_ACC_LEN=3"),
    ],
)  # fmt: skip
def test_synthetic_acceptance_left_on_is_invalid(bench: Bench, serve: dict[str, Any], words: str) -> None:
    from imagebuild.target.serve import Model

    if serve.get("engine") == "vllm":
        serve = {**serve, "model": Model("m")}
    else:
        serve = {"env": {**serve["env"], "PYTHONPATH": str(bench.site)}}
    done = bench.run(bench.arm("off"), serve=serve)
    assert done.judgement.verdict is Verdict.INVALID
    assert words in done.judgement.reason
    assert done.run is None


def test_an_engine_that_ends_says_why_with_the_end_of_its_log(bench: Bench) -> None:
    with pytest.raises(UnavailableError) as caught:
        bench.run(bench.arm("off"), "dies")
    assert caught.value.code == "check.engine-ended"
    assert "exit code 7" in caught.value.message
    assert "no such kernel: gfx950" in caught.value.message


def test_an_engine_that_never_answers_is_stopped_at_its_deadline(bench: Bench) -> None:
    with pytest.raises(UnavailableError) as caught:
        bench.run(bench.arm("off"), "mute", serve={"ready_deadline": 2})
    assert caught.value.code == "check.engine-not-ready"
    assert "engine starts" in caught.value.message
    assert bench.runner.wait_gone()


def test_waiting_for_a_slow_engine_is_told(bench: Bench) -> None:
    assert bench.run(bench.arm("off"), "late").judgement.verdict is Verdict.PASSED
    assert bench.waited


def test_a_clock_that_jumps_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines, rates and latencies stand on a clock that nobody sets."""
    jumps = itertools.cycle([4e9, 0.0, 1.7e9, 86_400.0])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    done = bench.run(bench.arm("on"), "late")
    assert done.judgement.verdict is Verdict.PASSED
    assert 0 <= done.summary["seconds"] < 60
    assert 0 <= done.summary["latency_seconds"]["p50"] <= done.summary["latency_seconds"]["max"] < 60
    assert all(0 <= seconds < 60 for seconds in bench.waited)


def test_an_engine_that_dies_on_the_way_loses_nothing_and_the_run_goes_on(bench: Bench) -> None:
    died = bench.run(bench.arm("off"), "dead-after=7")
    assert died.judgement.verdict is Verdict.INFRASTRUCTURE
    assert died.run is not None
    assert died.run.counts.failed == 5
    again = bench.run(bench.arm("off"))
    assert again.judgement.verdict is Verdict.PASSED
    assert bench.resumed == [0, 7]


def test_an_engine_that_crashes_on_the_way_says_how(bench: Bench) -> None:
    died = bench.run(bench.arm("off"), "exits-after=4", concurrency=1)
    assert died.judgement.verdict is Verdict.INFRASTRUCTURE
    assert "the server had ended by itself, exit code 9: its log is server.log" in died.judgement.reason
    assert "out of memory" in (died.folder / "server.log").read_text()
    assert meta(died)["server"]["by_itself"] is True


def test_a_whole_run_is_not_run_again_and_another_is(bench: Bench) -> None:
    first = bench.run(bench.arm("on"))
    again = bench.run(bench.arm("on"))
    assert len(bench.runner.servers) == 1
    assert again.judgement.reason == "the run of before counts, and was not run again"
    assert again.run is not None
    assert first.run is not None
    assert again.run.claimed == first.run.claimed
    (first.folder / "summary.json").unlink()
    assert bench.run(bench.arm("on")).judgement.verdict is Verdict.PASSED
    assert len(bench.runner.servers) == 2


def test_secrets_do_not_stay_in_the_log(bench: Bench, questions: Path) -> None:
    done = bench.run(bench.arm("off"), serve={"env": {"TUNE": "sekret", "PYTHONPATH": str(bench.site)}})
    assert "sekret" not in (done.folder / "server.log").read_text()


def test_an_interrupted_run_stops_its_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*words: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("imagebuild.check.engine_run.run_gsm8k", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(bench.arm("off"))
    assert bench.runner.servers[0].stopped
    assert bench.runner.wait_gone()


def test_the_launcher_keeps_several_programs_together(tmp_path: Path, runner: StandInRunner, bench: Bench) -> None:
    from imagebuild.check.engine_server import EngineStart
    from imagebuild.check.serving import ServingPlan

    wait: Callable[[int], tuple[str, ...]] = lambda code: ("python3", "-c", f"import time; time.sleep(0.2); raise SystemExit({code})")  # noqa: E731  # fmt: skip
    stay = ("python3", "-c", "import time; time.sleep(60)")
    start = EngineStart(bench.image, ServingPlan((stay, wait(5)), {}), 1, Expected(None), 5.0, 5.0)
    server = runner.serve(bench.image, start.job(), 1)
    assert server.process.wait(20) == 5
