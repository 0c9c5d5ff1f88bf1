"""What steps and the whole smoke test answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.check.verdicts import Judgement, Verdict, worst
from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a step looked at."""

    name: str
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.judgement.to_json()}


def part(name: str, verdict: Verdict, reason: str = "") -> Part:
    return Part(name, Judgement(verdict, reason))


def together(parts: Iterable[Part], step: str = "") -> Judgement:
    """The judgement that parts make together: the worst, with the reasons of those that made it.

    What was looked at and passed does not hide what could not be: one `not-run` part makes the whole `not-run`.
    """
    given = list(parts)
    if not given:
        return Judgement(Verdict.NOT_RUN, "nothing was looked at")
    verdict = worst(one.judgement.verdict for one in given)
    made = [one for one in given if one.judgement.verdict is verdict and one.judgement.reason]
    said = [one.judgement.reason if one.name == step else f"{one.name}: {one.judgement.reason}" for one in made]
    return Judgement(verdict, "; ".join(said))


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step's answer.  `seconds` is what its jobs took, `deadline` what each might have; `commands` what was run, a
    line each; `facts` what was found (JSON values), `hardware` what it says of the machine; `outputs` the raw bytes that
    the verdict stands on, by name."""

    step: str
    parts: tuple[Part, ...]
    seconds: float = 0.0
    deadline: float | None = None
    commands: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=no_entries)
    hardware: Mapping[str, Any] = field(default_factory=no_entries)
    outputs: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def judgement(self) -> Judgement:
        return together(self.parts, self.step)

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    def to_json(self) -> dict[str, Any]:
        """As evidence.json has it; outputs by digest."""
        return {
            "name": self.step,
            **self.judgement.to_json(),
            "seconds": round(self.seconds, 3),
            "deadline": self.deadline,
            "commands": list(self.commands),
            "parts": [one.to_json() for one in self.parts],
            "facts": dict(self.facts),
            "outputs": [
                {"name": name, "sha256": Digest.of(data).hex, "size": len(data)}
                for name, data in sorted(self.outputs.items())
            ],
        }


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """All steps of one image.  `complete` tells whether every step that the target asks for was run."""

    target: str
    steps: tuple[StepResult, ...]
    complete: bool
    runner: str

    @property
    def judgement(self) -> Judgement:
        verdict = worst(one.verdict for one in self.steps)
        if verdict.good:
            return Judgement(verdict, f"{len(self.steps)} steps")
        made = [one for one in self.steps if one.verdict is verdict and one.judgement.reason]
        return Judgement(verdict, "; ".join(f"{one.step}: {one.judgement.reason}" for one in made))

    @property
    def hardware(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for step in self.steps:
            out.update(step.hardware)
        return out
