"""`oci`: an unpacked image started by runc or crun, as root or in a user namespace; no container engine is needed.

The image is unpacked once and stays as it is: each job sees it through an overlay of its own.  Everything that is mounted
for a job is mounted in a namespace that ends with it, and the job ends with the process that asked for it, even where that
one is killed: so a machine is left as it was.  GPU nodes and the NVIDIA driver's libraries are bound in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuild.check.runner import OUTPUT_LIMIT, CheckedImage, End, Job, Outcome, Server
from imagebuild.check.runners import owner
from imagebuild.check.runners.bundle import Machine, bundle_config, user_of
from imagebuild.check.runners.devices import check_devices, machine_nodes
from imagebuild.check.runners.files import collect_folder, write_inputs
from imagebuild.check.runners.libraries import driver_libraries, driver_programs, named_folders
from imagebuild.check.runners.limits import capabilities, job_limits
from imagebuild.check.runners.loading import child_of
from imagebuild.check.runners.oci_runtime import Runtime, find_runtime
from imagebuild.check.runners.place import Place, Scratch, laid_out, no_runner, remove_tree
from imagebuild.check.runners.rootfs import Rootfs
from imagebuild.check.runners.serving import (
    GRACE,
    Ended,
    EndedServer,
    Finish,
    Live,
    ProcessServer,
    never_ran,
    outcome_of,
    run_to_end,
)
from imagebuild.content.files import io_faults
from imagebuild.host import process
from imagebuild.oci.documents import ImageConfig

OWNER_FILE = "owner.json"
"""In the folder of a run: whose it is, in the words of a container's labels."""
_HOSTS = "127.0.0.1\tlocalhost imagebuild\n::1\tlocalhost ip6-localhost\n"


class OciRunner:
    """Jobs in bundles below the scratch folder: `images/HEX/rootfs` the unpacked images, `runs/NAME` what jobs need."""

    name = "oci"

    def __init__(self, place: Place, *, runtime: str | None = None, libraries: Sequence[Path] = ()) -> None:
        self._place = place
        self._wanted = runtime or place.runtime
        self._libraries = (*libraries, *place.libraries, *named_folders(place.environment))
        self._scratch = Scratch(place.scratch)
        self._live = Live()
        self._rootfs: Rootfs | None = None
        self._runtime: Runtime | None = None
        self._why: str | None = None

    def available(self) -> str | None:
        """Proved by starting a program of this machine in a bundle."""
        if self._runtime is None and self._why is None:
            found = find_runtime(self._wanted, self._scratch.folder())
            if isinstance(found, str):
                self._why = found
            else:
                self._runtime = found
        return self._why

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        job = laid_out(job, self._place)
        started = self._start(image, job)
        if isinstance(started, Outcome):
            return started
        begun, finish = started
        return run_to_end(begun, job.deadline, finish, lambda: _end(begun))

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        job = laid_out(job, self._place, network=True)
        started = self._start(image, job)
        if isinstance(started, Outcome):
            return EndedServer(started, port)
        begun, finish = started
        return self._live.add(ProcessServer(begun, port, job.deadline, finish, lambda: _ask_to_end(begun)))

    def close(self) -> None:
        self._live.close()
        if self._rootfs is not None:
            self._rootfs.close()
        self._scratch.close()

    def _start(self, image: CheckedImage, job: Job) -> tuple[process.Process, Finish] | Outcome:
        check_devices(job.devices)
        why = self.available()
        if why is not None or self._runtime is None:
            raise no_runner("oci", why or "no runtime was found")
        runtime = self._runtime
        if self._rootfs is None:
            self._sweep()
            self._rootfs = Rootfs(self._scratch.folder() / "images", keep=self._place.keep)
        root = self._rootfs.of(image)
        config = child_of(image).config
        machine = self._machine(runtime)
        name = owner.job_name(job.name)
        folder = self._runs() / name
        try:
            laid = self._lay(folder, job, root, config, runtime)
            if isinstance(laid, str):
                remove_tree(folder)
                return Outcome(End.NOT_STARTED, None, b"", b"", detail=laid, machine=machine)
            said = {**machine, **laid}
            begun = process.start(runtime.command(folder, root, name), limit=OUTPUT_LIMIT, hold_stdin=True)
        except BaseException:
            remove_tree(folder)
            raise
        return begun, lambda ended, started: _finish(ended, started, folder, runtime, said)

    def _lay(self, folder: Path, job: Job, root: Path, config: ImageConfig, runtime: Runtime) -> dict[str, Any] | str:
        """Makes the folder of a run; what an outcome says of it, or why the job cannot be started."""
        with io_faults(folder, "making"):
            folder.mkdir(mode=0o700)
            (folder / OWNER_FILE).write_text(json.dumps(owner.labels(job.deadline)))
            (folder / "bundle").mkdir()
        given, left = write_inputs(folder / "files", job.inputs)
        nodes = [] if job.devices is None else machine_nodes(job.devices)
        if job.devices is not None:
            wanted = job.devices.count or 1
            here = sum(node.path[-1:].isdigit() for node in nodes)
            if here < wanted:
                return f"{wanted} devices of {job.devices.vendor} are asked for, and this machine shows {here}"
        nvidia = job.devices is not None and job.devices.vendor == "nvidia"
        libraries = driver_libraries(self._libraries) if nvidia else {}
        if nvidia and not libraries:
            return "the driver's libraries (libcuda.so.1) are nowhere; name their folder in IMAGEBUILD_DRIVER_LIBRARIES"
        user = user_of(config.section, root)
        machine = Machine(
            in_user=runtime.in_user,
            capabilities=capabilities(),
            limits=job_limits(job.devices is not None, raising=False if runtime.in_user else None),
            nodes=nodes,
            libraries=libraries,
            programs=driver_programs() if nvidia else {},
            binds=_network_files(folder, job.network),
        )
        # only root is known in the namespace of a user
        who = replace(user, uid=0, gid=0) if runtime.in_user else user
        document = bundle_config(job, config, who, given, left, machine)
        with io_faults(folder, "writing"):
            (folder / "bundle" / "config.json").write_text(json.dumps(document))
        told: dict[str, Any] = {"user": f"{who.uid}:{who.gid}"}
        if who != user:
            told["userOfImage"] = f"{user.uid}:{user.gid}"
        if job.devices is not None:
            told["deviceNodes"] = [node.path for node in nodes]
        if libraries:
            told["driverLibraries"] = str(next(iter(libraries.values())).parent)
        return told

    def _runs(self) -> Path:
        runs = self._scratch.folder() / "runs"
        with io_faults(runs, "making"):
            runs.mkdir(mode=0o700, exist_ok=True)
        return runs

    def _sweep(self) -> None:
        """Removes the folders of runs whose process is dead; the jobs themselves died with it."""
        for folder in self._runs().iterdir():
            try:
                found = json.loads((folder / OWNER_FILE).read_text())
            except (OSError, ValueError):
                continue
            if isinstance(found, dict) and owner.is_stale(found):
                remove_tree(folder)

    def _machine(self, runtime: Runtime) -> dict[str, Any]:
        return {
            "runner": "oci",
            "runtime": runtime.program,
            "version": runtime.version,
            "userNamespace": runtime.in_user,
        }


def _network_files(folder: Path, network: bool) -> dict[str, Path]:
    """/etc/hosts and, on the machine's network, /etc/resolv.conf: engines give every container these."""
    hosts = folder / "hosts"
    text = _HOSTS
    if network and Path("/etc/hosts").is_file():
        text += Path("/etc/hosts").read_text(errors="replace")
    hosts.write_text(text)
    hosts.chmod(0o644)
    out = {"/etc/hosts": hosts}
    names = Path("/etc/resolv.conf")
    if network and names.is_file():
        out["/etc/resolv.conf"] = names.resolve()
    return out


def _end(begun: process.Process) -> None:
    """Ends the container at once and lets the runtime clean up after it."""
    begun.release()
    begun.wait(15)


def _ask_to_end(begun: process.Process) -> None:
    begun.terminate()
    if begun.wait(GRACE) is None:
        _end(begun)


def _finish(ended: Ended, started: process.Process, folder: Path, runtime: Runtime, machine: dict[str, Any]) -> Outcome:
    try:
        refused = runtime.refusal(folder, ended.code)
        machine = {**machine, "writable": _word(folder / "writable")}
        if refused is not None and ended.end is End.EXITED:
            return Outcome(End.NOT_STARTED, None, b"", b"", {}, ended.seconds, refused, machine)
        left = collect_folder(folder / "files" / "out")
    finally:
        remove_tree(folder)
    return never_ran(outcome_of(ended, started.output(), left, machine))


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
