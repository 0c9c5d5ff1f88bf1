"""Runs inside a container: says what it is that runs there, then starts a server's programs and ends with the first of them.

It stands alone (standard library, Python 3.8), is sent in as text and started with the image's own Python.  `serve_arm.json`
beside it holds `commands` (a first word `python3` means this interpreter), `provenance` (paths where the image's own
account of its patches may lie), `files` (path: sha256 or "absent") and `environment` (prefixes of variables to report);
`devices.py` beside it asks the driver's library.
The report is one line on stdout that begins with `imagebuild-launch: `.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any

MARK = "imagebuild-launch: "
NAMED = 10
DEADLINE = 60.0
"""Seconds that each question about accelerators may take."""


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


def said(command: list[str]) -> str:
    """What a program prints; nothing where it is not there, fails or hangs.  One that hangs in a driver does not even die, so
    nobody waits for it for long."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        text = child.communicate(timeout=DEADLINE)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        if child.stdout is not None:
            child.stdout.close()
        return ""
    return text if child.returncode == 0 else ""


def lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def by_library(here: str) -> list[str]:
    """As the driver's own libraries list them: they are bound into containers where the vendor's tool is not."""
    try:
        told = json.loads(said([sys.executable, "-B", os.path.join(here, "devices.py"), "cuda"]).splitlines()[-1])
        driver = told.get("driver") or "driver unknown"
        return [", ".join((one["name"], driver, one["capability"])) for one in told.get("devices", [])]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return []


def by_kernel(root: str) -> list[str]:
    """As NVIDIA's kernel module names those that have a node here: it lists the whole machine's."""
    nodes = {path[len(root + "/dev/nvidia") :] for path in glob.glob(root + "/dev/nvidia[0-9]*")}
    version = re.search(r"\s(\d+\.[\d.]+)\s", " ".join(lines_of(root + "/proc/driver/nvidia/version")[:1]) + " ")
    driver = version.group(1) if version is not None else "driver unknown"
    found = []
    for place in sorted(glob.glob(root + "/proc/driver/nvidia/gpus/*/information")):
        facts = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines_of(place)}
        if facts.get("Device Minor") in nodes:
            nodes.discard(facts["Device Minor"])
            found.append(", ".join((facts.get("Model") or "NVIDIA, unnamed", driver)))
    return found + ["NVIDIA, unnamed: /dev/nvidia" + minor for minor in sorted(nodes)]


def of_amd(root: str) -> list[str]:
    nodes = {path[len(root + "/dev/dri/renderD") :] for path in glob.glob(root + "/dev/dri/renderD*")}
    found = []
    for place in sorted(glob.glob(root + "/sys/class/kfd/kfd/topology/nodes/*/properties")):
        facts = dict(line.split(" ", 1) for line in lines_of(place) if " " in line)
        version = int(facts.get("gfx_target_version", "0"))
        if version and (not nodes or facts.get("drm_render_minor") in nodes):
            found.append(f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return found


def accelerators(here: str, root: str = "") -> list[str]:
    """One line each; empty where there are none.  Whoever can name them best is asked first: the vendor's tool, the driver's
    library, the kernel."""
    tool = said(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap,uuid", "--format=csv,noheader"])
    listed = [line for line in tool.splitlines() if line.strip()]
    if not listed and glob.glob(root + "/dev/nvidia[0-9]*"):
        listed = by_library(here) or by_kernel(root)
    return listed or of_amd(root)


def report(plan: dict[str, Any], here: str) -> dict[str, Any]:
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
        "accelerators": accelerators(here),
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
    print(MARK + json.dumps(report(plan, here), sort_keys=True), flush=True)
    commands = [[sys.executable if c[0] == "python3" else c[0], *c[1:]] for c in plan["commands"]]
    if len(commands) == 1:
        os.execvp(commands[0][0], commands[0])
    sys.exit(start(commands))


if __name__ == "__main__":
    main()
