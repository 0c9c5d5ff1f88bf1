"""`docker`: containers of the Docker engine that DOCKER_HOST names, through its SDK.

Files go in and out as tar archives over the API, so that the engine may be on another machine and nothing here ever
belongs to root.  What was loaded into the engine for a check leaves it with `close`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from imagebuild.check.runner import OUT, OUTPUT_LIMIT, CheckedImage, Devices, End, Job, Outcome, Server
from imagebuild.check.runners import owner
from imagebuild.check.runners.devices import cdi_names, check_devices, groups_of, has_cdi, machine_nodes
from imagebuild.check.runners.files import Collected, collect_tar, inputs_tar
from imagebuild.check.runners.limits import job_limits, may_raise
from imagebuild.check.runners.loading import REPOSITORY, as_image, child_of, held_name, is_stale_name
from imagebuild.check.runners.place import Place, job_environment, laid_out, no_runner
from imagebuild.check.runners.serving import GRACE, LOOPBACK, Ended, EndedServer, Live, never_ran, outcome_of
from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.host.clock import monotonic, sleep
from imagebuild.oci.docker_containers import Containers, DockerContainers
from imagebuild.oci.docker_daemon import DaemonSink
from imagebuild.oci.docker_engine import DockerEngine, Engine

_NEVER = "0001-01-01"
"""How a container's start is written that never was (Go's zero time)."""
_PAUSE = 0.02, 0.5
"""Seconds between two looks at a container: at first, and at most."""


class DockerRunner:
    """Jobs in containers of a Docker engine.  `connect` and `images` open it (again), for containers and for loading."""

    name = "docker"

    def __init__(
        self,
        place: Place,
        *,
        connect: Callable[[], Containers] = DockerContainers,
        images: Callable[[], Engine] = DockerEngine,
    ) -> None:
        self._place = place
        self._connect = connect
        self._images = images
        self._open: Containers | None = None
        self._info: Mapping[str, Any] = {}
        self._live = Live()
        self._held: dict[Digest, str] = {}
        self._swept = False

    def available(self) -> str | None:
        if self._open is not None:
            return None
        try:
            opened = self._connect()
            self._info = opened.info()
        except UnavailableError as error:
            return f"{error.message}: {error.found}" if error.found else error.message
        self._open = opened
        return None

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        job = laid_out(job, self._place)
        engine = self._engine()
        identity = self._image(image)
        # now: where the image comes from need not answer any more when the job is over
        machine = self._machine(identity, image)
        name = owner.job_name(job.name)
        try:
            started = _start(engine, name, self._config(identity, job), job)
            if started is not None:
                return Outcome(End.NOT_STARTED, None, b"", b"", detail=started, machine=machine)
            begin = monotonic()
            late = not _wait(engine, name, begin + job.deadline)
            seconds = monotonic() - begin
            if late:
                engine.kill(name)
                _wait(engine, name, monotonic() + 30)
            return _outcome(engine, name, End.DEADLINE if late else End.EXITED, seconds, machine)
        except UnavailableError as error:
            return Outcome(End.LOST, None, b"", b"", detail=str(error), machine=machine)
        finally:
            _remove(engine, name)

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        job = laid_out(job, self._place, network=True)
        self._engine()
        identity = self._image(image)
        machine = self._machine(identity, image)
        name = owner.job_name(job.name)
        # a connection of its own: its deadline is kept by another thread
        engine = self._connect()
        try:
            refused = _start(engine, name, self._config(identity, job), job)
        except BaseException:
            _remove(engine, name)
            engine.close()
            raise
        if refused is not None:
            _remove(engine, name)
            engine.close()
            return EndedServer(Outcome(End.NOT_STARTED, None, b"", b"", detail=refused, machine=machine), port)
        return self._live.add(_DockerServer(engine, name, port, job.deadline, machine))

    def close(self) -> None:
        """Stops what still serves, and lets go of the images: those that no other process of ours holds leave the engine,
        unless they are to be kept.  So do those that a killed process held."""
        self._live.close()
        if self._open is None:
            return
        held = [] if self._place.keep else list(self._held.values())
        self._held.clear()
        # an engine that does not answer any more keeps no one from the results; another run finds the names
        with contextlib.suppress(UnavailableError):
            if self._swept:
                held += [name for _, name in self._open.image_names(REPOSITORY) if is_stale_name(name)]
            for name in held:
                self._open.remove_image(name)
        self._open.close()
        self._open = None

    def _engine(self) -> Containers:
        why = self.available()
        if why is not None or self._open is None:
            raise no_runner("docker", why or "it was closed")
        if not self._swept:
            # what killed processes of ours left behind
            self._swept = True
            for container, labels in self._open.labelled(owner.OWNER):
                if owner.is_stale(labels):
                    self._open.remove(container)
        return self._open

    def _image(self, image: CheckedImage) -> str:
        """The id of the image in the engine; brought there if need be.  What DaemonSink raises passes through."""
        child = child_of(image)
        engine = self._images()
        try:
            there = engine.image(str(child.manifest.config.digest))
            if there is None or not self._hold(image.digest, there.id, held_name(image, keep=self._place.keep)):
                name = self._held.setdefault(image.digest, held_name(image, keep=self._place.keep))
                DaemonSink(self._images).store(as_image(image, child), name)
                there = engine.image(name)
        finally:
            engine.close()
        return str(child.manifest.config.digest) if there is None else there.id

    def _hold(self, digest: Digest, identity: str, name: str) -> bool:
        """Holds an image of ours that is in the engine already, perhaps another process's; False where it just went.  One
        that was brought there by somebody else is not ours to hold, nor to remove."""
        if self._open is None or digest in self._held:
            return True
        if all(identity != other for other, _ in self._open.image_names(REPOSITORY)):
            return True
        if not self._open.tag_image(identity, name):
            return False
        self._held[digest] = name
        return True

    def _config(self, identity: str, job: Job) -> dict[str, Any]:
        cdi = None
        if job.devices is not None and job.devices.vendor == "nvidia":
            cdi = wants_cdi(self._info, job.devices)
        # an engine that runs as root beside us has no more than we have, where we are root as well
        raising = may_raise() or os.geteuid() != 0
        return container_config(
            identity, job, cdi=bool(cdi), limits=job_limits(job.devices is not None, raising=raising)
        )

    def _machine(self, identity: str, image: CheckedImage) -> dict[str, Any]:
        """An id that is a digest of the image's own documents proves which image was started.  Where containerd keeps the
        images it is that of a document of the engine's; what was loaded was compared with ours then (DaemonSink)."""
        known = identity in (str(image.digest), str(child_of(image).manifest.config.digest))
        told = {"imageId" if known else "engineImageId": identity}
        return {"runner": "docker", "version": self._info.get("ServerVersion"), **told}


def wants_cdi(info: Mapping[str, Any], devices: Devices) -> bool:
    """Whether devices are named by CDI: the engine knows it, and has no runtime of the vendor's."""
    folders = info.get("CDISpecDirs") or ()
    known = any(
        str(item.get("ID", "")).startswith(f"{devices.vendor}.com/") for item in info.get("DiscoveredDevices") or ()
    )
    has_runtime = devices.vendor in (info.get("Runtimes") or {})
    return not has_runtime and bool(folders) and (known or has_cdi(devices.vendor, folders))


def container_config(
    identity: str, job: Job, *, cdi: bool = False, limits: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Any]:
    """The body of `POST /containers/create` for a job (Engine API).  An entry of Env without `=` takes a variable of the
    image away."""
    check_devices(job.devices)
    environment = job_environment((), job)
    host: dict[str, Any] = {
        "NetworkMode": "host" if job.network else "none",
        "ShmSize": job.shared_memory,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "256m", "max-file": "1"}},
        "Binds": [f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in job.mounts],
        "Ulimits": [
            {"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in sorted((limits or {}).items())
        ],
    }
    if job.devices is not None:
        host.update(device_config(job.devices, cdi=cdi))
    return {
        "Image": identity,
        "Entrypoint": list(job.command),
        "Env": [*(f"{name}={value}" for name, value in sorted(environment.items())), *job.unset],
        "Labels": owner.labels(job.deadline),
        "HostConfig": host,
    }


def device_config(devices: Devices, *, cdi: bool = False) -> dict[str, Any]:
    """What of HostConfig gives a container its accelerators."""
    if devices.vendor == "nvidia" and cdi:
        return {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": cdi_names(devices)}]}
    if devices.vendor == "nvidia":
        count = -1 if devices.count is None else devices.count
        return {"DeviceRequests": [{"Driver": "", "Count": count, "Capabilities": [["gpu"]]}]}
    nodes = machine_nodes(devices)
    paths = [node.path for node in nodes] or ["/dev/kfd", "/dev/dri"]
    return {
        "Devices": [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in paths],
        "GroupAdd": [str(group) for group in groups_of(nodes)],
    }


def _start(engine: Containers, name: str, config: Mapping[str, Any], job: Job) -> str | None:
    """Makes and starts a container with the job's inputs in it; why not, where the engine said no."""
    try:
        engine.create(name, config)
        engine.put(name, inputs_tar(job.inputs))
        engine.start(name)
    except UnavailableError as error:
        if error.code != "oci.engine-failed":
            raise
        return error.found or error.message
    return None


def _wait(engine: Containers, name: str, until: float) -> bool:
    """Whether the container ended before `until`."""
    pause, most = _PAUSE
    while True:
        state = engine.state(name)
        if state is None or not state.get("Running"):
            return True
        left = until - monotonic()
        if left <= 0:
            return False
        sleep(min(pause, left))
        pause = min(pause * 1.5, most)


def _outcome(engine: Containers, name: str, end: End, seconds: float, machine: Mapping[str, Any]) -> Outcome:
    """What became of a container that is over; it is still there."""
    state = engine.state(name)
    if state is None:
        return Outcome(End.LOST, None, b"", b"", {}, seconds, "the engine knows the container no more", machine)
    if str(state.get("StartedAt", _NEVER)).startswith(_NEVER):
        return Outcome(End.NOT_STARTED, None, b"", b"", {}, seconds, str(state.get("Error", "")), machine)
    stdout = engine.logs(name, stdout=True, stderr=False, limit=OUTPUT_LIMIT)
    stderr = engine.logs(name, stdout=False, stderr=True, limit=OUTPUT_LIMIT)
    left = _collect(engine, name)
    ended = Ended(int(state.get("ExitCode", -1)), end, seconds)
    out_of_memory = bool(state.get("OOMKilled"))
    return never_ran(outcome_of(ended, (stdout, stderr), left, machine, out_of_memory=out_of_memory))


def _collect(engine: Containers, name: str) -> Collected:
    try:
        with engine.get(name, OUT) as stream:
            return collect_tar(stream)
    except UnavailableError as error:
        if error.details.get("status") != 404:
            raise
        return Collected(left_out=("(the job removed its folder)",))


def _remove(engine: Containers, name: str) -> None:
    """Removes a container; an engine that does not answer any more keeps no one from the outcome."""
    try:
        engine.remove(name)
    except UnavailableError:
        return


class _DockerServer:
    """A container that serves on this machine's network."""

    def __init__(self, engine: Containers, name: str, port: int, deadline: float, machine: Mapping[str, Any]) -> None:
        self.address = (LOOPBACK, port)
        self._engine = engine
        self._name = name
        self._machine = machine
        self._begin = monotonic()
        self._lock = threading.RLock()
        self._outcome: Outcome | None = None
        self._tail = b""
        self._timer = threading.Timer(deadline, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if self.ended() is None:
                self._engine.kill(self._name)
                _wait(self._engine, self._name, monotonic() + 30)
                self._end(End.DEADLINE)

    def ended(self) -> Outcome | None:
        with self._lock:
            if self._outcome is None:
                try:
                    state = self._engine.state(self._name)
                except UnavailableError as error:
                    lost = Outcome(End.LOST, None, b"", b"", {}, monotonic() - self._begin, str(error), self._machine)
                    return self._set(lost)
                if state is None or not state.get("Running"):
                    self._end(End.EXITED)
            return self._outcome

    def log_tail(self, limit: int = 20_000) -> str:
        with self._lock:
            if self._outcome is None:
                self._tail = self._engine.log_tail(self._name, 2000)
            return self._tail[-limit:].decode("utf-8", "replace") if limit > 0 else ""

    def stop(self) -> Outcome:
        with self._lock:
            before = self.ended()
            if before is not None:
                return before
            self._engine.stop(self._name, int(GRACE))
            _wait(self._engine, self._name, monotonic() + 30)
            return self._end(End.EXITED, "stopped on request")

    def _end(self, end: End, detail: str = "") -> Outcome:
        try:
            self._tail = self._engine.log_tail(self._name, 2000)
            found = _outcome(self._engine, self._name, end, monotonic() - self._begin, self._machine)
        except UnavailableError as error:
            found = Outcome(End.LOST, None, b"", b"", {}, monotonic() - self._begin, str(error), self._machine)
        _remove(self._engine, self._name)
        if detail and not found.detail:
            found = replace(found, detail=detail)
        return self._set(found)

    def _set(self, outcome: Outcome) -> Outcome:
        self._timer.cancel()
        self._outcome = outcome
        self._engine.close()
        return outcome
