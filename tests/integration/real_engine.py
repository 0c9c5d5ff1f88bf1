"""A Docker engine of the test's own: Debian's dockerd with root, data, socket and pid file below one folder, which goes with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import tools
from mounts import unmount_below

CLIENT = "/usr/bin/docker"
"""Debian's own client, as the package docker.io installs it; a newer one before it in PATH may lack BuildKit's half."""


class RealEngine:
    """dockerd, overlay2, without a network of its own.  `host` is the value for DOCKER_HOST."""

    folder: Path
    host: str

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealEngine:
        tools.root()
        if not Path(CLIENT).exists():
            tools.missing(f"the program {CLIENT} is not installed")
        server = tools.program("dockerd")
        # a short path: a socket's name has room for 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
        self.host = f"unix://{self.folder}/s"
        try:
            self._start(server)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, server: str) -> None:
        command = [server, f"--host={self.host}", "--storage-driver=overlay2"]
        command += ["--bridge=none", "--iptables=false", f"--pidfile={self.folder}/pid"]
        command += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(600):
            if self._process.poll() is not None:
                tools.missing(f"dockerd does not start here: {self.log()}")
            if subprocess.run(self.command("version"), capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"dockerd does not answer: {self.log()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        # the network namespace of containers without a network stays mounted
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def command(self, *words: str | os.PathLike[str]) -> list[str]:
        return [CLIENT, "--host", self.host, *map(str, words)]

    def run(self, *words: str | os.PathLike[str]) -> str:
        """What the client prints.  An exit code other than 0 fails the test."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"docker {' '.join(map(str, words))}: {done.stderr[-3000:]}"
        return done.stdout

    def inspect(self, name: str) -> Any:
        return json.loads(self.run("image", "inspect", name))[0]

    def container(self, image: str, *words: str) -> str:
        """What a program in a container prints: no network, few descriptors (the default limit makes some slow)."""
        return self.run("run", "--rm", "--network", "none", "--ulimit", "nofile=1024", image, *words)
