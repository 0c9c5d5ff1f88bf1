"""Ways of imagebuild itself, each a process of its own that the harness starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from harness.job import Job
from harness.measure import Place, Step, run

Kind = Literal["cold", "complete", "again", "locked", "unchanged", "verify", "imports"]
PROGRAM = str(Path(sys.executable).parent / "imagebuild")
TARGET = "bench"
TRACE = """import json, sys
noted = sys.argv.pop(1)
from imagebuild.cli.main import entry
try:
    entry()
finally:
    open(noted, "w").write(json.dumps(sorted(sys.modules)))
"""
IMPORTS = """from importlib import import_module
for name in {names}:
    try:
        import_module(name)
    except ImportError:  # a name that an extension module gave itself
        pass
"""


class OwnWay:
    """`cold` and `complete` lock and build with nothing at hand; `again` locks and builds another change with the facts of
    the base at hand; `locked` builds from a committed lock and content on a machine that has nothing else; `unchanged`
    is that build once more; `verify` recomputes the pushed image with an empty cache; `imports` only imports the modules
    that `locked` uses, to tell what of it is the interpreter's."""

    def __init__(self, work: Path, kind: Kind, *, base: str = "base", new: bool = False, delayed: bool = False) -> None:
        self._modules: list[str] = []
        self._work, self.kind, self.base, self._new, self.delayed = work, kind, base, new, delayed
        self.checked = kind not in ("verify", "imports")
        self.key = "-".join(["own", kind, *([base] if base != "base" else []), *(["new"] if new else [])])
        self.key += "-delayed" if delayed else ""
        self.title = {
            "cold": "imagebuild lock, build",
            "complete": "imagebuild lock --complete, build",
            "again": "imagebuild lock, build",
            "locked": "imagebuild build",
            "unchanged": "imagebuild build, nothing changed",
            "verify": "imagebuild verify",
            "imports": "the imports of `imagebuild build` alone",
        }[kind]
        if base == "above":
            self.title += ": 500 MB above the engine"
        if base == "joined":
            self.title += ": torch in the engine's layer"
        if new:
            self.title += ": one new file"

    def missing(self) -> str | None:
        return None if Path(PROGRAM).exists() else "imagebuild is not installed beside this Python"

    def job(self, repeat: int) -> Job:
        return Job(series=repeat + 1 if self.kind == "again" else 0, new=self._new)

    @property
    def _cache(self) -> Path:
        return self._work / "cache"

    def _lock(self) -> Step:
        complete = ["--complete"] if self.kind == "complete" else []
        return self._step("lock", "lock", TARGET, *complete, "--json")

    def _build(self, place: Place) -> Step:
        return self._step("build", "build", TARGET, "--output", place.result, "--json")

    def _step(self, label: str, *arguments: str) -> Step:
        return Step(
            label,
            [PROGRAM, *arguments, "--workspace", str(self._work / "workspace")],
            {"IMAGEBUILD_CACHE": str(self._cache), "CI": "1"},
        )

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        first = repeat == 0
        if first or self.kind in ("cold", "complete"):
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            forget()
            base = f"{place.host}/{place.base}:{place.base_tag}@{place.base_digest}"
            Job(new=self._new).write_workspace(self._work / "workspace", {TARGET: base})
        if first and self.kind not in ("cold", "complete"):
            run(self._lock())
            if self.kind == "imports":
                self._trace(place)
            elif self.kind != "locked":
                run(self._build(place))
        if self.kind == "again":
            self.job(repeat).write_overlay(self._work / "workspace")
        if self.kind == "locked":
            forget()
        if self.kind in ("locked", "verify"):
            shutil.rmtree(self._cache, ignore_errors=True)

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        if self.kind in ("cold", "complete", "again"):
            return [self._lock(), self._build(place)]
        if self.kind == "verify":
            return [self._step("verify", "verify", place.result, "--target", TARGET, "--json")]
        if self.kind == "imports":
            return [Step("imports", [sys.executable, "-c", IMPORTS.format(names=self._modules)])]
        return [self._build(place)]

    def _trace(self, place: Place) -> None:
        """Learns which modules a locked build uses."""
        noted = self._work / "modules.json"
        step = self._build(place)
        run(Step("trace", [sys.executable, "-c", TRACE, str(noted), *step.command[1:]], step.env))
        self._modules = [name for name in json.loads(noted.read_text()) if name != "__main__"]

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)


class AloneWay:
    """A program that needs no registry: `--version`, the first read of the engine's layer, and the imports of a build."""

    kind = "alone"
    delayed = False
    checked = False

    def __init__(self, key: str, title: str, base: str, command: Callable[[], Sequence[str]]) -> None:
        self.key, self.title, self.base, self._command = key, title, base, command
        self._ready: Sequence[str] = ()

    def missing(self) -> str | None:
        return None

    def job(self, repeat: int) -> Job:
        return Job()

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        if not self._ready:
            self._ready = self._command()
        run(Step("warm", self._ready))

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        return [Step("run", self._ready)]

    def close(self) -> None:
        pass
