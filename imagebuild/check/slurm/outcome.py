"""What became of a task, from what it wrote itself and what Slurm says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from imagebuild.check.runner import End
from imagebuild.check.slurm.client import TaskState
from imagebuild.check.slurm.folder import Status

REQUEUES = 1
"""How often a task whose node was lost is started again."""
_ENDS = {
    "exited": End.EXITED,
    "deadline": End.DEADLINE,
    "not-started": End.NOT_STARTED,
    "lost": End.LOST,
    "stopped": End.LOST,
}
_HOPELESS = (
    "BadConstraints", "PartitionTimeLimit", "PartitionNodeLimit", "DependencyNeverSatisfied", "JobHeldAdmin",
    "JobHeldUser", "JobHoldMaxRequeue", "AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS",
)  # fmt: skip
"""Reasons for which a task would wait for ever."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended.  `cancel` asks for the rest of it to be taken off the queue."""

    end: End
    code: int | None
    detail: str
    cancel: bool = False


def ending(status: Status | None, state: TaskState | None, *, begun: bool) -> Ending | None:
    """The ending of a task, None while it may still come to one.

    `status` is what it wrote, `state` what Slurm says (None: Slurm knows it no more), `begun` whether its command began.
    The task's own word says how the command ended: srun returns 0 after a cancel and after a lost node.  Slurm's word
    goes before it where the job itself was cut off.
    """
    if state is None:
        return (
            _own(status)
            if status is not None
            else Ending(End.LOST, None, "Slurm knows the job no more, and it left no result")
        )
    if state.pending:
        if status is not None and status.end == "exited":
            # the node went away after the command's end, and nothing of it needs to be done again
            return replace(_own(status), cancel=True)
        if state.restarts > REQUEUES:
            return Ending(End.LOST, None, "its node was lost, and lost again after one requeue", cancel=True)
        if state.reason.replace("_", " ").startswith("launch failed") or state.reason in _HOPELESS:
            return Ending(End.NOT_STARTED, None, f"Slurm will not start it: {state.reason}", cancel=True)
        return None
    if state.live:
        return None
    if state.state in ("COMPLETED", "FAILED"):
        if status is not None:
            return _own(status)
        return Ending(
            End.NOT_STARTED if not begun else End.LOST, None, f"the job's script left no result ({state.state})"
        )
    if state.state in ("TIMEOUT", "DEADLINE"):
        if begun:
            return Ending(End.DEADLINE, None, "stopped at the time limit of the site")
        return Ending(End.NOT_STARTED, None, "the site's time limit passed before the command began")
    if state.state == "OUT_OF_MEMORY" and status is not None and status.end == "exited":
        return Ending(End.EXITED, status.code, "Slurm says that memory ran out")
    return Ending(
        End.LOST, None, f"Slurm ended the job: {state.state}" + (f" ({state.reason})" if _telling(state) else "")
    )


def _telling(state: TaskState) -> bool:
    return state.reason not in ("", "None")


def _own(status: Status) -> Ending:
    end = _ENDS.get(status.end, End.LOST)
    return Ending(end, status.code if end is End.EXITED else None, status.detail)
