"""What CI runs for a workspace: target by platform by check, each with the labels of the machine that can (`strategy.matrix`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.oci.platform import Platform
from imagebuild.target.document import Target
from imagebuild.target.site import Site
from imagebuild.target.sku import SKUS

CHECKS = ("build", "smoke", "gsm8k")
HOSTED = "ubuntu-24.04"
"""Label of a machine of the code host: it builds for every platform, since building runs nothing of an image."""
JOBS_LIMIT = 256
"""Jobs that GitHub makes of one matrix; it fails the run of a longer one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job.  `platforms` are all of the target's for a build, which makes one index, and one for a check; `site` and
    `runner` are empty for a build."""

    target: str
    check: str
    platforms: tuple[Platform, ...]
    labels: tuple[str, ...]
    sku: str = ""
    site: str = ""
    runner: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "platform": ",".join(map(str, self.platforms)),
            "arch": ",".join(platform.architecture for platform in self.platforms),
            "check": self.check,
            "sku": self.sku,
            "site": self.site,
            "runner": self.runner,
            "labels": list(self.labels),
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A check that a target asks for and no machine runs, with the reason."""

    target: str
    check: str
    platform: Platform
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"target": self.target, "platform": str(self.platform), "check": self.check, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Jobs in the order of targets, checks and platforms; what was asked for and cannot run stands apart."""

    jobs: tuple[Job, ...]
    left_out: tuple[LeftOut, ...]

    def github(self) -> dict[str, Any]:
        """The value of `strategy.matrix`."""
        return {"include": [job.to_json() for job in self.jobs]}


def plan_matrix(
    targets: Iterable[Target],
    sites: Mapping[str, Site],
    checks: Sequence[str] = CHECKS,
    hosted: Sequence[str] = (HOSTED,),
    unlocked: Collection[str] = (),
) -> Matrix:
    """The jobs of the targets for `checks`; those of `unlocked` have no lock, so that nothing can be built.  A check goes to the first site that names the target's accelerator under
    `skus`, else to the first that names none; a site without `labels` has no CI runner."""
    jobs: list[Job] = []
    left_out: list[LeftOut] = []
    for target in targets:
        if target.name in unlocked:
            left_out += [
                LeftOut(target.name, check, one, "it has no lock") for check in checks for one in target.platforms
            ]
            continue
        if "build" in checks:
            jobs.append(Job(target.name, "build", target.platforms, tuple(hosted), target.sku or ""))
        for check in ("smoke", "gsm8k"):
            if check not in checks or target.checks is None or getattr(target.checks, check) is None:
                continue
            for platform in (SKUS[target.sku].platform,) if target.sku else target.platforms:
                site = _site_for(target.sku, sites.values())
                if isinstance(site, str):
                    left_out.append(LeftOut(target.name, check, platform, site))
                    continue
                jobs.append(Job(target.name, check, (platform,), site.labels, target.sku or "", site.name, site.runner))
    return Matrix(tuple(jobs), tuple(left_out))


def _site_for(sku: str | None, sites: Iterable[Site]) -> Site | str:
    """The site, or why there is none."""
    named = [site for site in sites if sku is not None and sku in site.skus]
    fitting = named or [site for site in sites if not site.skus]
    if not fitting:
        return f"no site has {sku}" if sku else "no site is open to every accelerator"
    able = [site for site in fitting if site.labels]
    if not able:
        return f"site {fitting[0].name} names no labels of CI runners"
    return able[0]
