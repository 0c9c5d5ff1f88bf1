"""podman with a storage of its own, started as this machine lets it: what tests run containers with."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tools import missing, program, root


class Podman:
    """An engine below `folder`; everything of it goes when the block ends.  Containers have no network."""

    def __init__(self, folder: Path) -> None:
        root()
        self.folder = folder
        # podman 4.3 takes a run root of at most 50 characters
        self.run_root = tempfile.mkdtemp(prefix="pod-", dir="/tmp")
        config = folder / "containers.conf"
        # without these a machine whose limits cannot be raised starts no container
        config.write_text("[containers]\ndefault_ulimits = []\n")
        self.environment = {**os.environ, "CONTAINERS_CONF": str(config)}
        self.base = [program("podman"), "--root", str(folder / "storage"), "--runroot", self.run_root]
        self.base += ["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]
        if shutil.which("runc"):
            self.base += ["--runtime", str(shutil.which("runc"))]

    def __enter__(self) -> Podman:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call("rm", "--all", "--force", check=False)
        self.call("rmi", "--all", "--force", check=False)
        subprocess.run(["umount", str(self.folder / "storage" / "overlay")], capture_output=True, check=False)
        shutil.rmtree(self.run_root, ignore_errors=True)

    def call(self, *words: str, check: bool = True, deadline: float = 900) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.base, *words], capture_output=True, text=True, check=False, env=self.environment, timeout=deadline
        )
        if check and done.returncode != 0:
            if "driver" in done.stderr and "overlay" in done.stderr:
                missing(f"podman has no overlay storage here: {done.stderr[-300:]}")
            raise AssertionError(f"podman {' '.join(words)[:300]}: exit {done.returncode}\n{done.stderr[-3000:]}")
        return done

    def pull(self, layout: Path, digest: str, platform: str) -> str:
        """The id of an image out of a complete layout."""
        name = f"oci:{layout}@{digest}"
        done = self.call("pull", "--quiet", f"--platform={platform}", name, check=False)
        if done.returncode != 0:
            # older ones take names only
            done = self.call("pull", "--quiet", f"--platform={platform}", f"oci:{layout}")
        return done.stdout.split()[-1]

    def run(
        self, image: str, *command: str, name: str = "", options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a fresh container, which stays (as `name`) where a name is given.

        The exit code is the container's own as podman keeps it: what `podman run` itself returns is lost now and then when a
        container ends quickly.
        """
        words = ["create", "--network=none", "--ulimit=host", *options, "--entrypoint", command[0]]
        container = self.call(*words, *(("--name", name) if name else ()), image, *command[1:]).stdout.split()[-1]
        done = self.call("start", "--attach", container, check=False)
        for _ in range(600):
            shown = self.call("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", container).stdout.split()
            if shown[0] == "exited":
                break
            assert shown[0] != "created", f"the container does not start: {done.stderr[-2000:]}"
            time.sleep(0.1)
        else:
            raise AssertionError(f"the container stays {shown[0]}: {done.stderr[-2000:]}")
        if not name:
            self.call("rm", "--force", container, check=False)
        return subprocess.CompletedProcess(done.args, int(shown[1]), done.stdout, done.stderr)
