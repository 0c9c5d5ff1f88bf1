"""Smoke tests of many images as one job array: every target, platform and check is a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imagebuild.check.runner import End, Outcome
from imagebuild.check.runners.slurm import SlurmRunner
from imagebuild.check.slurm.task import Task
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import SmokeResult
from imagebuild.check.smoke.run import SmokePlan, judge_smoke, plan_smoke
from imagebuild.check.smoke.step import StepJob
from imagebuild.check.smoke.step_table import AGAIN
from imagebuild.content.canonical import canonical_json

Progress = Callable[[str], None]
_Place = tuple[int, StepJob]


def run_smoke_array(
    requests: Sequence[SmokeRequest], runner: SlurmRunner, progress: Progress = lambda word: None
) -> tuple[SmokeResult, ...]:
    """The results of all requests, in order.

    The jobs of all steps go out together; only the second look at the devices, and jobs that stand in for one that could
    not be started, go out when the others are over.  Equal jobs run once.  The same call after this process was killed
    takes up what is on its way.  Raises as SlurmRunner.run_many.
    """
    plans = [plan_smoke(request) for request in requests]
    if runner.available() is not None:
        return tuple(_without(plan, f"the runner slurm cannot work here: {runner.available()}") for plan in plans)
    every = [(number, job) for number, plan in enumerate(plans) for job in plan.jobs]
    first = [one for one in every if one[1].after is None and one[1].step != AGAIN.name]
    known: dict[tuple[int, str, str], Outcome] = {}
    rounds = [_once(first)]
    _run(first, runner, known, progress)
    last = [one for one in every if one not in first and _wanted(one, known)]
    rounds.append(_once(last))
    _run(last, runner, known, progress)
    results = tuple(
        judge_smoke(plan, {(step, key): out for (at, step, key), out in known.items() if at == number}, runner.name)
        for number, plan in enumerate(plans)
    )
    for jobs in rounds:
        if jobs:
            runner.forget([(one.image, one.job) for one in jobs.values()])
    return results


def _wanted(one: _Place, known: dict[tuple[int, str, str], Outcome]) -> bool:
    number, job = one
    if job.after is None:
        return True
    before = known.get((number, job.step, job.after))
    return before is not None and before.end is End.NOT_STARTED


def _text(job: StepJob) -> bytes:
    value = Task(job.image, job.job).to_json()
    return canonical_json({key: item for key, item in value.items() if key != "name"})


def _once(places: Sequence[_Place]) -> dict[bytes, StepJob]:
    """Each different job, by its text; the second look at the devices is never the first one."""
    return {_text(job): job for _, job in places}


def _run(
    places: Sequence[_Place], runner: SlurmRunner, known: dict[tuple[int, str, str], Outcome], progress: Progress
) -> None:
    jobs = _once(places)
    if not jobs:
        return
    progress(f"{len(jobs)} tasks go to the cluster")
    outcomes = dict(zip(jobs, runner.run_many([(one.image, one.job) for one in jobs.values()], keep=True), strict=True))
    for number, job in places:
        known[number, job.step, job.key] = outcomes[_text(job)]


def _without(plan: SmokePlan, reason: str) -> SmokeResult:
    from imagebuild.check.smoke.result import StepResult, part
    from imagebuild.check.verdicts import Verdict

    steps = []
    for step in plan.steps:
        if step.jobs(plan.request):
            steps.append(StepResult(step.name, (part(step.name, Verdict.NOT_RUN, reason),)))
        else:
            steps.append(step.judge(plan.request, {}))
    return SmokeResult(plan.request.target.name, tuple(steps), plan.request.complete, "slurm")
