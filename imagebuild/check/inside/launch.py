"""Started first inside the image: reads what proves that this is the image, then runs one program to its deadline.

Reads `request.json` in the folder of inputs and writes `answer.json` in the folder of outputs:

    {"proof": {...}, "machine": {...}, "program": {"name", "ended", "code", "seconds"}, "answer": what the program wrote}

`ended` is `exited` or `deadline`.  The program runs in a process group of its own, which is killed as a whole; a process
that does not even die (one that hangs in a driver) is left behind, and said to be.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from typing import Any

BOOT = (
    "import os,sys;sys.dont_write_bytecode=True;sys.argv=sys.argv[1:];"
    "exec(compile(open(sys.argv[0],'rb').read(),sys.argv[0],'exec'))"
)
"""Runs a file with the search path that `python -m` has: the working folder first, not the file's own."""
GRACE = 5.0
"""Seconds for a killed process to go."""


def state_of(path: str) -> dict[str, Any]:
    """What stands at a path, no last link followed."""
    try:
        at = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent"}
    except OSError as error:
        return {"state": "unreadable", "error": str(error)}
    if stat.S_ISLNK(at.st_mode):
        return {"state": "link", "link": os.readlink(path)}
    if not stat.S_ISREG(at.st_mode):
        return {"state": "other"}
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(1 << 20), b""):
                digest.update(piece)
    except OSError as error:
        return {"state": "unreadable", "error": str(error)}
    return {"state": "file", "sha256": "sha256:" + digest.hexdigest(), "size": at.st_size}


def moved_folders(roots: list[dict[str, str]]) -> dict[str, str]:
    """For a Python outside any container: where each site folder and root of the image is here, by import names."""
    out = {}
    for root in roots:
        try:
            spec = importlib.util.find_spec(root["name"])
        except (ImportError, ValueError):
            spec = None
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if places:
            out[root["folder"]] = os.path.realpath(places[0])
            if root["site"]:
                out[root["site"]] = os.path.dirname(os.path.realpath(places[0]))
    return out


def mapped(path: str, moved: dict[str, str]) -> str:
    for folder in sorted(moved, key=len, reverse=True):
        if path == folder or path.startswith(folder + "/"):
            return moved[folder] + path[len(folder) :]
    return path


def proof(asked: dict[str, Any], moved: dict[str, str]) -> dict[str, Any]:
    """Content ids that the image's provenance files tell, and the hash of every changed path."""
    told = {}
    for path in asked["provenance"]:
        found = state_of(mapped(path, moved))
        try:
            with open(mapped(path, moved), encoding="utf-8") as stream:
                document = json.load(stream)
            found["content_id"] = str(document["content_id"])
            found["base"] = str(document["base"]["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        told[path] = found
    return {"provenance": told, "files": {path: state_of(mapped(path, moved)) for path in asked["files"]}}


def machine() -> dict[str, Any]:
    named = platform.uname()
    return {
        "system": named.system,
        "kernel": named.release,
        "architecture": named.machine,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "folder": os.getcwd(),
        "user": os.getuid(),
    }


def run_program(path: str, deadline: float, environment: dict[str, str]) -> dict[str, Any]:
    began = time.monotonic()
    command = [sys.executable, "-B", "-c", BOOT, path]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
    ended, stuck = "exited", False
    try:
        child.wait(deadline)
    except subprocess.TimeoutExpired:
        ended = "deadline"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        stuck = True
    code = child.returncode
    return {
        "ended": ended,
        "code": None if code is None or ended == "deadline" else 128 - code if code < 0 else code,
        "stuck": stuck,
        "seconds": round(time.monotonic() - began, 3),
    }


def write(path: str, value: Any) -> None:
    with open(path + ".part", "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True)
    os.replace(path + ".part", path)


def main() -> int:
    given, out = os.environ["IMAGEBUILD_IN"], os.environ["IMAGEBUILD_OUT"]
    with open(os.path.join(given, "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    moved = moved_folders(request["proof"]["roots"]) if request["proof"]["relocate"] else {}
    answer: dict[str, Any] = {
        "kind": "imagebuild-inside",
        "schemaVersion": 1,
        "proof": proof(request["proof"], moved),
        "moved": moved,
        "machine": machine(),
        "program": None,
        "answer": None,
    }
    place = os.path.join(out, "answer.json")
    write(place, answer)
    own = os.path.join(out, "program.json")
    environment = dict(os.environ, IMAGEBUILD_ANSWER=own, IMAGEBUILD_MOVED=json.dumps(moved))
    name = request["program"]
    answer["program"] = {
        "name": name,
        **run_program(os.path.join(given, name + ".py"), request["deadline"], environment),
    }
    try:
        with open(own, encoding="utf-8") as stream:
            answer["answer"] = json.load(stream)
        os.unlink(own)
    except FileNotFoundError:
        pass
    except ValueError as error:
        answer["program"]["unreadable"] = str(error)
    write(place, answer)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # a child that hangs in a driver must not keep this process
    os._exit(code)
