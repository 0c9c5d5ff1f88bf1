"""A patched image of the small serving engine, and a runner that starts jobs as processes over its unpacked files."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from imagebuild.build.base_documents import load_base
from imagebuild.build.contents import Contents
from imagebuild.check.images import checked_image
from imagebuild.check.runner import CheckedImage, End, Job, Outcome
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.cli.main import main
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.target.lock import load_lock
from imagebuild.target.workspace import Workspace
from imagebuild.testing.smoke_engine import smoke_base, smoke_workspace

AMD64 = Platform("linux", "amd64")
PYTHON = os.path.realpath(sys.executable)
"""The interpreter below a virtual environment: with few packages of its own."""
SITE = "usr/local/lib/python3.11/dist-packages"


class Bench:
    """The workspace, locked and built; `request` for its image."""

    def __init__(self, folder: Path) -> None:
        root = folder / "root"
        (root / "usr/bin").mkdir(parents=True)
        (root / "srv").mkdir()
        (root / "usr/bin/python3.11").write_bytes(b"\x7fELF, a stand-in")
        (root / "usr/bin/python3").symlink_to("python3.11")
        (root / "usr/lib/python3.11").mkdir(parents=True)
        (root / "usr/lib/python3.11/os.py").write_bytes(b"")
        with _environment(IMAGEBUILD_CACHE=str(folder / "cache")):
            self.made = smoke_base(folder / "base", root)
            self.space = smoke_workspace(folder / "space", self.made.reference)
            for verb in ("lock", "build"):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                    code = main([verb, "tuned", "-C", str(self.space.root), "--cache", str(folder / "cache"), "-q"])
                assert code == 0, said.getvalue()
        self.cache = folder / "cache"

    def request(self, **changes: Any) -> SmokeRequest:
        space = Workspace.find(self.space.root)
        target = space.target("tuned")
        lock = load_lock(space.lock_path("tuned"))
        base = LayoutSource(self.made.folder)
        contents = Contents(CompressedStore(space.content_path("tuned")), ContentStore(self.cache / "content"))
        return SmokeRequest(
            target,
            space.series(target),
            lock,
            checked_image(LayoutSource(space.root / "build" / "tuned"), lock.result.digest, AMD64, base=base),
            checked_image(base, self.made.digest, AMD64),
            load_base(lock.inputs, contents, lambda: base),
            **{"relocated": True, **changes},
        )


@contextlib.contextmanager
def _environment(**values: str) -> Any:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def unpack(image: CheckedImage, into: Path) -> None:
    """The image's layers over each other, whiteouts left out (none of these images needs them)."""
    child = next(iter(read_image_tree(image.source, image.digest, [image.platform]).children.values()))
    for layer in child.manifest.layers:
        with contextlib.closing(cast(Any, image.source.open_blob(layer))) as stream:
            data = stream.read(1 << 30)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(into, filter="fully_trusted")


class UnpackedRunner:
    """Jobs as processes over the unpacked site folder: this machine's Python, the image's packages.

    `spoil(root)` may change the unpacked image before anything runs; `answers` are outcomes by job name, given instead
    of running.
    """

    name = "stand-in"

    def __init__(
        self,
        folder: Path,
        answers: Mapping[str, Outcome] | None = None,
        spoil: Any = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.answers, self.spoil = folder, answers or {}, spoil
        self.environment = environment or {}
        self.ran: list[str] = []
        self.seconds: dict[str, float] = {}
        self.reason: str | None = None

    def available(self) -> str | None:
        return self.reason

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        self.ran.append(job.name)
        if job.name in self.answers:
            return self.answers[job.name]
        root = self.folder / image.digest.hex[:12]
        if not root.is_dir():
            unpack(image, root)
            # importing the real one out of an archive takes a second each time
            (root / SITE / "pip").mkdir()
            (root / SITE / "pip" / "__main__.py").write_bytes(b"print('No broken requirements found.')\n")
            if self.spoil is not None:
                self.spoil(root)
        with tempfile.TemporaryDirectory() as scratch:
            given, out = Path(scratch, "in"), Path(scratch, "out")
            given.mkdir()
            out.mkdir()
            for name, data in job.inputs.items():
                if name != "pip.zip":
                    (given / name).write_bytes(data)
            environment = {**os.environ, "IMAGEBUILD_IN": str(given), "IMAGEBUILD_OUT": str(out)}
            environment |= {"PYTHONPATH": str(root / SITE), **job.environment}
            environment |= {name: text.replace("ROOT", str(root)) for name, text in self.environment.items()}
            command = [PYTHON, *job.command[1:]]
            began = time.monotonic()
            try:
                done = subprocess.run(
                    command, capture_output=True, cwd=root / "srv", env=environment, timeout=job.deadline, check=False
                )
                end, code, stdout, stderr = End.EXITED, done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as error:
                end, code, stdout, stderr = End.DEADLINE, None, error.stdout or b"", error.stderr or b""
            files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
            self.seconds[job.name] = time.monotonic() - began
            return Outcome(end, code, stdout, stderr, files, self.seconds[job.name])

    def serve(self, image: CheckedImage, job: Job, port: int) -> Any:
        raise AssertionError("smoke steps start their servers inside a job")

    def close(self) -> None:
        pass


def outcome(answer: Any = None, **changes: Any) -> Outcome:
    return replace(Outcome(End.EXITED, 0, b"", b"", {} if answer is None else {"answer.json": answer}), **changes)
