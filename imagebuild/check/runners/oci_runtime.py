"""The program that starts bundles on this machine: found, and proved by starting one.

runc and crun want different things of a machine (crun 1.8 no cgroups that are half of one kind and half of another), and what
a process may do in its place is seen by doing it only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.check.runner import Job
from imagebuild.check.runners.bundle import Machine, User, bundle_config
from imagebuild.check.runners.limits import capabilities, job_limits
from imagebuild.check.runners.place import remove_tree
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import UnavailableError, clean
from imagebuild.host import environment, process
from imagebuild.oci.documents import ImageConfig
from imagebuild.oci.platform import Platform

VARIABLE = "IMAGEBUILD_OCI_RUNTIME"
KNOWN = ("runc", "crun")
_SCRIPT = Path(__file__).with_name("oci.sh")
_SYS_ADMIN = 21
_NAMESPACES = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child")
_TOP = ("bin", "lib", "lib32", "lib64", "sbin", "usr", "nix")
_DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """A way of starting bundles: `program` with `options` before its verb, in a user namespace or not."""

    program: str
    options: tuple[str, ...] = ()
    in_user: bool = False
    version: str = ""

    def command(self, folder: Path, lower: Path, name: str) -> list[str]:
        """What runs the bundle in `folder` on the unpacked image `lower`, to be started with its input held."""
        words = [*_NAMESPACES, *(("--user", "--map-root-user") if self.in_user else ())]
        words += ["/bin/sh", "-c", _SCRIPT.read_text(), "imagebuild-oci"]
        words += [str(folder), str(lower), "1" if self.in_user else "0", name, str(folder / "code")]
        log = ["--log", str(folder / "runtime.log"), "--log-format", "json"]
        return [*words, self.program, "--root", str(folder / "state"), *log, *self.options]

    def refusal(self, folder: Path, code: int) -> str | None:
        """Why the command of a run that is over never ran; None where it did.

        A runtime's exit code does not tell: the command may end with the same.  Its log does, to which it writes an error
        when it could not start something, and the file that is written once it is over.
        """
        if not (folder / "code").is_file():
            said = _last(folder / "setup.log") or "the namespaces could not be made"
            return f"the container could not be laid out: {said}"
        if code == 0:
            return None
        errors = list(_errors(folder / "runtime.log"))
        return clean("; ".join(errors), 1000) if errors else None


def _errors(log: Path) -> Iterator[str]:
    """What a runtime logged as an error, but for words about containers that are gone already."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"level": "error", "msg": line}
        text = str(entry.get("msg", "")) if isinstance(entry, dict) else line
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal") and text:
            yield text


def _last(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return clean("; ".join(lines[-3:]), 500)


def find_runtime(wanted: str | None, scratch: Path) -> Runtime | str:
    """The first way that starts a program of this machine in a bundle below `scratch`; else why none does.

    `wanted` is a program; None: what `IMAGEBUILD_OCI_RUNTIME` names, else runc, else crun.
    """
    named = wanted or environment.variable(VARIABLE)
    programs = [path for name in ([named] if named else KNOWN) if (path := _program(name)) is not None]
    if not programs:
        return f"there is no {named or ' or '.join(KNOWN)}; {VARIABLE} names one that lies elsewhere"
    if shutil.which("unshare") is None:
        return "the program unshare (util-linux) is not installed"
    why = []
    for program in programs:
        for way in _ways(program):
            refused = _try(way, scratch)
            if refused is None:
                return way
            why.append(f"{' '.join((Path(program).name, *way.options))}: {refused}")
    return clean("; ".join(dict.fromkeys(why)), 1500)


def _program(name: str) -> str | None:
    path = environment.variables().get("PATH", os.defpath)
    found = shutil.which(name, path=os.pathsep.join((path, "/usr/sbin", "/sbin")))
    return None if found is None else os.path.abspath(found)


def _ways(program: str) -> Iterator[Runtime]:
    """As root first without more, then without any cgroup of its own; else in a user namespace."""
    version = _version(program)
    root = os.geteuid() == 0 and bool(capabilities() >> _SYS_ADMIN & 1)
    lax = ("--cgroup-manager", "disabled") if "crun" in version else ("--rootless", "true")
    options: Sequence[tuple[str, ...]] = (lax,) if "crun" in version else ((), lax)
    if root:
        for some in options:
            yield Runtime(program, some, False, version)
    yield Runtime(program, lax, True, version)


def _version(program: str) -> str:
    try:
        shown = process.run([program, "--version"], deadline=30).stdout.decode("utf-8", "replace")
    except UnavailableError:
        return Path(program).name
    return clean(shown.splitlines()[0], 100) if shown.strip() else Path(program).name


def _try(way: Runtime, scratch: Path) -> str | None:
    """Why a way does not work; None where it does.  The bundle holds this machine's own programs, read-only."""
    with io_faults(scratch, "writing"):
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=scratch))
    try:
        with io_faults(folder, "writing"):
            lower = folder / "root"
            binds = own_programs(lower)
            (folder / "bundle").mkdir()
            given, left = folder / "in", folder / "out"
            given.mkdir()
            left.mkdir()
            limits = job_limits(False, raising=False if way.in_user else None)
            machine = Machine(in_user=way.in_user, capabilities=capabilities(), limits=limits, binds=binds)
            image = ImageConfig(b"", {}, Platform("linux", "amd64"), ())
            job = Job(("/bin/sh", "-c", "echo begun"), _DEADLINE)
            document: Any = bundle_config(job, image, User(), given, left, machine)
            (folder / "bundle" / "config.json").write_text(json.dumps(document))
        started = process.start(way.command(folder, lower, "imagebuild-probe"), limit=10_000, hold_stdin=True)
        try:
            code = started.wait(_DEADLINE)
        finally:
            started.release()
            started.stop()
        stdout, stderr = started.output()
        if code is None:
            return f"it did not end within {_DEADLINE:g} s"
        if code == 0 and stdout == b"begun\n":
            return None
        return way.refusal(folder, code or 1) or clean(stderr.decode("utf-8", "replace").strip(), 300) or f"exit {code}"
    except UnavailableError as error:
        return error.message
    finally:
        remove_tree(folder)


def own_programs(root: Path) -> dict[str, Path]:
    """Makes `root` a root with this machine's top-level links; the folders to be bound into it."""
    root.mkdir()
    binds = {}
    for name in _TOP:
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            (root / name).mkdir()
            binds[str(path)] = path
    return binds
