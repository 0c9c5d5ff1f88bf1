"""The steps in their order: for each the function that makes its jobs and the one that judges what came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import imagebuild.check.smoke.step_devices as step_devices
import imagebuild.check.smoke.step_engine as step_engine
import imagebuild.check.smoke.step_files as step_files
import imagebuild.check.smoke.step_kernel as step_kernel
import imagebuild.check.smoke.step_overlay as step_overlay
import imagebuild.check.smoke.step_parity as step_parity
import imagebuild.check.smoke.step_python as step_python
import imagebuild.check.smoke.step_switch as step_switch
from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import StepResult
from imagebuild.check.smoke.step import StepJob


@dataclass(frozen=True, slots=True)
class Step:
    """One step: pure but for step 1, which reads the image.  `accelerator`: nothing of it can run without one, where the
    target is made for one."""

    name: str
    jobs: Callable[[SmokeRequest], tuple[StepJob, ...]]
    judge: Callable[[SmokeRequest, Mapping[str, Outcome]], StepResult]
    accelerator: bool = False


STEPS = (
    Step("files", step_files.jobs, step_files.judge),
    Step("python", step_python.jobs, step_python.judge),
    Step("switch", step_switch.jobs, step_switch.judge),
    Step("devices", step_devices.jobs, step_devices.judge),
    Step("kernel", step_kernel.jobs, step_kernel.judge, accelerator=True),
    Step("engine", step_engine.jobs, step_engine.judge, accelerator=True),
    Step("parity", step_parity.jobs, step_parity.judge, accelerator=True),
    Step("overlay", step_overlay.jobs, step_overlay.judge),
)
AGAIN = Step("devices-again", step_devices.jobs_again, step_devices.judge_again)
"""Last, where the devices were looked at first: a node that went bad during the run voids it."""


def step_named(name: str) -> Step:
    return next(step for step in (*STEPS, AGAIN) if step.name == name)
