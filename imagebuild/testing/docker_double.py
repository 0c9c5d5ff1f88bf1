"""A program `docker` that compiles nothing: it answers as Docker's client does, and exports what it was given.

The tar that it writes holds `/out/m.so` (all files of the context, joined), `/out/args` (build arguments, network and platform) and,
where the context has a file `random`, `/out/random` with another number each time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PROGRAM = """#!{python} -IS
import io, json, os, sys, tarfile
VERSION, BUILDX, SERVER = {version!r}, {buildx!r}, {server!r}
words = sys.argv[1:]
def say(text):
    print(text)
    sys.exit(0)
with open({log!r}, "a") as log:
    print(json.dumps([words, os.environ.get("DOCKER_BUILDKIT")]), file=log)
if words == ["--version"]:
    say("Docker version " + VERSION + ", build x")
if words[:1] == ["version"]:
    if SERVER is None:
        sys.stderr.write("Cannot connect to the Docker daemon at unix:///nobody.\\n")
        sys.exit(1)
    say(json.dumps({{"Client": {{"Version": VERSION}}, "Server": {{"Version": SERVER}}}}))
if words == ["buildx", "--help"]:
    say("Usage: docker buildx" if BUILDX else "Usage: docker [OPTIONS] COMMAND")
if words == ["buildx", "version"]:
    say("github.com/docker/buildx 0.29.1 abc")
if words[0] == "buildx":
    assert BUILDX
    words = words[1:]
assert words[0] == "build"
options, context = {{}}, words[-1]
rest = words[1:-1]
while rest:
    name = rest.pop(0)
    options.setdefault(name, []).append("" if name in ("--no-cache",) else rest.pop(0))
files = sorted(p for p in ((os.path.join(d, n)) for d, _, ns in os.walk(context) for n in ns))
joined = b"".join(open(p, "rb").read() for p in files)
if b"#error" in joined:
    sys.stderr.write("#7 0.3 fast.c:1: error: expected expression\\n\\nerror: failed to solve: exit code: 1\\n")
    sys.exit(1)
outputs = {{"out/m.so": joined, "out/args": json.dumps([options["--build-arg"], options.get("--network"), options["--platform"]]).encode()}}
if any(p.endswith("random") for p in files):
    outputs["out/random"] = os.urandom(8)
destination = options["--output"][0].split("dest=")[1]
with tarfile.open(destination, "w") as archive:
    for name, data in outputs.items():
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o755 if name.endswith(".so") else 0o644
        archive.addfile(info, io.BytesIO(data))
sys.stderr.write("#8 exporting to client\\n")
"""


class DockerDouble:
    """The program in a folder of its own.  `server` None: no engine answers."""

    def __init__(
        self, folder: Path, *, version: str = "20.10.24", buildx: bool = False, server: str | None = "20.10.24"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "calls"
        program = folder / "docker"
        program.write_text(
            _PROGRAM.format(python=sys.executable, version=version, buildx=buildx, server=server, log=str(self.log))
        )
        program.chmod(0o755)

    def calls(self) -> list[tuple[list[str], str | None]]:
        """Words of each call, and DOCKER_BUILDKIT."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(words, kit) for words, kit in map(json.loads, lines)]

    def builds(self) -> list[tuple[list[str], str | None]]:
        return [(words, kit) for words, kit in self.calls() if "--output" in words]
