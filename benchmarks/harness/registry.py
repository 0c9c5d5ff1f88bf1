"""A real registry (distribution 2.8) on a free port of loopback, with storage of its own and its access log as the
measure of traffic: nothing stands between a measured program and the registry."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

CONFIG = """version: 0.1
log: {{level: error}}
storage:
  filesystem: {{rootdirectory: {storage}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_LINE = re.compile(r'^127\.0\.0\.1 \S+ \S+ \[[^]]*\] "(\S+) (\S+) HTTP/[0-9.]+" (\d+) (\d+)')
_PUT = re.compile(r"/blobs/uploads/[^?]*\?.*digest=sha256(?::|%3A)([0-9a-f]{64})")
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one run asked of the registry; bytes are those of bodies, seen from the client."""

    requests: int
    down: int
    up: int
    base_blobs: int
    """GET requests for blobs of the base's layers."""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


class Registry:
    """`folder` keeps storage from run to run, so that the base is pushed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "storage"
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self._log = folder / "access.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yml"
        config.write_text(CONFIG.format(storage=self.storage, port=self.port))
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        until = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{self.host}/v2/", timeout=1).close()
                return self
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def _blob(self, hex_digest: str) -> Path:
        return self.storage / "docker/registry/v2/blobs/sha256" / hex_digest[:2] / hex_digest

    @property
    def _repositories(self) -> Path:
        return self.storage / "docker/registry/v2/repositories"

    def holds(self, repository: str, tag: str, digest: str) -> bool:
        """Whether a tag points at that image and everything of it is there."""
        link = self._repositories / repository / "_manifests/tags" / tag / "current/link"
        if not link.is_file() or link.read_text() != digest or not self.blob(digest).is_file():
            return False
        manifest = json.loads(self.blob(digest).read_bytes())
        return all(self.blob(item["digest"]).is_file() for item in [manifest["config"], *manifest["layers"]])

    def forget(self, repository: str) -> None:
        """Drops a repository, and every blob that no other one has, as if it had never been pushed."""
        shutil.rmtree(self._repositories / repository, ignore_errors=True)
        linked = chain(
            self._repositories.glob("**/_layers/sha256/*"), self._repositories.glob("**/_manifests/revisions/sha256/*")
        )
        keep = {path.name for path in linked}
        for blob in self.storage.glob("docker/registry/v2/blobs/sha256/*/*"):
            if blob.name not in keep:
                shutil.rmtree(blob)

    def mark(self) -> int:
        return self._log.stat().st_size

    def traffic(self, mark: int, base: Sequence[str]) -> Traffic:
        """What was asked since `mark`; `base` are the digests of the base's layers."""
        time.sleep(0.05)  # the last lines of the log are on their way
        with self._log.open("rb") as log:
            log.seek(mark)
            lines = log.read().decode("utf-8", "replace").splitlines()
        requests = down = up = blobs = 0
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            method, target, status, size = found[1], found[2], int(found[3]), int(found[4])
            requests += 1
            if method == "GET":
                down += size
                blobs += any(target.endswith(f"/blobs/{digest}") for digest in base)
            elif method == "PUT" and status == 201:
                put = _PUT.search(target)
                if put is not None:
                    up += (self._blob(put[1]) / "data").stat().st_size
                else:
                    up += self._manifest_size(target)
        return Traffic(requests, down, up, blobs)

    def _manifest_size(self, target: str) -> int:
        repository, _, name = target.removeprefix("/v2/").partition("/manifests/")
        return len(self.manifest(repository, name)[0])

    def manifest(self, repository: str, name: str) -> tuple[bytes, dict[str, Any]]:
        """Read from storage, so that it does not stand in the log."""
        root = self._repositories / repository / "_manifests"
        digest = name if name.startswith("sha256:") else (root / "tags" / name / "current/link").read_text()
        raw = (self._blob(digest.removeprefix("sha256:")) / "data").read_bytes()
        return raw, json.loads(raw)

    def blob(self, digest: str) -> Path:
        return self._blob(digest.removeprefix("sha256:")) / "data"
