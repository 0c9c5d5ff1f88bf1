"""One arm of an accuracy run with an engine of its own: started from its image, asked, stopped, and its log read for proof."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagebuild.check.arms import Arm
from imagebuild.check.compare import run_faults
from imagebuild.check.engine_server import EngineServer, EngineStart, identity_faults
from imagebuild.check.gsm8k import SETTINGS, Finished, RunRequest, Watch, claimed, run_gsm8k
from imagebuild.check.proofs import log_proof
from imagebuild.check.results import Run, load_run
from imagebuild.check.runner import Devices, Outcome, Runner
from imagebuild.check.serving import serving_plan, synthetic_acceptance
from imagebuild.check.verdicts import Judgement, Verdict
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import ImagebuildError
from imagebuild.host import clock
from imagebuild.host.loopback import free_port
from imagebuild.target.serve import Serve

EVERYWHERE = "0.0.0.0"  # noqa: S104 (another node than ours has to reach it)
LOG = "server.log"
LOG_KEPT = 16 << 20
"""Bytes of a server's log that stay beside the run: the first half and the last."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is common to all arms of one call.  `models` are folders by model id; `deadline` of an engine's whole life in
    seconds; `secrets` must reach no file; `waiting` is told the seconds waited for the engine."""

    serve: Serve
    runner: Runner
    models: Mapping[str, str] = field(default_factory=no_entries)
    devices: Devices | None = None
    deadline: float = 86_400.0
    secrets: tuple[str, ...] = ()
    waiting: Callable[[float], None] = lambda seconds: None
    sleep: clock.Sleep = clock.sleep


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What became of an arm.  `finished` is None where no question was asked: the judgement says why, or that a run of
    before holds (`reused`).  `run` is what gate and compare read."""

    arm: str
    folder: Path
    judgement: Judgement
    run: Run | None = None
    summary: Mapping[str, Any] = field(default_factory=no_entries)
    reused: bool = False

    def to_json(self) -> dict[str, Any]:
        scores = dict(self.run.claimed) if self.run is not None else {}
        base = {"kind": "gsm8k-run", "schemaVersion": 1, "arm": self.arm}
        return {**base, **self.summary, **self.judgement.to_json(), "folder": str(self.folder), "scores": scores}


def of_finished(done: Finished) -> ArmResult:
    return ArmResult(str(done.summary["arm"]), done.run.folder, done.judgement, done.run, done.summary)


def run_arm(request: RunRequest, arm: Arm, settings: EngineSettings, watch: Watch | None = None) -> ArmResult:
    """Starts the arm's engine, asks every question that is not answered yet, and stops it.

    A run that is whole already is not run again.  A server of another image, or one whose acceptance is synthetic, is asked
    nothing: `invalid`.  Raises as `EngineServer` and `run_gsm8k` do; the engine is stopped then as well, and the answers
    so far are in the folder.
    """
    plan = serving_plan(
        settings.serve,
        port := free_port(),
        host=EVERYWHERE if settings.runner.name == "slurm" else "127.0.0.1",
        folders=settings.models,
    )
    request = replace(
        request,
        model=request.model or plan.served_model,
        proofs=arm.proofs,
        meta={**request.meta, **_identity(arm, settings)},
    )
    before = _finished(request)
    if before is not None:
        return before
    synthetic = synthetic_acceptance(settings.serve, {})
    if synthetic is not None:
        return _invalid(request, f"speculative decoding with synthetic acceptance: {synthetic}")
    with claimed(request.folder):
        pass  # no engine is started for a run that another call is at work on
    start = EngineStart(
        arm.image,
        plan,
        port,
        arm.expected,
        float(settings.serve.ready_deadline),
        settings.deadline,
        arm.switches,
        arm.unset,
        settings.devices,
        f"gsm8k-{request.target}-{arm.name}",
    )
    with EngineServer(settings.runner, start, waiting=settings.waiting, sleep=settings.sleep) as server:
        faults = list(identity_faults(server.report, arm.expected))
        reported = server.report or {}
        synthetic = synthetic_acceptance(settings.serve, reported.get("environment") or {})
        if synthetic is not None:
            faults.append(f"speculative decoding with synthetic acceptance: {synthetic}")
        if faults:
            _keep_log(request.folder, server.stop(), settings.secrets)
            return _invalid(request, "; ".join(faults))
        known = {"inside": dict(reported), "ready_seconds": round(server.ready_seconds, 3)}
        accelerators = reported.get("accelerators")
        if accelerators and not request.meta.get("hardware"):
            known["hardware"] = f"{len(accelerators)} x {accelerators[0]}"
        request = replace(request, meta={**request.meta, **known})

        def closing() -> Mapping[str, Any]:
            died = server.ended()
            outcome = server.stop()
            log = _keep_log(request.folder, outcome, settings.secrets)
            end = {
                "end": str(outcome.end),
                "code": outcome.code,
                "detail": outcome.detail,
                "by_itself": died is not None,
            }
            proofs = [log_proof(wanted, log) for wanted in arm.proofs]
            return {"proofs": proofs, "server": {**end, "machine": dict(outcome.machine)}}

        with server.client() as client:
            done = run_gsm8k(request, client, watch, closing)
    result, server_end = of_finished(done), done.run.meta.get("server") or {}
    if result.judgement.verdict is Verdict.INFRASTRUCTURE and server_end.get("by_itself"):
        how = f"exit code {server_end['code']}" if server_end.get("code") is not None else str(server_end.get("end"))
        reason = f"{result.judgement.reason}; the server had ended by itself, {how}: its log is {LOG}"
        return replace(result, judgement=Judgement(Verdict.INFRASTRUCTURE, reason))
    return result


def _identity(arm: Arm, settings: EngineSettings) -> dict[str, Any]:
    """What is known of the image before it serves.  Without a container no image is involved, and none is claimed."""
    contained = settings.runner.name != "host"
    return {
        "image": arm.image.reference if contained else None,
        "image_digest": str(arm.image.digest) if contained else None,
        "image_index": str(arm.image.index) if contained and arm.image.index is not None else None,
        "content_id": str(arm.expected.content_id) if arm.expected.content_id is not None else None,
        "identity": "read inside the server's container" if contained else "installed files; no image was started",
        "switch": arm.position,
        "runner": settings.runner.name,
    }


def _invalid(request: RunRequest, reason: str) -> ArmResult:
    return ArmResult(request.arm, request.folder, Judgement(Verdict.INVALID, reason))


def _keep_log(folder: Path, outcome: Outcome, secrets: tuple[str, ...]) -> str:
    """Writes `server.log`, both streams one after the other without secrets; the whole text."""
    text = (outcome.stdout + b"\n" + outcome.stderr).decode("utf-8", "replace")
    for word in secrets:
        text = text.replace(word, "***")
    data = text.encode("utf-8", "replace")
    if len(data) > LOG_KEPT:
        data = data[: LOG_KEPT // 2] + b"\n[...]\n" + data[-LOG_KEPT // 2 :]
    with io_faults(folder, "writing"):
        folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / LOG, data)
    return text


def _finished(request: RunRequest) -> ArmResult | None:
    """The run that the folder holds, where it is whole, counts, and was asked in the same way."""
    try:
        settings = json.loads((request.folder / SETTINGS).read_bytes())
        summary = json.loads((request.folder / "summary.json").read_bytes())
        run = load_run(request.folder)
    except (OSError, ValueError, ImagebuildError):
        return None
    same = (
        settings.get("target") == request.target
        and settings.get("arm") == request.arm
        and settings.get("chat") == request.chat
        and settings.get("limit") == request.limit
        and settings.get("concurrency") == request.concurrency
        and settings.get("max_tokens_asked") == request.max_tokens
        and settings.get("dataset") == request.dataset.to_json()
        and settings.get("image_digest") == request.meta.get("image_digest")
        and run.meta.get("content_id") == request.meta.get("content_id")
        and run.meta.get("runner") == request.meta.get("runner")
        and (request.model is None or settings.get("model") == request.model)
    )
    if not same or run.questions != request.expected or list(run_faults(run, request.arm, request.limits)):
        return None
    if request.proofs and not run.meta.get("switch_proof"):
        return None
    return ArmResult(
        request.arm,
        request.folder,
        Judgement(Verdict.PASSED, "the run of before counts, and was not run again"),
        run,
        summary,
        True,
    )
