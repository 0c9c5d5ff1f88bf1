"""overlay.yaml as a value (formats.md, overlays/NAME/overlay.yaml)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from imagebuild.content.schema import (
    ByKey,
    Field,
    Integer,
    List,
    Object,
    Text,
    json_schema,
    validate,
)
from imagebuild.content.strict_yaml import load_yaml, no_entries
from imagebuild.errors import InputError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.change_schema import CHANGE, GUARDS
from imagebuild.overlay.changes import (
    BlobChange,
    Change,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    Guard,
    PatchChange,
    StageChange,
    SymlinkChange,
    WheelChange,
)
from imagebuild.overlay.vocabulary import (
    DATE,
    ENV_NAME,
    GIT_ID,
    LINE,
    PROSE,
    URL,
    name_of,
    validate_name,
)

__all__ = [
    "BlobChange", "Change", "DeleteChange", "EditChange", "EnvChange", "FileChange", "Guard", "Origin", "Overlay", "PatchChange",
    "Proof", "StageChange", "Switch", "SymlinkChange", "WheelChange", "guards_for", "load_overlay",
    "overlay_schema",
]  # fmt: skip

FILE_NAME = "overlay.yaml"
ORIGINS = ("upstream", "backport", "vendor", "other")
UPSTREAM_STATUS = ("Pending", "Submitted", "Denied", "Inappropriate", "Backport", "Inactive-Upstream")
NUMERICS = ("bitwise", "reordered", "lower-precision")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a change comes from, in DEP-3's words."""

    kind: str
    url: str | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """The environment variable that turns the change on: unset and `default` mean off, `on` means on."""

    env: str
    default: str
    on: str

    def __post_init__(self) -> None:
        if self.default == self.on:
            raise InputError(
                "overlay.bad-switch", "off and on have the same value", found=self.on, details={"key": "on"}
            )


@dataclass(frozen=True, slots=True)
class Proof:
    """What shows that the switched branch ran: a line of the log that matches `log`, or a `counter` of the engine."""

    log: str | None = None
    counter: str | None = None

    def __post_init__(self) -> None:
        if (self.log is None) == (self.counter is None):
            raise InputError("overlay.bad-proof", "a proof is a log expression or a counter")
        if self.log is not None:
            try:
                re.compile(self.log)
            except (re.error, OverflowError, RecursionError) as error:
                raise InputError(
                    "overlay.bad-proof", f"not a regular expression: {error}", found=self.log, details={"key": "log"}
                ) from error


@dataclass(frozen=True, slots=True)
class Overlay:
    """One overlay, as its author wrote it.  `folder` is where it lies; every path in `guards` is ROOT/relative and has
    one guard, or one for each platform.  Nothing here was compared with a base."""

    name: str
    description: str
    changes: tuple[Change, ...]
    folder: Path
    origin: Origin | None = None
    author: str | None = None
    forwarded: str | None = None
    upstream_status: str | None = None
    applied_upstream: str | None = None
    last_update: date | None = None
    numerics: str | None = None
    remove_when: str | None = None
    license: str | None = None
    switch: Switch | None = None
    proof: Proof | None = None
    fixes: tuple[str, ...] = ()
    guards: Mapping[str, Guard | Mapping[Platform, Guard]] = field(default_factory=no_entries)

    def __post_init__(self) -> None:
        validate_name(self.name, "an overlay")
        faults: list[InputError] = []
        if self.folder.name != self.name:
            faults.append(
                InputError(
                    "overlay.name-mismatch",
                    "the overlay's name is not its folder's",
                    expected=self.folder.name,
                    found=self.name,
                    hint="rename the folder, or change `name`",
                    details={"key": "name"},
                )
            )
        if self.proof is not None and self.switch is None:
            faults.append(
                InputError(
                    "overlay.bad-proof",
                    "a proof tells the switched branch from the other, and there is no switch",
                    hint="declare `switch`, or remove `proof`",
                    details={"key": "proof", "with": ["switch"]},
                )
            )
        places: dict[tuple[str, Platform | None], int] = {}
        env: dict[str, str] = {}
        for number, change in enumerate(self.changes):
            only: tuple[Platform | None, ...] = (change.platforms if isinstance(change, BlobChange) else ()) or (None,)
            for path in _made(change):
                there = [at for (known, on), at in places.items() if known == path and _meet(on, only)]
                if there:
                    faults.append(
                        InputError(
                            "overlay.made-twice",
                            f"{path} is made whole by change {there[0] + 1} already",
                            hint="keep one of the two",
                            details={"key": f"changes[{number}]"},
                        )
                    )
                places.update({(path, platform): number for platform in only})
            if isinstance(change, EnvChange):
                for name, value in change.env.items():
                    if env.setdefault(name, value) != value:
                        faults.append(
                            InputError(
                                "overlay.env-twice",
                                f"{name} has two values",
                                found=f"{env[name]!r} and {value!r}",
                                details={"key": f"changes[{number}].env.{name}"},
                            )
                        )
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise SeveralErrors(faults)


def _meet(on: Platform | None, only: tuple[Platform | None, ...]) -> bool:
    """Whether a change for platform `on` (None: for all) and one for `only` meet on some platform."""
    return on is None or None in only or on in only


def _made(change: Change) -> tuple[str, ...]:
    """The paths that a change makes whole, whatever stood there."""
    if isinstance(change, FileChange):
        return (change.to,)
    if isinstance(change, (BlobChange, SymlinkChange)):
        return (change.path,)
    return tuple(change.out.values()) if isinstance(change, StageChange) else ()


def _proof(values: dict[str, Any]) -> Proof:
    return Proof(**values)


OVERLAY = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format", required=True),
        "name": Field(name_of("an overlay"), "the folder's name", required=True),
        "description": Field(PROSE, "one line, then why", required=True),
        "origin": Field(
            Object(
                {
                    "kind": Field(
                        Text("an origin of DEP-3", choices=ORIGINS), "where the change comes from", required=True
                    ),
                    "url": Field(URL, "the pull request, commit or file"),
                    "commit": Field(GIT_ID, "the commit that it was taken from"),
                },
                "an origin",
                lambda values: Origin(**values),
            ),
            "where the change comes from (DEP-3)",
        ),
        "author": Field(LINE, "who wrote it"),
        "forwarded": Field(
            Text(
                "no, not-needed or an address",
                pattern=rf"no|not-needed|{URL.pattern}",
                form="no | not-needed | https://…",
            ),
            "whether upstream has been told (DEP-3)",
        ),
        "upstream_status": Field(Text("an upstream status", choices=UPSTREAM_STATUS), "state upstream (Yocto's words)"),
        "applied_upstream": Field(LINE, "version, commit or address where upstream has it (DEP-3)"),
        "last_update": Field(DATE, "day of the last change to this overlay"),
        "numerics": Field(
            Text("a claim about numerics", choices=NUMERICS), "what the author claims with the switch on"
        ),
        "remove_when": Field(PROSE, "what must happen for this overlay to go"),
        "license": Field(Text("a licence (SPDX)", pattern=r"[A-Za-z0-9.+() -]+"), "SPDX expression"),
        "switch": Field(
            Object(
                {
                    "env": Field(ENV_NAME, "the variable", required=True),
                    "default": Field(Text("text", empty=True), "the value that means off", required=True),
                    "on": Field(Text("text"), "the value that means on", required=True),
                },
                "a switch",
                lambda values: Switch(**values),
            ),
            "the environment variable that turns the change on",
        ),
        "proof": Field(
            ByKey(
                {
                    "log": Object(
                        {"log": Field(LINE, "regular expression over a log line", required=True)}, "a proof", _proof
                    ),
                    "counter": Object({"counter": Field(LINE, "name of a metric", required=True)}, "a proof", _proof),
                },
                "a proof",
            ),
            "found with the switch on, absent with it off and in the base",
        ),
        "fixes": Field(
            List(Text("a vulnerability's id", pattern="[A-Z]+(?:-[A-Za-z0-9]+)+"), unique=True),
            "vulnerabilities that it fixes",
        ),
        "changes": Field(List(CHANGE, "a list of changes", minimum=1), "what is changed, in this order", required=True),
        "guards": Field(GUARDS, "digests before and after; written by import and lock, reviewed by people"),
    },
    "an overlay",
)


def overlay_schema() -> dict[str, Any]:
    """The JSON Schema of overlay.yaml."""
    return json_schema(OVERLAY, name="overlay.json", title="imagebuild overlay")


def load_overlay(folder: Path) -> Overlay:
    """The overlay in `folder`.  Raises InputError, or SeveralErrors of them, with file and line: what `parse_yaml` and
    `validate` raise, `overlay.name-mismatch`, `overlay.file-missing`, `overlay.file-outside` and the others of
    codes.yaml."""
    node = load_yaml(folder / FILE_NAME)
    whole = Path(os.path.abspath(folder))

    def build(values: dict[str, Any]) -> Overlay:
        values.pop("schema")
        faults = _file_faults(values["changes"], whole)
        try:
            overlay = Overlay(folder=whole, **values)
        except InputError as error:
            faults.append(error)
        except SeveralErrors as several:
            faults.extend(error for error in several.errors if isinstance(error, InputError))
        if faults:
            raise SeveralErrors(faults)
        return overlay

    overlay: Overlay = validate(node, replace(OVERLAY, build=build))
    return overlay


def _file_faults(changes: tuple[Change, ...], folder: Path) -> list[InputError]:
    faults = []
    top = folder.resolve()
    for number, change in enumerate(changes):
        if isinstance(change, PatchChange):
            name, key = change.patch, "patch"
        elif isinstance(change, FileChange):
            name, key = change.file, "file"
        elif isinstance(change, BlobChange) and change.file is not None:
            name, key = change.file, "blob.file"
        else:
            continue
        details = {"key": f"changes[{number}].{key}"}
        path = (top / name).resolve()
        if not path.is_relative_to(top):
            faults.append(
                InputError("overlay.file-outside", f"{name} leads out of the overlay's folder", details=details)
            )
        elif not path.is_file():
            faults.append(InputError("overlay.file-missing", f"{name} is no file below {folder}", details=details))
    return faults


def guards_for(overlay: Overlay, platform: Platform) -> dict[str, Guard]:
    """The guards of one platform, path to guard; a path guarded for other platforms only is left out."""
    out: dict[str, Guard] = {}
    for path, guard in overlay.guards.items():
        if isinstance(guard, Guard):
            out[path] = guard
        elif platform in guard:
            out[path] = guard[platform]
    return out
