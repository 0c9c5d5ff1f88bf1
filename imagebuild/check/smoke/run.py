"""Running the steps, cheapest first, and judging jobs that ran elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from imagebuild.check.runner import End, Job, Outcome, Runner
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import SmokeResult, StepResult, part
from imagebuild.check.smoke.step import RAN_AS, StepJob
from imagebuild.check.smoke.step_table import AGAIN, STEPS, Step
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import UnavailableError

Outcomes = Mapping[tuple[str, str], Outcome]
"""What became of jobs, by step and key."""
STOPS = (Verdict.FAILED, Verdict.INVALID, Verdict.INFRASTRUCTURE)
Progress = Callable[[str, str], None]
"""Told of a step: its name, and `begins` or its verdict."""


@dataclass(frozen=True, slots=True)
class SmokePlan:
    """A request with the steps that it takes.  `jobs` are all that may run, in order; each is a value that can be kept,
    sent elsewhere and run there by any runner."""

    request: SmokeRequest
    steps: tuple[Step, ...]

    @property
    def jobs(self) -> tuple[StepJob, ...]:
        return tuple(job for step in self.steps for job in step.jobs(self.request))

    def jobs_of(self, step: str) -> tuple[StepJob, ...]:
        """The jobs of one step, as one task of a job array runs them: in order, one with `after` only where the job of
        that key did not start."""
        return tuple(job for job in self.jobs if job.step == step)


def plan_smoke(request: SmokeRequest) -> SmokePlan:
    """The steps that were asked for, and the second look at the devices where there was a first."""
    steps = [step for step in STEPS if step.name in request.wanted_steps]
    if len(steps) > 1 and any(step.name == "devices" for step in steps) and request.devices is not None:
        steps.append(AGAIN)
    return SmokePlan(request, tuple(steps))


def run_jobs(jobs: tuple[StepJob, ...], run: Callable[[StepJob], Outcome]) -> dict[str, Outcome]:
    """Runs one step's jobs in order; one with `after` only where that one did not start."""
    outcomes: dict[str, Outcome] = {}
    for one in jobs:
        if one.after is not None and outcomes[one.after].end is not End.NOT_STARTED:
            continue
        outcomes[one.key] = run(one)
    return outcomes


def run_smoke(request: SmokeRequest, runner: Runner, progress: Progress = lambda step, word: None) -> SmokeResult:
    """Runs the steps one after another, each job by `runner`.

    After a step that failed, is invalid or met a faulty machine, the later ones are not run; without a good accelerator
    those that need one are not.  Equal jobs of several steps run once.  A runner that cannot work here makes the steps
    with jobs `not-run`; what it raises beyond that passes through.
    """
    plan = plan_smoke(request)
    known: list[tuple[StepJob, Outcome]] = []
    why_not = runner.available()

    def run(asked: StepJob) -> Outcome:
        for other, outcome in known:
            if other.base == asked.base and _same(other.job, asked.job):
                return taken_over(outcome, other)
        outcome = runner.run(asked.image, asked.job)
        known.append((asked, outcome))
        return outcome

    results: list[StepResult] = []
    for step in plan.steps:
        jobs = step.jobs(request)
        reason = not_now(step, results, request)
        if reason is None and jobs and why_not is not None:
            reason = f"the runner {runner.name} cannot work here: {why_not}"
        if reason is not None:
            results.append(not_run(step.name, reason))
            continue
        progress(step.name, "begins")
        try:
            results.append(step.judge(request, run_jobs(jobs, run)))
            request = after_devices(request, results[-1])
        except UnavailableError as error:
            if error.code != "check.no-runner":
                raise
            results.append(not_run(step.name, error.message))
        progress(step.name, str(results[-1].verdict))
    return SmokeResult(request.target.name, tuple(results), request.complete, runner.name)


def judge_smoke(plan: SmokePlan, outcomes: Outcomes, runner: str) -> SmokeResult:
    """Judges jobs that ran elsewhere.  A step of whose jobs one has no outcome (and should have run) is `not-run`."""
    results = tuple(judge_step(plan.request, step, outcomes) for step in plan.steps)
    return SmokeResult(plan.request.target.name, results, plan.request.complete, runner)


def judge_step(request: SmokeRequest, step: Step, outcomes: Outcomes) -> StepResult:
    """The same of one step."""
    jobs = step.jobs(request)
    mine = {one.key: outcomes[step.name, one.key] for one in jobs if (step.name, one.key) in outcomes}
    lost = [one.key for one in jobs if one.after is None and one.key not in mine]
    if lost:
        return not_run(step.name, f"nothing is known of its job {lost[0]}")
    return step.judge(request, mine)


def after_devices(request: SmokeRequest, result: StepResult) -> SmokeRequest:
    """The request as it goes on: overlays' own checks say for themselves what they can do without accelerators."""
    if result.step == "devices" and result.verdict is Verdict.NOT_RUN:
        return replace(request, accelerators=0)
    return request


def taken_over(outcome: Outcome, ran: StepJob) -> Outcome:
    """An outcome for a job that did not run, since it is equal to `ran`: it took no time of its own."""
    return replace(outcome, seconds=0.0, machine={**outcome.machine, RAN_AS: ran.job.name})


def _same(one: Job, two: Job) -> bool:
    """Equal but for their names and deadlines."""
    names = ("command", "environment", "unset", "inputs", "mounts", "devices", "network")
    return all(getattr(one, name) == getattr(two, name) for name in names)


def not_now(step: Step, results: list[StepResult], request: SmokeRequest) -> str | None:
    """Why a step is not worth starting, None where it is."""
    devices = next((one for one in results if one.step == "devices"), None)
    if step.name == "devices-again":
        if devices is None or devices.verdict is not Verdict.PASSED:
            return "the devices were no good the first time"
        return None
    stopped = next((one for one in results if one.verdict in STOPS), None)
    if stopped is not None:
        return f"{stopped.step} is {stopped.verdict}"
    if step.accelerator and request.sku is not None and devices is not None and devices.verdict is not Verdict.PASSED:
        return f"devices: {devices.judgement.reason or devices.verdict}"
    return None


def not_run(step: str, reason: str) -> StepResult:
    return StepResult(step, (part(step, Verdict.NOT_RUN, reason),))
