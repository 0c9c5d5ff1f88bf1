"""A builder that builds nothing: it exports what a test says."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from imagebuild.build.buildkit import StageBuild
from imagebuild.errors import UnavailableError


@dataclass
class FakeBuilder:
    """Each build exports the next of `exports` (the last again and again): path to bytes, executable where it ends in `!`."""

    exports: Sequence[Mapping[str, bytes]]
    name: str = "fake 1"
    built: list[tuple[StageBuild, dict[str, bytes]]] = field(default_factory=list)

    def build(self, wanted: StageBuild, log: Callable[[str], None]) -> None:
        context = {
            str(path.relative_to(wanted.context)): path.read_bytes()
            for path in wanted.context.rglob("*")
            if path.is_file()
        }
        self.built.append((wanted, context))
        log(f"building {len(self.built)}")
        files = self.exports[min(len(self.built), len(self.exports)) - 1]
        with tarfile.open(wanted.tar, "w") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name.rstrip("!").lstrip("/"))
                info.size, info.mode = len(data), 0o755 if name.endswith("!") else 0o644
                archive.addfile(info, io.BytesIO(data))


def no_builder() -> FakeBuilder:
    raise UnavailableError("stage.no-builder", "nothing here can build it", found="no docker in PATH")
