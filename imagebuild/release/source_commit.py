"""Which commit of the user's repository a release was made from, where git can tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from imagebuild.errors import UnavailableError
from imagebuild.host.process import run

DEADLINE = 30.0
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def source_commit(root: Path, paths: Sequence[Path]) -> str | None:
    """The commit checked out at `root`, where it holds these paths as they lie there; None where something of them is not
    committed, where there is no repository, and without git."""
    names = [str(path) for path in paths]
    try:
        changed = run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=all", "--", *names], deadline=DEADLINE
        )
        head = run(["git", "-C", str(root), "rev-parse", "--verify", "HEAD"], deadline=DEADLINE)
    except UnavailableError:
        return None
    commit = head.stdout.decode("ascii", "replace").strip()
    if changed.code != 0 or changed.stdout.strip() or head.code != 0 or _COMMIT.fullmatch(commit) is None:
        return None
    return commit
