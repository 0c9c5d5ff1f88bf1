"""The folder that people work in: where targets, overlays and the rest lie (cli.md, Common; formats.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.content.files import io_faults
from imagebuild.content.schema import Field, Integer, List, Object, Shape, json_schema, nearest, validate
from imagebuild.content.strict_yaml import load_yaml
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors
from imagebuild.overlay.vocabulary import LOCAL_PATH, NAME_PATTERN
from imagebuild.target.document import FILE_NAME as TARGET_FILE
from imagebuild.target.document import Target, load_target

if TYPE_CHECKING:
    from imagebuild.overlay.document import Overlay

MAP_NAME = ".imagebuild.yaml"
LOCK_NAME = "target.lock.json"
CONTENT_NAME = "content"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where things lie, below the workspace.  `recipes`, `masters` and `changelog` are another repository's own files;
    None or empty where there are none."""

    manifests: str = "manifests"
    overlays: str = "overlays"
    waivers: str = "waivers"
    recipes: str | None = None
    masters: tuple[str, ...] = ()
    changelog: str | None = None


def _folders(values: dict[str, Any]) -> Folders:
    values.pop("schema", None)
    masters = values.get("masters")
    if isinstance(masters, str):
        values["masters"] = (masters,)
    return Folders(**values)


WORKSPACE = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format"),
        "manifests": Field(LOCAL_PATH, "folder of the targets; manifests if left out"),
        "overlays": Field(LOCAL_PATH, "folder of the overlays; overlays if left out"),
        "waivers": Field(LOCAL_PATH, "folder of the waivers; waivers if left out"),
        "recipes": Field(LOCAL_PATH, "folder of the recipes that start engines"),
        "masters": Field(
            Shape("a path or a list of paths", scalar=LOCAL_PATH, items=List(LOCAL_PATH, unique=True)),
            "files that list the benchmark's configurations",
        ),
        "changelog": Field(LOCAL_PATH, "file that records what changed"),
    },
    "a mapping",
    _folders,
)


def workspace_schema() -> dict[str, Any]:
    """The JSON Schema of .imagebuild.yaml."""
    return json_schema(WORKSPACE, name="workspace.json", title="imagebuild workspace")


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace.  `root` is absolute."""

    root: Path
    folders: Folders

    @classmethod
    def find(cls, start: Path, named: Path | str | None = None) -> Workspace:
        """The workspace `named`, or the nearest at or above `start`: a folder with `.imagebuild.yaml`, or with
        `manifests/` and `overlays/`.  Raises InputError `target.no-workspace`, and what reading `.imagebuild.yaml`
        raises."""
        if named is not None:
            root = Path(os.path.abspath(start / named))
            found = cls._at(root)
            if found is None:
                raise InputError(
                    "target.no-workspace",
                    f"{root} is no workspace",
                    expected=f"a folder with manifests/ and overlays/, or with {MAP_NAME}",
                    found="a folder without them" if root.is_dir() else "no folder",
                    hint=f"`imagebuild init {named}` makes one",
                )
            return found
        top = Path(os.path.abspath(start))
        for folder in (top, *top.parents):
            found = cls._at(folder)
            if found is not None:
                return found
        raise InputError(
            "target.no-workspace",
            f"neither {top} nor a folder above it is a workspace",
            expected=f"a folder with manifests/ and overlays/, or with {MAP_NAME}",
            hint="`imagebuild init` makes one here; -C DIR names one elsewhere",
        )

    @classmethod
    def _at(cls, folder: Path) -> Workspace | None:
        mapped = folder / MAP_NAME
        if mapped.is_file():
            return cls(folder, validate(load_yaml(mapped), WORKSPACE))
        if (folder / "manifests").is_dir() and (folder / "overlays").is_dir():
            return cls(folder, Folders())
        return None

    @property
    def manifests(self) -> Path:
        return self.root / self.folders.manifests

    @property
    def overlay_folder(self) -> Path:
        return self.root / self.folders.overlays

    @property
    def waivers(self) -> Path:
        return self.root / self.folders.waivers

    @property
    def sites_path(self) -> Path:
        return self.root / "sites.yaml"

    @property
    def policy_path(self) -> Path:
        return self.root / "policy.yaml"

    def target_folder(self, name: str) -> Path:
        """manifests/NAME.  Raises InputError `target.bad-name` for a name that no folder of ours can have."""
        return self.manifests / _safe(name, "a target", "target.bad-name")

    def target_path(self, name: str) -> Path:
        return self.target_folder(name) / TARGET_FILE

    def lock_path(self, name: str) -> Path:
        return self.target_folder(name) / LOCK_NAME

    def content_path(self, name: str) -> Path:
        return self.target_folder(name) / CONTENT_NAME

    def overlay_path(self, name: str) -> Path:
        """overlays/NAME.  Raises InputError `target.bad-name`."""
        return self.overlay_folder / _safe(name, "an overlay", "target.bad-name")

    def waiver_path(self, number: int) -> Path:
        return self.waivers / f"{number}.yaml"

    def targets(self) -> tuple[str, ...]:
        """Names of the folders below manifests/ that hold a target.yaml, sorted."""
        return _names(self.manifests, TARGET_FILE)

    def overlays(self) -> tuple[str, ...]:
        """Names of the folders below overlays/ that hold an overlay.yaml, sorted."""
        from imagebuild.overlay.document import FILE_NAME

        return _names(self.overlay_folder, FILE_NAME)

    def target(self, name: str) -> Target:
        """Raises InputError `target.unknown-target`, and what `load_target` raises."""
        path = self.target_path(name)
        if not path.is_file():
            raise _unknown("target.unknown-target", "target", name, self.targets(), self.manifests)
        return load_target(path)

    def overlay(self, name: str) -> Overlay:
        """Raises InputError `target.unknown-overlay`, and what `load_overlay` raises."""
        from imagebuild.overlay.document import FILE_NAME, load_overlay

        folder = self.overlay_path(name)
        if not (folder / FILE_NAME).is_file():
            raise _unknown("target.unknown-overlay", "overlay", name, self.overlays(), self.overlay_folder)
        return load_overlay(folder)

    def series(self, target: Target) -> tuple[Overlay, ...]:
        """The target's overlays in order.  What is wrong with any of them is raised at once."""
        out: list[Overlay] = []
        faults: list[ImagebuildError] = []
        for name in target.overlays:
            try:
                out.append(self.overlay(name))
            except SeveralErrors as several:
                faults.extend(several.errors)
            except ImagebuildError as error:
                faults.append(error)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise SeveralErrors(faults)
        return tuple(out)

    def shown(self, path: Path) -> str:
        """`path` as people name it: below the workspace where it lies there."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def _safe(name: str, what: str, code: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise InputError(
            code,
            f"{name[:80]!r} cannot be the name of {what}",
            expected="1 to 64 lower-case letters, digits, and . _ - between them",
            found=name[:80],
            hint=_name_in(name),
        )
    return name


def _name_in(path: str) -> str | None:
    """What to type where somebody typed the path of a target's or an overlay's folder, or of a file in it."""
    for part in reversed(path.split("/")):
        if NAME_PATTERN.fullmatch(part) and "." not in part:
            return f"give the name, not a path: {part}"
    return None


def _names(folder: Path, file: str) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    with io_faults(folder, "listing"):
        found = os.listdir(folder)
    return tuple(sorted(name for name in found if NAME_PATTERN.fullmatch(name) and (folder / name / file).is_file()))


def _unknown(code: str, what: str, name: str, known: tuple[str, ...], folder: Path) -> InputError:
    near = nearest(name, known)
    return InputError(
        code,
        f"there is no {what} {name} below {folder}",
        expected=", ".join(known) or f"no {what} is there yet",
        found=name,
        hint=f"did you mean {near}?" if near else None,
    )
