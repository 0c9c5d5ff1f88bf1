"""The main part of an exported script: look at everything, rehearse everything, write, look again."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from imagebuild.build.exported.guards import Root, Stop, chunks_of, hashed, patched, say, state
from imagebuild.build.exported.plan import BASE, BODIES, CONTENT_ID, PLATFORMS, TARGET
from imagebuild.build.exported.wheels import Wheels

TEMPORARY = ".imagebuild-tmp-"
PROBE = """
import importlib.util, json, os, sys
found = importlib.util.find_spec(sys.argv[1])
places = list(found.submodule_search_locations or ()) if found else []
if found and not places and found.origin:
    places = [os.path.dirname(found.origin)]
print(json.dumps([sys.path, places]))
"""
"""Asks a Python where it would import a package from.  A package on top is found without being imported."""


class Run:
    """One run over one root."""

    def __init__(self, root: Root, plan: dict[str, Any], wheels: Wheels) -> None:
        self.root, self.plan, self.wheels = root, plan, wheels
        self.pending: list[dict[str, Any]] = []
        self.stale: list[str] = []

    def look(self) -> None:
        """The guard over everything: what is left to do.  Stops with every path that fits neither way."""
        wrong = []
        self.pending = []
        for step in self.plan["steps"]:
            known = state(step, self.root.look(step["path"]))
            if known == "before":
                self.pending.append(step)
            elif known != "after":
                sides = (step.get("before") or "nothing", step.get("after") or step.get("link") or "nothing", known)
                wrong.append("{}\n    base:  {}\n    image: {}\n    found: {}".format(step["path"], *sides))
        if wrong:
            raise Stop(1, "nothing was written; neither as the base nor as the image has it:\n  " + "\n  ".join(wrong))
        self.stale = self._stale()

    def _stale(self) -> list[str]:
        """Bytecode that a Python might run instead of a changed source."""
        steps = {step["path"]: step for step in self.plan["steps"]}
        known = {path: steps.get(source) for path, source in self.plan["bytecode"]}
        prefix = os.environ.get("PYTHONPYCACHEPREFIX", "")
        for path, step in steps.items():
            folder, name = os.path.split(path)
            if not name.endswith(".py"):
                continue
            for cache in [f"{folder}/__pycache__", *([prefix.rstrip("/") + folder] if prefix[:1] == "/" else [])]:
                for full in glob.glob(f"{glob.escape(self.root.at(cache))}/{glob.escape(name[:-3])}.*.pyc"):
                    known[f"{cache}/{os.path.basename(full)}"] = step
        return [
            path for path in sorted(known) if os.path.lexists(self.root.at(path)) and not self._fits(path, known[path])
        ]

    def _fits(self, path: str, step: dict[str, Any] | None) -> bool:
        """Whether the bytecode was made from the source as the image has it (PEP 552, by time and size): the image's times
        differ from the base's wherever sizes agree."""
        if step is None or step["kind"] != "file" or step in self.pending:
            return False
        with open(self.root.at(path), "rb") as stream:
            head = stream.read(16)
        at = os.lstat(self.root.at(step["path"]))
        words = [int.from_bytes(head[start : start + 4], "little") for start in (4, 8, 12)]
        return len(head) == 16 and words == [0, int(at.st_mtime) & 0xFFFFFFFF, at.st_size & 0xFFFFFFFF]

    def body(self, step: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of a file as the image has it."""
        source, key = step["body"]
        if source == "patch":
            yield patched(b"".join(chunks_of(self.root.at(step["path"]))), BODIES[key], step["path"])
        elif source == "whole":
            yield BODIES[key]
        else:
            yield from self.wheels.member(self.plan["wheels"][source], key)

    def rehearse(self) -> None:
        """Makes every file and compares it, before the first is written."""
        for step in self.pending:
            if step["kind"] == "file":
                made = hashed(self.body(step))
                if made != step["after"]:
                    raise Stop(1, f"nothing was written; {step['path']} would be {made}, not {step['after']}")

    def write(self) -> None:
        """Bytecode goes first, so that old code runs at no moment; each file is replaced in one step, so a run that was killed
        has left whole files, and the next one does the rest."""
        for path in self.stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.root.at(path))
        for step in self.pending:
            full = self.root.at(step["path"])
            if step["kind"] == "whiteout":
                os.unlink(full)
            elif step["kind"] == "directory":
                os.mkdir(full)
                settle(full, step)
            else:
                self._replace(full, step)

    def _replace(self, full: str, step: dict[str, Any]) -> None:
        temporary = os.path.join(os.path.dirname(full), TEMPORARY + os.path.basename(full))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        try:
            if step["kind"] == "symlink":
                os.symlink(step["link"], temporary)
            else:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                    for chunk in self.body(step):
                        out.write(chunk)
                    out.flush()
                    os.fsync(out.fileno())
                settle(temporary, step)
            os.replace(temporary, full)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def settle(path: str, step: dict[str, Any]) -> None:
    """Owner and attributes (where the container may), mode and time, as the image has them."""
    with contextlib.suppress(OSError):
        os.chown(path, step["uid"], step["gid"])
    for name, value in step.get("xattrs", {}).items():
        with contextlib.suppress(OSError):
            os.setxattr(path, name, bytes.fromhex(value))
    os.chmod(path, step["mode"])
    os.utime(path, (step["mtime"], step["mtime"]))


def interpreters(site: str) -> Iterator[str]:
    """Pythons that may be the engine's: its virtual environment's own, this one, the site folder's version, PATH's."""
    found = re.match(r"(.*)/lib(?:64)?/python(\d+\.\d+)/", site + "/")
    if found and os.path.exists(found.group(1) + "/pyvenv.cfg"):
        yield found.group(1) + "/bin/python"
    yield sys.executable
    for name in ([f"python{found.group(2)}"] if found else []) + ["python3", "python"]:
        for path in (f"/usr/bin/{name}", f"/usr/local/bin/{name}", shutil.which(name)):
            if path and os.path.exists(path):
                yield path


def prove_root(module: str, folder: str, site: str) -> str:
    """The interpreter that would import `module` from `folder`.  One whose path has the site folder decides; of the others
    one that agrees will do."""
    asked = []
    agrees = ""
    for interpreter in dict.fromkeys(interpreters(site)):
        try:
            command = [interpreter, "-c", PROBE, module.split(".")[0]]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120)
            path, places = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        inside = [os.path.join(place, *module.split(".")[1:]) for place in places]
        asked.append(f"{interpreter}: {inside[0] if inside else 'not found'}")
        same = bool(inside) and os.path.realpath(inside[0]) == os.path.realpath(folder)
        if any(os.path.realpath(entry) == os.path.realpath(site) for entry in path if entry):
            if same:
                return interpreter
            raise Stop(
                1, f"{interpreter} would import {module} from {inside[0] if inside else 'nowhere'}, not from {folder}"
            )
        agrees = agrees or (interpreter if same else "")
    if not agrees:
        raise Stop(1, f"no Python here imports {module} from {folder} ({'; '.join(asked) or 'none was found'})")
    return agrees


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Several starts on one root wait for each other, where its file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def choose(asked: str | None) -> dict[str, Any]:
    """The plan of one platform."""
    word = platform.machine().lower()
    wanted = asked or "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(word, word)
    if wanted not in PLATFORMS:
        raise Stop(1, f"made for {', '.join(sorted(PLATFORMS))}, not for {wanted}")
    found: dict[str, Any] = PLATFORMS[wanted]
    return found


def prove_roots(root: Root, plan: dict[str, Any], asked: bool, brought: set[str]) -> list[str]:
    """The folders of the roots that are there, each where Python would import it from (`asked`; not asked in an unpacked root).
    Those that the plan itself brings may be missing."""
    there = []
    for name, module, folder, site in plan["roots"]:
        kind = root.look(folder)[0]
        if kind == "absent" and folder in brought:
            continue
        if kind != "folder":
            raise Stop(1, f"the root {name} is no folder: {root.at(folder)}")
        if module and asked:
            say(f"{module}: {prove_root(module, folder, site)} imports it from {folder}")
        there.append(folder)
    return there


def run(arguments: argparse.Namespace) -> None:
    """Applies or checks.  Raises Stop, and OSError where the file system refuses."""
    plan = choose(arguments.platform)
    root = Root(arguments.rootfs or "/")
    asked = arguments.rootfs is None
    brought = {step["path"] for step in plan["steps"] if step["kind"] == "directory"}
    there = prove_roots(root, plan, asked, brought)
    with contextlib.closing(Wheels(arguments.wheels)) as wheels, contextlib.ExitStack() as held:
        job = Run(root, plan, wheels)
        if there and not arguments.check:
            held.enter_context(alone(root.at(there[0])))
        job.look()
        left = [f"to change: {step['path']}" for step in job.pending] + [f"stale: {path}" for path in job.stale]
        if arguments.check and left:
            raise Stop(1, "not as in the image:\n  " + "\n  ".join(left))
        if left:
            job.rehearse()
            job.write()
            job.look()
        if job.pending or job.stale:
            still = [step["path"] for step in job.pending] + job.stale
            raise Stop(1, "written, and still not as in the image: " + ", ".join(still))
        if len(there) < len(plan["roots"]):
            prove_roots(root, plan, asked, set())
    for name, value in plan["environment"]:
        say(f"the image also sets {name}={value}: set it in the recipe")
    say(f"{len(plan['steps'])} paths are as in the image, {len(left)} of them since now")


def main() -> int:
    """stdout: the content id.  0 as in the image; 1 not; 2 usage; 3 could not be done."""
    parser = argparse.ArgumentParser(
        description=f"Patches {BASE} in place, as the image {TARGET} has it ({CONTENT_ID})."
    )
    parser.add_argument("--check", action="store_true", help="only look; 1 where something is not as in the image")
    parser.add_argument("--rootfs", metavar="DIR", help="an unpacked root instead of /; nothing in it is run")
    parser.add_argument("--platform", help="linux/amd64 or linux/arm64 (default: this machine's)")
    parser.add_argument("--wheels", metavar="DIR", help="where wheels lie, so that none is fetched")
    arguments = parser.parse_args()
    try:
        run(arguments)
    except Stop as stop:
        say(str(stop))
        return stop.code
    except OSError as error:
        say(f"{error.filename or 'the file system'}: {error.strerror or error}")
        return 3
    sys.stdout.write(CONTENT_ID + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
