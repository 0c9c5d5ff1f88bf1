"""Smoke tests of many images as one job array: every target, platform and check is a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imagebuild.check.runner import End, Outcome
from imagebuild.check.runners.slurm import SlurmRunner
from imagebuild.check.slurm.task import Task
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import SmokeResult, StepResult
from imagebuild.check.smoke.run import (
    SmokePlan,
    after_devices,
    judge_step,
    not_now,
    not_run,
    plan_smoke,
    taken_over,
)
from imagebuild.check.smoke.step import StepJob
from imagebuild.check.smoke.step_table import AGAIN, Step
from imagebuild.content.canonical import canonical_json

Progress = Callable[[str], None]
WAVES = (("files",), ("python", "switch", "devices"), ("kernel", "engine", "parity", "overlay"), (AGAIN.name,))
"""Steps whose jobs go out together; what costs much waits for what costs little."""


def run_smoke_array(
    requests: Sequence[SmokeRequest], runner: SlurmRunner, progress: Progress = lambda word: None
) -> tuple[SmokeResult, ...]:
    """The results of all requests, in order.

    The jobs go out in a few arrays, cheapest first: what needs no accelerator and the look at the devices; what is only
    worth its accelerators after that; the second look at the devices.  An image that failed in one of them takes no part in
    the next.  Equal jobs run once.  The same call after this process was killed takes up what is on its way.  Raises as
    SlurmRunner.run_many.
    """
    plans = [plan_smoke(request) for request in requests]
    if runner.available() is not None:
        return tuple(_without(plan, f"the runner slurm cannot work here: {runner.available()}") for plan in plans)
    tests = [_Test(plan) for plan in plans]
    arrays: list[dict[bytes, StepJob]] = []
    for wave in WAVES:
        places = [(test, job) for test in tests for step in test.begin(wave) for job in step.jobs(test.request)]
        arrays.append(_run([one for one in places if one[1].after is None], runner, progress))
        arrays.append(_run([one for one in places if one[1].after is not None and _wanted(one)], runner, progress))
        for test in tests:
            test.judge(wave)
    for jobs in arrays:
        if jobs:
            runner.forget([(one.image, one.job) for one in jobs.values()])
    return tuple(SmokeResult(one.request.target.name, tuple(one.results), one.complete, runner.name) for one in tests)


class _Test:
    """One image's smoke test on its way through the arrays."""

    def __init__(self, plan: SmokePlan) -> None:
        self.request = plan.request
        self.complete = plan.request.complete
        self.steps = plan.steps
        self.known: dict[tuple[str, str], Outcome] = {}
        self.results: list[StepResult] = []
        self._why_not: dict[str, str] = {}

    def begin(self, wave: Sequence[str]) -> list[Step]:
        """The steps of an array that are worth starting after what is known."""
        asked = [step for step in self.steps if step.name in wave]
        reasons = {step.name: not_now(step, self.results, self.request) for step in asked}
        self._why_not = {name: reason for name, reason in reasons.items() if reason is not None}
        return [step for step in asked if step.name not in self._why_not]

    def judge(self, wave: Sequence[str]) -> None:
        for step in self.steps:
            if step.name not in wave:
                continue
            reason = self._why_not.get(step.name)
            if reason is not None:
                self.results.append(not_run(step.name, reason))
            else:
                self.results.append(judge_step(self.request, step, self.known))
        for one in self.results:
            self.request = after_devices(self.request, one)


_Place = tuple[_Test, StepJob]


def _wanted(one: _Place) -> bool:
    test, job = one
    before = test.known.get((job.step, job.after or ""))
    return before is not None and before.end is End.NOT_STARTED


def _text(job: StepJob) -> bytes:
    value = Task(job.image, job.job).to_json()
    return canonical_json({key: item for key, item in value.items() if key != "name"})


def _run(places: Sequence[_Place], runner: SlurmRunner, progress: Progress) -> dict[bytes, StepJob]:
    """Runs each different job once; gives the jobs that ran, by their text."""
    jobs: dict[bytes, StepJob] = {}
    for _, job in places:
        jobs.setdefault(_text(job), job)
    if not jobs:
        return jobs
    progress(f"{len(jobs)} tasks go to the cluster")
    outcomes = dict(zip(jobs, runner.run_many([(one.image, one.job) for one in jobs.values()], keep=True), strict=True))
    told: set[tuple[int, bytes]] = set()
    for test, job in places:
        text = _text(job)
        ran, outcome = jobs[text], outcomes[text]
        test.known[job.step, job.key] = taken_over(outcome, ran) if (id(test), text) in told else outcome
        told.add((id(test), text))
    return jobs


def _without(plan: SmokePlan, reason: str) -> SmokeResult:
    steps = []
    for step in plan.steps:
        if step.jobs(plan.request):
            steps.append(not_run(step.name, reason))
        else:
            steps.append(step.judge(plan.request, {}))
    return SmokeResult(plan.request.target.name, tuple(steps), plan.request.complete, "slurm")
