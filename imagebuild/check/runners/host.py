"""`host`: this Python on this machine, for developing checks.  No image is involved, and every outcome says so."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from imagebuild.check.runner import OUTPUT_LIMIT, CheckedImage, End, Job, Outcome, Server
from imagebuild.check.runners.files import collect_folder, write_inputs
from imagebuild.check.runners.loading import child_of
from imagebuild.check.runners.place import Place, Scratch, job_environment, laid_out, remove_tree
from imagebuild.check.runners.serving import Ended, EndedServer, Live, ProcessServer, outcome_of, run_to_end
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import UnavailableError
from imagebuild.host import environment, process


class HostRunner:
    """Starts jobs as processes of this machine.

    They see this machine's environment, over it the image's lines that name no absolute path (those speak of the image's
    own file system), over that the job's.  `python3` is the Python that runs this.
    """

    name = "host"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._scratch = Scratch(place.scratch)
        self._live = Live()

    def available(self) -> str | None:
        return None

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        job = laid_out(job, self._place)
        folder = self._folder()
        started = self._started(image, job, folder)
        if isinstance(started, Outcome):
            return started
        return run_to_end(started, job.deadline, lambda ended, process: _finish(ended, process, folder))

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        job = laid_out(job, self._place)
        folder = self._folder()
        started = self._started(image, job, folder)
        if isinstance(started, Outcome):
            return EndedServer(started, port)
        server = ProcessServer(started, port, job.deadline, lambda ended, process: _finish(ended, process, folder))
        return self._live.add(server)

    def close(self) -> None:
        self._live.close()
        self._scratch.close()

    def _folder(self) -> Path:
        with io_faults("the temporary folder", "making"):
            return Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._scratch.folder()))

    def _started(self, image: CheckedImage, job: Job, folder: Path) -> process.Process | Outcome:
        try:
            return self._start(image, job, folder)
        except UnavailableError as error:
            remove_tree(folder)
            if error.code != "host.missing-program":
                raise
            return Outcome(End.NOT_STARTED, None, b"", b"", detail=error.message, machine=_machine())
        except BaseException:
            remove_tree(folder)
            raise

    def _start(self, image: CheckedImage, job: Job, folder: Path) -> process.Process:
        given, left = write_inputs(folder, job.inputs)
        lines = child_of(image).config.environment
        mine = environment.variables()
        mine["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), mine.get("PATH", os.defpath)))
        said = [line for line in lines if not _names_a_path(line)]
        laid = job_environment(
            [*(f"{name}={value}" for name, value in mine.items()), *said], job, str(given), str(left)
        )
        return process.start(job.command, limit=OUTPUT_LIMIT, cwd=folder, environment=laid)


def _names_a_path(line: str) -> bool:
    return any(part.startswith("/") for part in line.partition("=")[2].split(":"))


def _machine() -> dict[str, Any]:
    return {"runner": "host", "imageInvolved": False, "python": sys.version.split()[0], "node": platform.node()}


def _finish(ended: Ended, process: process.Process, folder: Path) -> Outcome:
    try:
        left = collect_folder(folder / "out")
    finally:
        remove_tree(folder)
    return outcome_of(ended, process.output(), left, _machine())
