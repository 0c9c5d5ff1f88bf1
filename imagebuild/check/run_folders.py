"""Where the accuracy runs of a target lie, and which of them are there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from imagebuild.check.results import Run, load_run
from imagebuild.oci.platform import Platform
from imagebuild.target.document import Target

ABOVE = ("build", "gsm8k")


def runs_folder(root: Path, target: Target, platform: Platform) -> Path:
    """The folder with one folder an arm: `build/gsm8k/TARGET` below the workspace's root, and `build/gsm8k/TARGET/ARCH` for
    a target of several platforms, whose images are different ones and whose runs never mix."""
    folder = root.joinpath(*ABOVE, target.name)
    if len(target.platforms) == 1:
        return folder
    return folder / "-".join(filter(None, (platform.architecture, platform.variant)))


def load_runs(folder: Path, arms: Iterable[str]) -> dict[str, Run]:
    """The runs of these arms that have come to their end.  Raises what reading a run raises."""
    return {arm: load_run(folder / arm) for arm in arms if (folder / arm / "summary.json").is_file()}
