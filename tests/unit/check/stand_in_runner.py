"""A runner for tests: jobs are processes of this machine, the images are not looked at."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from imagebuild.check.runner import CheckedImage, End, Job, Outcome


class StandInServer:
    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.address = ("127.0.0.1", port)
        self.process = process
        self.folder = folder
        self.stopped = 0
        self._outcome: Outcome | None = None

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def ended(self) -> Outcome | None:
        if self._outcome is None and self.process.poll() is not None:
            return self._end(End.EXITED)
        return self._outcome

    def _end(self, end: End) -> Outcome:
        code = self.process.wait()
        out, err = self._read("stdout"), self._read("stderr")
        self._outcome = Outcome(end, code, out, err, machine={"runner": "stand-in"})
        return self._outcome

    def log_tail(self, limit: int = 20_000) -> str:
        return (self._read("stdout") + self._read("stderr"))[-limit:].decode()

    def stop(self) -> Outcome:
        self.stopped += 1
        if self._outcome is None:
            self.process.terminate()
            self._end(End.EXITED)
        assert self._outcome is not None
        return self._outcome


class StandInRunner:
    """`jobs` and `servers` are all that it was asked for."""

    name = "stand-in"

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.images: list[CheckedImage] = []
        self.servers: list[StandInServer] = []
        self.closed = False

    def available(self) -> str | None:
        return None

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        raise AssertionError("nothing here runs a job to its end")

    def serve(self, image: CheckedImage, job: Job, port: int) -> StandInServer:
        self.jobs.append(job)
        self.images.append(image)
        folder = Path(tempfile.mkdtemp(prefix="stand-in-"))
        for name, data in job.inputs.items():
            (folder / name).write_bytes(data)
        environment: dict[str, Any] = {**os.environ, **job.environment, "IMAGEBUILD_IN": str(folder)}
        for name in job.unset:
            environment.pop(name, None)
        command = [sys.executable if job.command[0] == "python3" else job.command[0], *job.command[1:]]
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        self.servers.append(StandInServer(process, port, folder))
        return self.servers[-1]

    def close(self) -> None:
        self.closed = True
        for server in self.servers:
            server.stop()
            shutil.rmtree(server.folder)

    def wait_gone(self) -> bool:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if all(server.process.poll() is not None for server in self.servers):
                return True
            time.sleep(0.01)
        return False
