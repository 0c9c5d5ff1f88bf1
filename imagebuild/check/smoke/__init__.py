"""The smoke test of a patched image: is the patched code what runs, on the hardware that it is for (checks.md, Smoke).

plan = plan_smoke(request)            # every step's jobs, as values
result = run_smoke(request, runner)   # or: judge_smoke(plan, outcomes) of jobs that ran elsewhere
"""

from __future__ import annotations

from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, SmokeResult, StepResult
from imagebuild.check.smoke.run import SmokePlan, judge_smoke, plan_smoke, run_smoke
from imagebuild.check.smoke.step import StepJob

__all__ = [
    "Part", "SmokePlan", "SmokeRequest", "SmokeResult", "StepJob", "StepResult", "judge_smoke", "plan_smoke", "run_smoke",
]  # fmt: skip
