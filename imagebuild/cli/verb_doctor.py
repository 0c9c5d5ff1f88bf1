"""Tell what this machine can do, and, with a host, what that registry can do.

Runners are what `smoke` starts commands in images with; the oci runner is tried out on a program of this machine.
Nothing is changed anywhere.

Examples:
  imagebuild doctor
  imagebuild doctor docker.io
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from imagebuild.cli.session import Session
from imagebuild.content.text import size_text, table

PROGRAMS = {
    "docker": "compiles stages",
    "podman": "runs images",
    "buildah": "reads images",
    "skopeo": "copies images between transports",
    "umoci": "unpacks OCI layouts",
    "runc": "runs unpacked images",
    "crun": "runs unpacked images",
    "cosign": "signs and verifies",
    "git": "keeps overlays and locks",
    "srun": "runs on a Slurm cluster",
}
PACKAGES = ("PyYAML", "urllib3", "isal", "deflate", "zstandard", "rich", "docker", "python-on-whales")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", nargs="?", metavar="HOST", help="a registry to ask, docker.io for example")


def run(arguments: argparse.Namespace, session: Session) -> int:
    rows: list[list[str]] = []
    document: dict[str, Any] = {"kind": "doctor", "schemaVersion": 1}
    document["python"] = {"version": platform.python_version(), "executable": sys.executable}
    rows.append(["python", platform.python_version(), sys.executable])
    document["machine"] = {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()}
    rows.append(["machine", platform.machine(), f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"])
    document["packages"] = {}
    for name in PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        document["packages"][name] = version
        rows.append([f"package {name}", version, ""])
    document["programs"] = {}
    for name, purpose in PROGRAMS.items():
        path = shutil.which(name)
        document["programs"][name] = path
        rows.append([name, "there" if path else "missing", path or f"(it {purpose})"])
    document["runners"] = _runners()
    for name, why in document["runners"].items():
        rows.append(
            [f"runner {name}", "can work" if why is None else "cannot work", why or "(it starts checks in images)"]
        )
    document["cache"] = _cache(session.cache)
    rows.append(["cache", size_text(document["cache"]["free_bytes"]) + " free", str(session.cache)])
    code = 0
    if arguments.host is not None:
        document["registry"] = _registry(arguments.host, session)
        rows += [[f"registry {key}", _shown(value), arguments.host] for key, value in document["registry"].items()]
        code = 0 if document["registry"]["reachable"] else 3
    session.output.answer(document, table(rows, ["WHAT", "STATE", "WHERE"]))
    return code


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _runners() -> dict[str, str | None]:
    """Each runner, and why it cannot start a container here; None where it can."""
    from imagebuild.check.runners.survey import survey

    return {name: None if why is None else " ".join(why.split())[:200] for name, why in survey().items()}


def _cache(folder: Path) -> dict[str, Any]:
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    return {
        "folder": str(folder),
        "writable": os.access(nearest, os.W_OK),
        "free_bytes": shutil.disk_usage(nearest).free,
    }


def _registry(host: str, session: Session) -> dict[str, Any]:
    from imagebuild.errors import ImagebuildError
    from imagebuild.registry.probe import probe_host

    try:
        return {"reachable": True, **probe_host(host, session.opener().registry_options())}
    except ImagebuildError as error:
        return {"reachable": False, "why": error.message}
