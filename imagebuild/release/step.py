"""The shape of a step: what it depends on, whether it has to run, what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest


class Action(StrEnum):
    """What a run does about a step."""

    RUN = "run"
    CHECK = "check"
    """Cheap and decided anew each time: it leaves nothing behind."""
    DONE = "done"
    """Finished before, for the same inputs, and what it left is there."""
    IMPORTED = "imported"
    """Evidence that was made elsewhere stands for it."""
    NOT_ASKED = "not asked for"
    WAITS = "waits"
    """Only in a plan: what it depends on is not there before an earlier step ran."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about a step, and why; `id` is the digest of its inputs, None where it has none (yet)."""

    action: Action
    reason: str
    id: Digest | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """One line of a release's account: the decision, and what the step left (empty in a plan)."""

    step: str
    decision: Decision
    result: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "action": str(self.decision.action),
            "reason": self.decision.reason,
            "id": None if self.decision.id is None else str(self.decision.id),
            "result": dict(self.result),
        }


class Step(Protocol):
    """One step.  `decide` is cheap and changes nothing; `run` is only called for `run` and `check`, and may be killed at
    any moment: running it again must lead to the same end."""

    @property
    def name(self) -> str: ...

    def decide(self) -> Decision: ...

    def run(self) -> Mapping[str, Any]:
        """Does it; what later steps and the journal need of it, as JSON values.  Raises what stops the release."""
        ...


def step_id(name: str, inputs: Mapping[str, Any]) -> Digest:
    """The digest of a step's inputs."""
    return Digest.of(canonical_json({"step": name, "inputs": inputs}))


def short_reason(words: str, limit: int = 300) -> str:
    return words if len(words) <= limit else words[: limit - 1] + "…"
