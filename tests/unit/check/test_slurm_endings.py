"""What became of a task, by what it wrote itself and what Slurm says."""

from __future__ import annotations

import pytest

from imagebuild.check.runner import End
from imagebuild.check.slurm.client import TaskState
from imagebuild.check.slurm.folder import Status
from imagebuild.check.slurm.outcome import ending


def wrote(end: str = "exited", code: int | None = 0) -> Status:
    return Status(end, code, "its own words", 1.0, "n1", "7", 0)


ROWS: dict[str, tuple[Status | None, TaskState | None, bool, tuple[End, int | None] | None]] = {
    "done": (wrote(), TaskState("COMPLETED"), True, (End.EXITED, 0)),
    "done with a code": (wrote(code=3), TaskState("COMPLETED"), True, (End.EXITED, 3)),
    "done, and Slurm forgot": (wrote(), None, True, (End.EXITED, 0)),
    "forgotten": (None, None, True, (End.LOST, None)),
    "runs": (None, TaskState("RUNNING"), True, None),
    "has written and runs still": (wrote(), TaskState("RUNNING"), True, None),
    "is being taken down": (wrote(), TaskState("COMPLETING"), True, None),
    "waits": (None, TaskState("PENDING", reason="Priority"), False, None),
    "requeued once": (None, TaskState("PENDING", restarts=1, reason="BeginTime"), True, None),
    "requeued twice": (None, TaskState("PENDING", restarts=2, reason="BeginTime"), True, (End.LOST, None)),
    "requeued when done": (wrote(code=4), TaskState("PENDING", restarts=1), True, (End.EXITED, 4)),
    "never": (None, TaskState("PENDING", reason="PartitionTimeLimit"), False, (End.NOT_STARTED, None)),
    "held": (None, TaskState("PENDING", reason="launch_failed_requeued_held"), False, (End.NOT_STARTED, None)),
    "cancelled, and srun said 0": (wrote(), TaskState("CANCELLED"), True, (End.LOST, None)),
    "cancelled in the queue": (None, TaskState("CANCELLED"), False, (End.LOST, None)),
    "node failed": (None, TaskState("NODE_FAIL"), True, (End.LOST, None)),
    "preempted": (None, TaskState("PREEMPTED"), True, (End.LOST, None)),
    "out of time": (None, TaskState("TIMEOUT"), True, (End.DEADLINE, None)),
    "out of time before it began": (None, TaskState("TIMEOUT"), False, (End.NOT_STARTED, None)),
    "out of memory": (wrote(code=137), TaskState("OUT_OF_MEMORY"), True, (End.EXITED, 137)),
    "script died": (None, TaskState("FAILED"), False, (End.NOT_STARTED, None)),
    "script died after the command began": (None, TaskState("FAILED"), True, (End.LOST, None)),
    "own deadline": (wrote("deadline", None), TaskState("COMPLETED"), True, (End.DEADLINE, None)),
    "outside the image": (wrote("not-started", None), TaskState("COMPLETED"), False, (End.NOT_STARTED, None)),
    "step cancelled": (wrote("stopped", 143), TaskState("COMPLETED"), True, (End.LOST, None)),
    "words of another version": (wrote("new-word", 0), TaskState("COMPLETED"), True, (End.LOST, None)),
}


@pytest.mark.parametrize("row", ROWS)
def test_ending(row: str) -> None:
    status, state, begun, wanted = ROWS[row]
    found = ending(status, state, begun=begun)
    assert (None if found is None else (found.end, found.code)) == wanted
    if found is not None and found.end is not End.EXITED:
        assert found.detail


def test_what_is_given_up_in_the_queue_is_taken_off_it() -> None:
    for state in (TaskState("PENDING", restarts=2), TaskState("PENDING", reason="BadConstraints")):
        found = ending(None, state, begun=False)
        assert found is not None
        assert found.cancel
