"""Debian's docker-registry on a free port of loopback, with storage of its own, read from disk behind its back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tools import program

from imagebuild.content.digest import Digest
from imagebuild.testing.images import MadeImage

_CONFIG = """version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {storage}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:0"}}
"""
_LISTENING = re.compile(r"listening on (127\.0\.0\.1:[0-9]+)")


def _settled(link: Path) -> str:
    """What a tag points at.

    distribution truncates the link before it writes it, and goes on with a request whose client was killed: an empty
    link is a write under way, which its own readers must wait for too.
    """
    for _ in range(200):
        if text := link.read_text():
            return text
        time.sleep(0.01)
    raise AssertionError(f"{link} stays empty: the registry was interrupted while it wrote a tag")


class RealRegistry:
    """distribution 2.8 below `folder`.  `host` is HOST:PORT, spoken to over plain HTTP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "storage" / "docker" / "registry" / "v2"
        self.host = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealRegistry:
        server = program("docker-registry")
        config = self.folder / "config.yml"
        config.write_text(_CONFIG.format(storage=self.folder / "storage"))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [server, "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        for _ in range(1200):
            said = (self.folder / "log").read_text()
            assert self._process.poll() is None, said[-2000:]
            if found := _LISTENING.search(said):
                # it took the port itself: one chosen for it could be another server's by the time that it listens
                self.host = found[1]
                return self
            time.sleep(0.05)
        raise AssertionError(f"docker-registry does not listen: {said[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def put_image(self, repository: str, tag: str, image: MadeImage) -> None:
        """Uploads an image over HTTP, plainly: blobs, child manifests, the top by its tag."""
        documents = {made.descriptor.digest: made for made in (*image.images, image)}
        for digest, data in image.blobs.items():
            if digest not in documents:
                self.put_blob(repository, digest, data)
        for made in (*image.images, image):
            name = tag if made is image else str(made.descriptor.digest)
            self.put_manifest(repository, name, made.raw, made.descriptor.media_type)

    def put_blob(self, repository: str, digest: Digest, data: bytes) -> None:
        with self._open("POST", f"/v2/{repository}/blobs/uploads/") as answer:
            location = answer.headers["Location"]
        joint = "&" if "?" in location else "?"
        path = location.removeprefix(f"http://{self.host}")
        with self._open("PUT", f"{path}{joint}digest={digest}", data, "application/octet-stream"):
            pass

    def put_manifest(self, repository: str, name: str, raw: bytes, media_type: str) -> None:
        with self._open("PUT", f"/v2/{repository}/manifests/{name}", raw, media_type):
            pass

    def _open(self, method: str, path: str, data: bytes = b"", content_type: str = "") -> Any:
        asked = urllib.request.Request(f"http://{self.host}{path}", data, method=method)
        if content_type:
            asked.add_header("Content-Type", content_type)
        return urllib.request.urlopen(asked, timeout=30)

    def _blob(self, digest: str) -> Path:
        text = digest.removeprefix("sha256:")
        return self.storage / "blobs" / "sha256" / text[:2] / text / "data"

    def blob(self, repository: str, digest: str) -> bytes | None:
        """The blob as that repository shows it, None where it does not."""
        text = digest.removeprefix("sha256:")
        repo = self.storage / "repositories" / repository
        linked = (
            repo / "_layers" / "sha256" / text / "link",
            repo / "_manifests" / "revisions" / "sha256" / text / "link",
        )
        if not any(link.is_file() for link in linked) or not self._blob(digest).is_file():
            return None
        return self._blob(digest).read_bytes()

    def tags(self) -> dict[str, str]:
        """`REPOSITORY:TAG` to digest, of everything that the registry holds."""
        out = {}
        root = self.storage / "repositories"
        for folder, names, _ in os.walk(root):
            names[:] = [name for name in names if name not in ("_uploads", "_layers")]
            link = Path(folder, "current", "link")
            if link.parent.parent.parent.name == "tags" and link.is_file():
                parts = link.relative_to(root).parts
                out[f"{'/'.join(parts[:-5])}:{parts[-3]}"] = _settled(link)
        return out

    def incomplete(self) -> list[str]:
        """What is missing or damaged below the tags: walks every tag down to its last blob."""
        faults: list[str] = []
        for name, digest in self.tags().items():
            repository = name.rpartition(":")[0]
            self._walk(name, repository, digest, faults)
        return faults

    def _walk(self, name: str, repository: str, digest: str, faults: list[str]) -> None:
        raw = self._checked(name, repository, digest, faults)
        if raw is None:
            return
        value: Mapping[str, Any] = json.loads(raw)
        for child in value.get("manifests", ()):
            self._walk(name, repository, child["digest"], faults)
        for blob in [value["config"], *value["layers"]] if "layers" in value else ():
            data = self._checked(name, repository, blob["digest"], faults)
            if data is not None and len(data) != blob["size"]:
                faults.append(f"{name}: {blob['digest']} has another size")

    def _checked(self, name: str, repository: str, digest: str, faults: list[str]) -> bytes | None:
        data = self.blob(repository, digest)
        if data is None:
            faults.append(f"{name}: {digest} is missing")
        elif f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            faults.append(f"{name}: {digest} is damaged")
            return None
        return data
