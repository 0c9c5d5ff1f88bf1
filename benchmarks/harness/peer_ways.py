"""buildah, umoci between two skopeo, and crane."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.job import SITE, Job
from harness.measure import Place, Step, run


def _absent(*names: str) -> str | None:
    gone = [name for name in names if shutil.which(name) is None]
    return f"not installed: {', '.join(gone)}" if gone else None


class BuildahWay:
    """from, copy, commit, push, on the overlay driver, with storage of the benchmark's own."""

    base = "base"
    delayed = False
    checked = True
    title = "buildah from, copy, commit, push"

    def __init__(self, work: Path, *, again: bool) -> None:
        self._work, self._again = work, again
        self.key = "buildah-again" if again else "buildah"
        self.kind = "again" if again else "cold"
        self._options = ["--root", str(work / "root"), "--runroot", str(work / "run"), "--storage-driver", "overlay"]

    def missing(self) -> str | None:
        return "buildah's overlay storage needs root" if os.geteuid() != 0 else _absent("buildah")

    def job(self, repeat: int) -> Job:
        return Job(series=repeat + 1 if self._again else 0)

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        if not self._again or repeat == 0:
            self.close()
            forget()
        if self._again and repeat == 0:
            Job().write_tree(self._work / "files")
            for step in self.steps(place, 0):
                run(step)
        self.job(repeat).write_tree(self._work / "files")
        run(self._step("remove", "rm", "--all"))

    def _step(self, label: str, *command: str) -> Step:
        return Step(label, ["buildah", *self._options, *command])

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        return [
            self._step("from", "from", "--quiet", "--tls-verify=false", "--name", "work", place.base_name),
            self._step("copy", "copy", "--quiet", "work", str(self._work / "files"), "/"),
            self._step("commit", "commit", "--quiet", "work", place.result),
            self._step("push", "push", "--quiet", "--tls-verify=false", place.result, f"docker://{place.result}"),
        ]

    def close(self) -> None:
        if (self._work / "root").exists():
            for command in (["rm", "--all"], ["rmi", "--all", "--force"]):
                run(self._step("clear", *command))
            for mounted in (self._work / "root" / "overlay", self._work / "run"):
                subprocess.run(["umount", "--recursive", str(mounted)], capture_output=True, check=False)
            shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True, exist_ok=True)


class UmociWay:
    """skopeo copies the base into a layout, umoci inserts the files, skopeo copies the result back."""

    base = "base"
    delayed = False
    checked = True
    title = "skopeo copy, umoci insert, skopeo copy"

    def __init__(self, work: Path, *, again: bool) -> None:
        self._work, self._again = work, again
        self.key = "umoci-again" if again else "umoci"
        self.kind = "again" if again else "cold"

    def missing(self) -> str | None:
        return _absent("skopeo", "umoci")

    def job(self, repeat: int) -> Job:
        return Job(series=repeat + 1 if self._again else 0)

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        if not self._again or repeat == 0:
            shutil.rmtree(self._work / "layout", ignore_errors=True)
            forget()
        if self._again and repeat == 0:
            Job().write_tree(self._work / "files")
            for step in self._steps(place, pull=True):
                run(step)
        self.job(repeat).write_tree(self._work / "files")

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        return self._steps(place, pull=not self._again)

    def _steps(self, place: Place, pull: bool) -> list[Step]:
        layout = self._work / "layout"
        copy = ["skopeo", "copy", "--quiet"]
        fetch = [*copy, "--src-tls-verify=false", f"docker://{place.base_name}", f"oci:{layout}:base"]
        insert = ["umoci", "insert", "--image", f"{layout}:base", "--tag", "out"]
        steps = [
            Step("insert", [*insert, str(self._work / "files" / SITE / "vllm"), f"/{SITE}/vllm"]),
            Step("push", [*copy, "--dest-tls-verify=false", f"oci:{layout}:out", f"docker://{place.result}"]),
        ]
        return [Step("fetch", fetch), *steps] if pull else steps

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)


class CraneWay:
    """crane append of a finished layer.  It asks nothing of the base's files: no guard, no RECORD, no bytecode."""

    base = "base"
    kind = "cold"
    checked = True

    def __init__(self, work: Path, sid: str | None, *, delayed: bool) -> None:
        self._work, self.delayed = work, delayed
        self.key = "crane-delayed" if delayed else "crane"
        self.title = "crane append, checking nothing"
        inside = Path(sid) / "usr/bin/crane" if sid else None
        self.program = shutil.which("crane") or (str(inside) if inside and inside.exists() else "")

    def missing(self) -> str | None:
        return None if self.program else "crane is not installed, and IMAGEBUILD_SID_ROOT names no folder with it"

    def job(self, repeat: int) -> Job:
        return Job()

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        self.job(repeat).write_tar(self._work / "layer.tar")
        forget()

    def steps(self, place: Place, repeat: int) -> Sequence[Step]:
        append = ["append", "--insecure", "--base", place.base_name, "--new_layer", str(self._work / "layer.tar")]
        return [Step("append", [self.program, *append, "--new_tag", place.result])]

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
