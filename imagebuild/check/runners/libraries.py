"""The NVIDIA driver's libraries on this machine: a container that no toolkit prepares gets them from here.

They belong to the kernel module's version, so no image brings them.  The linker's cache names them on most machines; on
some they lie in a folder of their own, which is named by `IMAGEBUILD_DRIVER_LIBRARIES` (several parted by `:`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagebuild.errors import UnavailableError
from imagebuild.host import environment, process

VARIABLE = "IMAGEBUILD_DRIVER_LIBRARIES"
INSIDE = "/usr/local/nvidia/lib64"
"""Folder of the libraries in the container; images made for CUDA have it in LD_LIBRARY_PATH."""
FOLDERS = (INSIDE, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")
"""Where drivers are installed, looked at after what is named and what the linker knows."""
PROGRAMS = ("nvidia-smi",)
_FIRST = "libcuda.so.1"
_WANTED = re.compile(r"(libcuda|libcudadebugger|libnvidia-[a-z0-9-]+|libnvcuvid)\.so(\.[0-9.]+)?\Z")


def named_folders(site: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Folders that the environment names, after those that a site's environment does."""
    said = [(site or {}).get(VARIABLE) or "", environment.variable(VARIABLE) or ""]
    return tuple(Path(part) for text in said for part in text.split(":") if part.startswith("/"))


def driver_libraries(folders: Iterable[Path], listed: str | None = None) -> dict[str, Path]:
    """Name of each driver library, and the file that it stands for: of the first folder that holds `libcuda.so.1`.

    `folders` are looked at first, then those that the linker's cache (`listed`, as `ldconfig -p` prints it) names, then
    the usual ones.  {} where there is no driver.
    """
    known = linker_folders(_linker_cache() if listed is None else listed)
    for folder in (*folders, *known, *map(Path, FOLDERS)):
        if (folder / _FIRST).is_file():
            found = {}
            for path in sorted(folder.iterdir()):
                if _WANTED.match(path.name) and path.is_file():
                    found[path.name] = path.resolve()
            return found
    return {}


def linker_folders(listed: str) -> list[Path]:
    """Folders in which the linker finds `libcuda.so.1`."""
    out = []
    for line in listed.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and name.split(" ")[0] == _FIRST:
            out.append(Path(path).parent)
    return out


def driver_programs() -> dict[str, Path]:
    """Name and file of the driver's programs that this machine has."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    return {name: Path(path).resolve() for name, path in found.items() if path is not None}


def _linker_cache() -> str:
    for program in ("ldconfig", "/sbin/ldconfig"):
        try:
            return process.run([program, "-p"], deadline=30).stdout.decode("utf-8", "replace")
        except UnavailableError:
            continue
    return ""
