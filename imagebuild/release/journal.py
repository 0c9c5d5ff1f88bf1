"""build/release/TARGET/steps.json: which steps of a release are finished, and for which inputs.

The file only saves work.  Nothing is believed because it stands here: each step also looks whether what it left is there
still, and evidence is read anew each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.content.canonical import load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write
from imagebuild.errors import ImagebuildError

FILE_NAME = "steps.json"
SIZE_LIMIT = 8 << 20


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that ended well: `id` is the digest of its inputs, `result` what later runs need of it (JSON values)."""

    id: Digest
    result: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Journal:
    """The journal of one target.  What cannot be read counts as never written: steps then run again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps: dict[str, FinishedStep] = {}
        self._created: dict[Digest, int] = {}
        try:
            raw = path.read_bytes()
            self._read(load_json(raw, str(path)) if len(raw) <= SIZE_LIMIT else None)
        except (OSError, ImagebuildError):
            pass

    def _read(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("schemaVersion") != 1:
            return
        steps, created = value.get("steps"), value.get("created")
        for name, item in (steps if isinstance(steps, dict) else {}).items():
            if isinstance(item, dict) and isinstance(item.get("id"), str) and isinstance(item.get("result"), dict):
                self._steps[name] = FinishedStep(Digest.parse(item["id"]), item["result"])
        for text, seconds in (created if isinstance(created, dict) else {}).items():
            if isinstance(seconds, int) and seconds >= 0:
                self._created[Digest.parse(text)] = seconds

    def finished(self, step: str) -> FinishedStep | None:
        """The last good end of a step, for whatever inputs."""
        return self._steps.get(step)

    def finish(self, step: str, id: Digest, result: Mapping[str, Any]) -> None:
        """Records the end of a step.  Raises UnavailableError `content.io`, `content.disk-full`."""
        self._steps[step] = FinishedStep(id, result)
        self._store()

    def created(self, release: Digest, now: int, *, record: bool) -> int:
        """When the release with this id was begun: what is on record, else `now`, which is then recorded (so that a run
        that was interrupted ends with the very statements that it would have made)."""
        known = self._created.get(release)
        if known is None and record:
            # only the release at hand can still be interrupted
            self._created = {release: now}
            self._store()
        return now if known is None else known

    def _store(self) -> None:
        value = {
            "schemaVersion": 1,
            "created": {str(id): seconds for id, seconds in self._created.items()},
            "steps": {name: {"id": str(step.id), "result": step.result} for name, step in self._steps.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")
