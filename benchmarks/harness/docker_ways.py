"""docker 20.10: its classic builder and BuildKit, in a daemon of the benchmark's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.job import Job
from harness.measure import Failed, Place, Step, run

CLIENT = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
"""Debian's client, which belongs to Debian's daemon; a newer one in another folder builds with a plugin of its own."""


class Daemon:
    """dockerd with everything of it below `folder`, started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str | None:
        if os.geteuid() != 0:
            return "dockerd needs root"
        for name in ("dockerd", CLIENT):
            if shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin") is None:
                return f"the program {name} is not installed"
        return None

    def env(self, buildkit: bool) -> dict[str, str]:
        config = self.folder / "config"
        config.mkdir(parents=True, exist_ok=True)
        return {"DOCKER_HOST": self.socket, "DOCKER_CONFIG": str(config), "DOCKER_BUILDKIT": str(int(buildkit))}

    def start(self) -> None:
        if self._process is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["dockerd", f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        command += [f"--pidfile={self.folder}/docker.pid", f"--host={self.socket}", "--bridge=none"]
        command += ["--iptables=false", "--ip6tables=false", "--storage-driver=overlay2", "--log-level=error"]
        with (self.folder / "dockerd.log").open("wb") as log:
            path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PATH": path}
            )
        until = time.monotonic() + 60
        while True:
            try:
                run(Step("info", [CLIENT, "info"], self.env(False)))
                return
            except Failed:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.2)

    def clear(self) -> None:
        """As a daemon that has never seen an image."""
        self.start()
        for command in (["image", "prune", "--all", "--force"], ["builder", "prune", "--all", "--force"]):
            run(Step("clear", [CLIENT, *command], self.env(False)))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)


class DockerWay:
    """pull, build with COPY, push; BuildKit pulls by itself."""

    base = "base"
    delayed = False
    checked = True

    def __init__(self, daemon: Daemon, work: Path, *, buildkit: bool, again: bool) -> None:
        self._daemon, self._work, self._buildkit, self._again = daemon, work, buildkit, again
        name = "buildkit" if buildkit else "docker"
        self.key = f"{name}-again" if again else name
        self.title = "docker build with BuildKit, push" if buildkit else "docker pull, build, push"
        self.kind = "again" if again else "cold"

    def missing(self) -> str | None:
        return Daemon.missing()

    def job(self, repeat: int) -> Job:
        return Job(series=repeat + 1 if self._again else 0)

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        if not self._again or repeat == 0:
            self._daemon.clear()
            forget()
        if self._again and repeat == 0:
            Job().write_context(self._work / "context", place.base_name)
            for step in self._steps(place, pull=not self._buildkit):
                run(step)
        self.job(repeat).write_context(self._work / "context", place.base_name)

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        return self._steps(place, pull=not self._buildkit and not self._again)

    def _steps(self, place: Place, pull: bool) -> list[Step]:
        env = self._daemon.env(self._buildkit)
        steps = [
            Step("build", [CLIENT, "build", "--quiet", "-t", place.result, str(self._work / "context")], env),
            Step("push", [CLIENT, "push", "--quiet", place.result], env),
        ]
        return [Step("pull", [CLIENT, "pull", "--quiet", place.base_name], env), *steps] if pull else steps

    def close(self) -> None:
        self._daemon.stop()
