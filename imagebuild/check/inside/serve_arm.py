"""Runs inside a container: says what it is that runs there, then starts a server's programs and ends with the first of them.

It stands alone (standard library, Python 3.8), is sent in as text and started with the image's own Python.  `serve_arm.json`
beside it holds `commands` (a first word `python3` means this interpreter), `provenance` (paths where the image's own
account of its patches may lie), `files` (path: sha256 or "absent") and `environment` (prefixes of variables to report).
The report is one line on stdout that begins with `imagebuild-launch: `.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

MARK = "imagebuild-launch: "
NAMED = 10


def digest(path: str) -> str:
    """sha256 of a file, `absent` where there is none."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                found.update(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    except OSError as error:
        return "unreadable: " + str(error)
    return "sha256:" + found.hexdigest()


def content_ids(named: list[str]) -> list[str]:
    """What the provenance files of the image say, those that are named and those beside what Python imports."""
    places = set(named)
    for folder in sys.path:
        places.update(glob.glob(os.path.join(glob.escape(folder or "."), "*.dist-info", "imagebuild.json")))
    found = set()
    for place in places:
        try:
            with open(place, "rb") as stream:
                found.add(str(json.loads(stream.read())["content_id"]))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            found.add("unreadable: " + place)
    return sorted(found)


def accelerators() -> list[str]:
    """One line each, as their own tools and the kernel name them; empty where there are none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace").split("\n")[:-1]
    except (OSError, subprocess.TimeoutExpired):
        pass
    found = []
    for place in sorted(glob.glob("/sys/class/kfd/kfd/topology/nodes/*/properties")):
        try:
            with open(place) as stream:
                facts = dict(line.split(" ", 1) for line in stream.read().splitlines() if " " in line)
        except OSError:
            continue
        if facts.get("gfx_target_version", "0").strip() != "0":
            found.append("amd, gfx_target_version " + facts["gfx_target_version"].strip())
    return found


def report(plan: dict[str, Any]) -> dict[str, Any]:
    wrong: list[list[str]] = []
    for path, expected in sorted(plan["files"].items()):
        found = digest(path)
        if found != expected:
            wrong.append([path, expected, found])
    shown = {
        name: value
        for name, value in sorted(os.environ.items())
        if any(name.startswith(p) for p in plan["environment"])
    }
    return {
        "content_ids": content_ids(plan["provenance"]),
        "files": len(plan["files"]),
        "wrong": wrong[:NAMED],
        "wrong_count": len(wrong),
        "environment": shown,
        "accelerators": accelerators(),
        "python": sys.version.split()[0],
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "node": os.uname().nodename,
    }


def start(commands: list[list[str]]) -> int:
    """Several programs live and die together: the code of the first that ends."""
    programs = [subprocess.Popen(command) for command in commands]
    ended = threading.Event()
    codes: list[int] = []

    def wait(program: subprocess.Popen[bytes]) -> None:
        codes.append(program.wait())
        ended.set()

    def stop(number: int, frame: object) -> None:
        for program in programs:
            program.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for program in programs:
        threading.Thread(target=wait, args=(program,), daemon=True).start()
    while not ended.wait(1.0):
        pass
    for program in programs:
        if program.poll() is None:
            program.terminate()
    for program in programs:
        try:
            program.wait(20)
        except subprocess.TimeoutExpired:
            program.kill()
    return codes[0] if codes[0] >= 0 else 128 - codes[0]


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "serve_arm.json"), "rb") as stream:
        plan = json.loads(stream.read())
    print(MARK + json.dumps(report(plan), sort_keys=True), flush=True)
    commands = [[sys.executable if c[0] == "python3" else c[0], *c[1:]] for c in plan["commands"]]
    if len(commands) == 1:
        os.execvp(commands[0][0], commands[0])
    sys.exit(start(commands))


if __name__ == "__main__":
    main()
