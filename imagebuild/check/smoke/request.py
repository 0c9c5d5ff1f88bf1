"""Everything that a smoke test of one platform's image is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imagebuild.build.image import BaseDocuments
from imagebuild.check.runner import CheckedImage, Devices, Mount
from imagebuild.check.smoke.expected import Expected, expected_of
from imagebuild.content.strict_yaml import no_entries
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Lock, PlatformInputs
from imagebuild.target.sku import SKUS, Sku
from imagebuild.target.smoke import SMOKE_STEPS, Smoke

DEADLINES: Mapping[str, int] = {
    "files": 600, "python": 600, "switch": 600, "devices": 120, "kernel": 600, "engine": 3600, "parity": 3600,
    "overlay": 1200,
}  # fmt: skip
"""Seconds of each step where the target says nothing."""


@dataclass(frozen=True, slots=True)
class SmokeRequest:
    """One image to test: the target with its series and lock, the patched `image`, the unpatched `base` for parity (None:
    not at hand), and the base's documents for step 1.

    `steps` are those to run (None: the target's).  `mounts` and `environment` come on top of what a runner knows of its site.  `prompts` are token ids.
    `accelerators` is how many a job asks for (None: all, 0: the machine has none).  `relocated`: the packages are looked for by name, since the runner has no containers (`host`).
    """

    target: Target
    overlays: tuple[Overlay, ...]
    lock: Lock
    image: CheckedImage
    base: CheckedImage | None
    documents: BaseDocuments
    steps: tuple[str, ...] | None = None
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=no_entries)
    prompts: tuple[tuple[int, ...], ...] | None = None
    relocated: bool = False
    accelerators: int | None = None
    _expected: list[Expected] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def settings(self) -> Smoke:
        checks = self.target.checks
        return checks.smoke if checks is not None and checks.smoke is not None else Smoke()

    @property
    def not_applicable(self) -> Mapping[str, str]:
        """Steps that have nothing to look at for this series, and why: they are left out, never counted as passed."""
        from imagebuild.check.smoke.step_overlay import checks_of

        out = {}
        if not any(overlay.switch is not None for overlay in self.overlays):
            out["switch"] = "no overlay has a switch"
        if not any(checks_of(overlay) for overlay in self.overlays):
            out["overlay"] = "no overlay brings checks of its own"
        return out

    @property
    def wanted_steps(self) -> tuple[str, ...]:
        """The steps that run, in their order."""
        asked = self.settings.steps if self.steps is None else self.steps
        return tuple(step for step in SMOKE_STEPS if step in asked and step not in self.not_applicable)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Every other step, and why it does not run."""
        out = dict(self.not_applicable)
        for step in SMOKE_STEPS:
            if step not in self.wanted_steps and step not in out:
                asked = step in self.settings.steps
                out[step] = "not selected in this run" if asked else "the target does not ask for it"
        return out

    @property
    def complete(self) -> bool:
        """Whether every step that the target asks for runs."""
        return set(self.settings.steps) <= {*self.wanted_steps, *self.not_applicable}

    @property
    def platform(self) -> PlatformInputs:
        """The lock's inputs for the image's platform."""
        return next(one for one in self.lock.inputs.platforms if one.platform.agrees(self.image.platform))

    @property
    def expected(self) -> Expected:
        if not self._expected:
            self._expected.append(expected_of(self.lock.inputs, self.platform))
        return self._expected[0]

    @property
    def sku(self) -> Sku | None:
        return SKUS[self.target.sku] if self.target.sku is not None else None

    @property
    def devices(self) -> Devices | None:
        """What jobs ask of a runner: all accelerators of the target's vendor; none where the target names no SKU, and where
        the machine was found to have none."""
        sku = self.sku
        return Devices(sku.vendor, self.accelerators) if sku is not None and self.accelerators != 0 else None

    def deadline(self, step: str) -> float:
        """Seconds that each job of a step may take."""
        return float(self.settings.deadline or DEADLINES[step])
