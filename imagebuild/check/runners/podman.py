"""`podman`: containers by the podman command line, as root or without, in podman's own storage.

GPUs come by the Container Device Interface (`--device nvidia.com/gpu=all`), AMD's by their nodes.  Files go in and out
as tar archives (`podman cp`), never through mounts, so that nothing on the machine ever belongs to a user of the image.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuild.check.runner import OUT, OUTPUT_LIMIT, CheckedImage, End, Job, Outcome, Server
from imagebuild.check.runners import owner
from imagebuild.check.runners.devices import cdi_names, check_devices, groups_of, machine_nodes
from imagebuild.check.runners.files import TOTAL_LIMIT, collect_tar, inputs_tar
from imagebuild.check.runners.limits import job_limits
from imagebuild.check.runners.loading import (
    REPOSITORY,
    borrowed_layout,
    child_of,
    engine_name,
    held_name,
    is_stale_name,
)
from imagebuild.check.runners.oci_runtime import KNOWN, own_programs
from imagebuild.check.runners.place import Place, Scratch, job_environment, laid_out, no_runner
from imagebuild.check.runners.serving import (
    GRACE,
    Ended,
    EndedServer,
    Live,
    ProcessServer,
    never_ran,
    outcome_of,
    run_to_end,
)
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import RefusedError, UnavailableError, clean
from imagebuild.host import process

LOAD_DEADLINE = 7200.0
"""Seconds that podman may take to read an image."""
DEADLINE = 300.0
"""Seconds that podman may take for anything else of its own."""
_NEVER = "0001-01-01"
"""How a container's start is written that never was (Go's zero time)."""


class PodmanRunner:
    """Jobs in podman's containers.  `options` are podman's own, before its command (`--root`, `--runtime`)."""

    name = "podman"

    def __init__(self, place: Place, *, options: Sequence[str] = (), program: str = "podman") -> None:
        self._place = place
        self._base = [program, *options]
        if place.runtime is not None:
            self._base += ["--runtime", place.runtime]
        self._scratch = Scratch(place.scratch)
        self._live = Live()
        self._held: dict[str, str] = {}
        self._info: dict[str, Any] | None = None
        self._why: str | None = None
        self._swept = False

    def available(self) -> str | None:
        """Proved by starting a program of this machine; where podman's own choice of a runtime does not start it, runc and
        crun are tried."""
        if self._info is None and self._why is None:
            try:
                self._why = self._find()
            except UnavailableError as error:
                self._why = error.message
        return self._why

    def _find(self) -> str | None:
        done = self._call("info", "--format", "json")
        if done.code != 0:
            return f"podman cannot work here: {_said(done.stderr)}"
        why = []
        others = [] if "--runtime" in self._base else [path for name in KNOWN if (path := shutil.which(name))]
        base = self._base
        for more in ([], *(["--runtime", path] for path in others)):
            self._base = [*base, *more]
            refused = self._try()
            if refused is None:
                self._info = dict(json.loads(self._call("info", "--format", "json").stdout))
                return None
            why.append(refused)
        self._base = base
        return f"podman starts no container here: {clean('; '.join(dict.fromkeys(why)), 1000)}"

    def _try(self) -> str | None:
        """Why a container on this machine's own programs does not start; None where it does."""
        with (
            io_faults("the temporary folder", "writing"),
            tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._scratch.folder()) as folder,
        ):
            binds = own_programs(Path(folder, "root"))
            words = [
                "run",
                "--rm",
                *create_words(Job(("x",), DEADLINE), rootless=False),
                "--security-opt",
                "label=disable",
            ]
            words += [word for path in binds for word in ("--volume", f"{path}:{path}:ro")]
            done = self._call(*words, "--rootfs", str(Path(folder, "root")), "/bin/sh", "-c", "echo begun")
        return None if done.code == 0 and done.stdout == b"begun\n" else _said(done.stderr)

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        job = laid_out(job, self._place)
        name = owner.job_name(job.name)
        refused = self._create(image, job, name)
        if refused is not None:
            return refused
        try:
            started = process.start([*self._base, "start", "--attach", name], limit=OUTPUT_LIMIT)
        except BaseException:
            self._remove(name)
            raise
        return run_to_end(started, job.deadline, self._finish_of(name), lambda: self._kill(name))

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        job = laid_out(job, self._place, network=True)
        name = owner.job_name(job.name)
        refused = self._create(image, job, name)
        if refused is not None:
            return EndedServer(refused, port)
        try:
            started = process.start([*self._base, "start", "--attach", name], limit=OUTPUT_LIMIT)
        except BaseException:
            self._remove(name)
            raise
        finish = self._finish_of(name)
        return self._live.add(ProcessServer(started, port, job.deadline, finish, lambda: self._stop(name)))

    def close(self) -> None:
        """Lets go of the images: those that no other process of ours holds leave podman's storage, unless they are to be
        kept.  So do those that a killed process held; a container that is still there keeps its image."""
        self._live.close()
        if self._swept:
            for _, name in self._names():
                if is_stale_name(name):
                    self._call("rmi", name)
        while self._held:
            _, name = self._held.popitem()
            if not self._place.keep:
                self._call("rmi", name)
        self._scratch.close()

    # Images

    def _image(self, image: CheckedImage) -> str:
        """The id of the image in podman's storage, which is its config's digest; brought there if need be."""
        child = child_of(image)
        identity = child.manifest.config.digest.hex
        name = held_name(image, keep=self._place.keep)
        if self._call("image", "exists", identity).code == 0 and self._hold(identity, name):
            return identity
        with (
            io_faults("the temporary folder", "making"),
            tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._scratch.folder()) as folder,
        ):
            # podman makes a name of the path that it is given, which must be one of its own kind and nobody else's
            passing = f"imagebuild-{secrets.token_hex(8)}"
            borrowed_layout(image, child, Path(folder, passing))
            words = [*self._base, "pull", "--quiet", f"oci:{passing}:{engine_name(image)}"]
            done = process.run(words, deadline=LOAD_DEADLINE, cwd=Path(folder))
        if done.code != 0:
            raise UnavailableError(
                "check.image-not-loaded", f"podman does not take the image {image.digest}", found=_said(done.stderr)
            )
        found = (done.stdout.decode().split() or [""])[-1]
        if found != identity:
            raise RefusedError(
                "check.engine-differs",
                "podman holds another image than it was given",
                expected=identity,
                found=found or "nothing",
            )
        self._call("tag", identity, name)
        self._held[identity] = name
        self._call("untag", identity, f"localhost/{passing}")
        return identity

    def _hold(self, identity: str, name: str) -> bool:
        """Holds an image of ours that is there already, perhaps another process's; False where it just went.  One that was
        brought there by somebody else is not ours to hold, nor to remove."""
        if identity in self._held or all(identity != other for other, _ in self._names()):
            return True
        if self._call("tag", identity, name).code != 0:
            return False
        self._held[identity] = name
        return True

    def _names(self) -> list[tuple[str, str]]:
        """Id and name of each image that is ours."""
        done = self._call("images", "--no-trunc", "--filter", f"reference={REPOSITORY}", "--format", "json")
        try:
            listed = json.loads(done.stdout or b"[]")
        except ValueError:
            return []
        given = listed if isinstance(listed, list) else []
        names = {
            (str(one["Id"]).removeprefix("sha256:"), str(name)) for one in given for name in one.get("Names") or ()
        }
        return sorted(one for one in names if one[1].rpartition(":")[0] == REPOSITORY)

    # Containers

    def _create(self, image: CheckedImage, job: Job, name: str) -> Outcome | None:
        """Makes the container with the job's inputs in it; an outcome where podman refuses to."""
        check_devices(job.devices)
        why = self.available()
        if why is not None:
            raise no_runner("podman", why)
        if not self._swept:
            self._sweep()
        identity = self._image(image)
        done = self._call(
            "create", "--name", name, *create_words(job, rootless=self._rootless()), *_command(identity, job)
        )
        try:
            if done.code == 0:
                done = self._call("cp", "-", f"{name}:/", stdin=inputs_tar(job.inputs))
            if done.code == 0:
                return None
        except BaseException:
            self._remove(name)
            raise
        self._remove(name)
        return Outcome(End.NOT_STARTED, None, b"", b"", detail=_said(done.stderr), machine=self._machine())

    def _finish_of(self, name: str) -> Any:
        def finish(ended: Ended, started: process.Process) -> Outcome:
            try:
                return self._outcome(name, ended, started)
            finally:
                self._remove(name)

        return finish

    def _outcome(self, name: str, ended: Ended, started: process.Process) -> Outcome:
        stdout, stderr = started.output()
        state = self._state(name)
        machine = self._machine()
        if not state:
            detail = f"podman knows the container no more: {_said(stderr)}"
            return Outcome(End.LOST, None, stdout, stderr, {}, ended.seconds, detail, machine)
        if str(state.get("StartedAt", _NEVER)).startswith(_NEVER):
            return Outcome(End.NOT_STARTED, None, b"", b"", {}, ended.seconds, _said(stderr), machine)
        machine["imageId"] = state["imageId"]
        copying = process.start([*self._base, "cp", f"{name}:{OUT}", "-"], limit=TOTAL_LIMIT + OUTPUT_LIMIT)
        if copying.wait(DEADLINE) is None:
            copying.stop()
        left = collect_tar(io.BytesIO(copying.output()[0]))
        # what `podman start` itself returns is lost now and then
        ended = replace(ended, code=int(state.get("ExitCode", -1)))
        out_of_memory = bool(state.get("OOMKilled"))
        return never_ran(outcome_of(ended, (stdout, stderr), left, machine, out_of_memory=out_of_memory))

    def _state(self, name: str) -> dict[str, Any]:
        """The container's state once it is over, and the image that it was made of: a container that ended is for a moment still called running."""
        state: dict[str, Any] = {}
        for _ in range(2):
            words = '{"state":{{json .State}},"image":{{json .Image}}}'
            done = self._call("inspect", "--type", "container", "--format", words, name)
            try:
                told = json.loads(done.stdout)
                state = {**told["state"], "imageId": f"sha256:{told['image']}"}
            except (ValueError, TypeError, KeyError):
                return {}
            if state.get("Status") not in ("running", "stopping"):
                return state
            self._call("wait", name, deadline=30)
        return state

    def _kill(self, name: str) -> None:
        self._call("kill", "--signal", "KILL", name)

    def _stop(self, name: str) -> None:
        self._call("stop", "--time", str(int(GRACE)), name)

    def _remove(self, name: str) -> None:
        self._call("rm", "--force", "--time", "0", "--volumes", "--ignore", name)

    def _sweep(self) -> None:
        """Removes what killed processes of ours left behind; once, with the first job."""
        self._swept = True
        done = self._call("ps", "--all", "--filter", f"label={owner.OWNER}", "--format", "json")
        try:
            listed = json.loads(done.stdout or b"[]")
        except ValueError:
            return
        for item in listed if isinstance(listed, list) else []:
            if owner.is_stale(item.get("Labels") or {}):
                self._remove(str(item["Id"]))

    def _call(self, *words: str, stdin: bytes = b"", deadline: float = DEADLINE) -> process.Finished:
        return process.run([*self._base, *words], deadline=deadline, stdin=stdin)

    def _rootless(self) -> bool:
        host = (self._info or {}).get("host") or {}
        return bool((host.get("security") or {}).get("rootless"))

    def _machine(self) -> dict[str, Any]:
        info = self._info or {}
        runtime = ((info.get("host") or {}).get("ociRuntime") or {}).get("name")
        return {
            "runner": "podman",
            "version": (info.get("version") or {}).get("Version"),
            "runtime": runtime,
            "rootless": self._rootless(),
        }


def create_words(job: Job, *, rootless: bool, limits: Mapping[str, tuple[int, int]] | None = None) -> list[str]:
    """Options of `podman create` for a job (podman-create(1))."""
    words = ["--pull", "never", "--http-proxy=false", "--log-driver", "k8s-file", "--log-opt", "max-size=64mb"]
    words += ["--network", "host" if job.network else "none", "--shm-size", f"{job.shared_memory}b", "--pids-limit=-1"]
    for name, value in sorted(owner.labels(job.deadline).items()):
        words += ["--label", f"{name}={value}"]
    for name, (soft, hard) in sorted((job_limits(job.devices is not None) if limits is None else limits).items()):
        words += ["--ulimit", f"{name}={soft}:{hard}"]
    for name in job.unset:
        words += ["--unsetenv", name]
    for name, value in sorted(job_environment((), job).items()):
        words += ["--env", f"{name}={value}"]
    for mount in job.mounts:
        words += ["--volume", f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"]
    if job.devices is not None:
        words += ["--security-opt", "label=disable"]
        if job.devices.vendor == "nvidia":
            for name in cdi_names(job.devices):
                words += ["--device", name]
        else:
            nodes = machine_nodes(job.devices)
            for node in nodes:
                words += ["--device", node.path]
            for group in ["keep-groups"] if rootless else map(str, groups_of(nodes)):
                words += ["--group-add", group]
    return words


def _command(image: str, job: Job) -> list[str]:
    return ["--entrypoint", json.dumps([job.command[0]]), image, *job.command[1:]]


def _said(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return clean("; ".join(lines[-3:]) or "it gave no reason", 1000)
