"""target.yaml as a value (formats.md, manifests/NAME/target.yaml)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.schema import (
    Boolean,
    ByKey,
    Field,
    Integer,
    List,
    Map,
    Object,
    Text,
    json_schema,
    validate,
)
from imagebuild.content.strict_yaml import load_yaml, no_entries
from imagebuild.errors import InputError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import Repository, parse_repository
from imagebuild.overlay.vocabulary import (
    ABSOLUTE_PATH,
    DISTRIBUTION,
    ENV,
    PLATFORM,
    PROSE,
    VERSION,
    name_of,
    validate_name,
)
from imagebuild.target.parts import IMPORT_NAME, Base, Publish, RootSpec, parse_base
from imagebuild.target.serve import CHECKS, SERVE, Checks, Gsm8k, Model, Serve, Smoke, Speculative
from imagebuild.target.sku import SKUS, Sku
from imagebuild.target.tags import TEMPLATE_PATTERN, TagValues, render_tag

__all__ = [
    "Base", "Checks", "Gsm8k", "Model", "Publish", "RootSpec", "Serve", "Smoke", "Speculative", "TagValues", "Target", "load_target",
    "parse_base", "render_tag", "target_schema",
]  # fmt: skip

FILE_NAME = "target.yaml"
_SOME_DIGEST = Digest("0" * 64)


@dataclass(frozen=True, slots=True)
class Target:
    """One image that somebody wants, as written.  `folder` holds target.yaml, the lock and the content folder; a
    relative path of `base` starts at the workspace.  `requires_env` is asserted of the base, `requires_host` of the
    machine; `expect_applied` names the overlays of which the base may hold postimages already, `untouched` the roots of
    which no file may be changed."""

    name: str
    base: Base
    platforms: tuple[Platform, ...]
    folder: Path
    description: str | None = None
    sku: str | None = None
    overlays: tuple[str, ...] = ()
    roots: Mapping[str, RootSpec] = field(default_factory=no_entries)
    derived_record: str = "update"
    content: str = "commit"
    env: Mapping[str, str] = field(default_factory=no_entries)
    requires_env: Mapping[str, str] = field(default_factory=no_entries)
    requires_host: Mapping[str, str] = field(default_factory=no_entries)
    identity: Mapping[str, str] = field(default_factory=no_entries)
    expect_applied: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    publish: Publish | None = None
    attestations_repository: Repository | None = None
    serve: Serve | None = None
    checks: Checks | None = None
    waiver: int | None = None

    def __post_init__(self) -> None:
        validate_name(self.name, "a target")
        faults = [*self._name_faults(), *self._sku_faults(), *self._tag_faults(), *self._env_faults()]
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise SeveralErrors(faults)

    def _name_faults(self) -> list[InputError]:
        faults = []
        if self.folder.name != self.name:
            faults.append(
                InputError(
                    "target.name-mismatch",
                    "the target's name is not its folder's",
                    expected=self.folder.name,
                    found=self.name,
                    hint="rename the folder, or change `name`",
                    details={"key": "name"},
                )
            )
        for number, name in enumerate(self.expect_applied):
            if name not in self.overlays:
                faults.append(
                    InputError(
                        "target.unknown-overlay",
                        f"{name} is none of this target's overlays",
                        expected=", ".join(self.overlays) or "no overlay is listed",
                        found=name,
                        details={"key": f"expect_applied[{number}]", "with": ["overlays"]},
                    )
                )
        for number, name in enumerate(self.untouched):
            if name not in self.roots:
                faults.append(
                    InputError(
                        "target.unknown-root",
                        f"{name} is none of this target's roots",
                        expected=", ".join(self.roots) or "no root is listed",
                        found=name,
                        details={"key": f"untouched[{number}]", "with": ["roots"]},
                    )
                )
        return faults

    def _sku_faults(self) -> list[InputError]:
        if self.sku is None:
            return []
        sku = SKUS.get(self.sku)
        if sku is not None and sku.platform in self.platforms:
            return []
        return [
            InputError(
                "target.sku-platform",
                f"{self.sku} hosts are {sku.platform}, which is none of the platforms"
                if sku
                else f"unknown SKU {self.sku}",
                expected=str(sku.platform) if sku else " | ".join(SKUS),
                found=", ".join(str(platform) for platform in self.platforms),
                hint="correct `sku` or `platforms`",
                details={"key": "platforms" if sku else "sku", "with": ["sku"]},
            )
        ]

    def _tag_faults(self) -> list[InputError]:
        """Renders the templates once with any content id, so that a bad one is found when it is written."""
        faults = []
        publish = self.publish
        if publish is not None:
            try:
                self.index_tag(_SOME_DIGEST)
            except InputError as error:
                error.details["key"] = "publish.tag"
                faults.append(error)
            if publish.arch_tag is not None:
                try:
                    tags = {self.arch_tag(_SOME_DIGEST, platform) for platform in self.platforms}
                    if len(tags) != len(self.platforms) or publish.arch_tag == publish.tag:
                        raise InputError(
                            "target.bad-template",
                            "two images would get one tag",
                            expected="{arch} in `arch_tag`",
                            found=publish.arch_tag,
                        )
                except InputError as error:
                    error.details["key"] = "publish.arch_tag"
                    faults.append(error)
        return faults

    def _env_faults(self) -> list[InputError]:
        return [
            InputError(
                "target.env-contradicts",
                f"{name} is required of the base, and set to another value in the image",
                expected=self.requires_env[name],
                found=value,
                details={"key": f"env.{name}", "with": ["requires"]},
            )
            for name, value in self.env.items()
            if self.requires_env.get(name, value) != value
        ]

    @property
    def hardware(self) -> Sku | None:
        return None if self.sku is None else SKUS[self.sku]

    @property
    def needs_image(self) -> bool:
        """False where there is no overlay: what `env` and `requires` say then belongs into the recipe."""
        return bool(self.overlays)

    def index_tag(self, content_id: Digest) -> str | None:
        """The published index's tag; None without `publish`."""
        if self.publish is None:
            return None
        return render_tag(self.publish.tag, TagValues.of(self.base, content_id))

    def arch_tag(self, content_id: Digest, platform: Platform) -> str | None:
        """The tag of one platform's manifest; None where no such tag is asked for."""
        if self.publish is None or self.publish.arch_tag is None:
            return None
        return render_tag(self.publish.arch_tag, TagValues.of(self.base, content_id, platform))


_TEMPLATE = Text(
    "a template of tags",
    pattern=TEMPLATE_PATTERN,
    form="{base.tag}, {base.short}, {content.short}, {arch} and the characters of tags",
    parse=lambda text: _template(text),
    limit=512,
)
_REPOSITORY = Text(
    "a repository", pattern=r"[^\s@\u0000-\u001f]+", form="HOST/PATH without tag", parse=parse_repository
)


def _template(text: str) -> str:
    """Names that do not exist are told apart from characters that do not fit."""
    render_tag(text, TagValues("t", "0000000", "0000000", "x"))
    return text


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """From the keys of the file to the fields of Target."""
    values.pop("schema")
    if "derived" in values:
        values["derived_record"] = values.pop("derived").get("record", "update")
    requires = values.pop("requires", {})
    for part in ("env", "host"):
        if part in requires:
            values[f"requires_{part}"] = requires[part]
    if "attestations" in values:
        values["attestations_repository"] = values.pop("attestations")["repository"]
    return values


TARGET = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format", required=True),
        "name": Field(name_of("a target"), "the folder's name", required=True),
        "description": Field(PROSE, "what this image is for"),
        "base": Field(
            Text(
                "a reference", pattern=r"[^\s\u0000-\u001f]+@sha256:[0-9a-f]{64}", form="REF@sha256:…", parse=parse_base
            ),
            "pinned base: HOST/REPO:TAG@sha256:…, oci:DIR@sha256:…; the tag is for people",
            required=True,
        ),
        "platforms": Field(List(PLATFORM, minimum=1, unique=True), "platforms that are built", required=True),
        "sku": Field(Text("a known accelerator", choices=tuple(SKUS)), "the hardware that it is for"),
        "overlays": Field(List(name_of("an overlay"), unique=True), "a series, applied in this order"),
        "roots": Field(
            Map(
                Text("the name of a root", pattern=r"[A-Za-z0-9_][A-Za-z0-9_-]*"),
                ByKey(
                    {
                        "python": Object(
                            {
                                "python": Field(
                                    Text("an import name", pattern=IMPORT_NAME),
                                    "",
                                    True,
                                )
                            },
                            "a root",
                            lambda values: RootSpec(**values),
                        ),
                        "path": Object(
                            {"path": Field(ABSOLUTE_PATH, "an absolute folder of the image", True)},
                            "a root",
                            lambda values: RootSpec(**values),
                        ),
                        "purelib": Object(
                            {"purelib": Field(Boolean("true", only=True), "the site folder", True)},
                            "a root",
                            lambda values: RootSpec(**values),
                        ),
                    },
                    "a root",
                ),
            ),
            "where the first component of an overlay's path lies in the image",
        ),
        "derived": Field(
            Object({"record": Field(Text("update or keep", choices=("update", "keep")), "RECORD files")}, "a mapping"),
            "what follows from the changes",
        ),
        "content": Field(
            Text("commit or cache", choices=("commit", "cache")), "whether base files that a build needs are committed"
        ),
        "env": Field(ENV, "environment defaults of the image; prefer the recipe"),
        "requires": Field(
            Object(
                {
                    "env": Field(ENV, "variables that the base must set so"),
                    "host": Field(
                        Map(
                            Text("the name of a property", pattern=r"[a-z][a-z0-9_]*"),
                            Text("a bound", pattern=r"(?:>=|<=|==|!=|>|<) ?[0-9A-Za-z][0-9A-Za-z.+_-]*", form='">=38"'),
                        ),
                        "properties of the machine",
                    ),
                },
                "requirements",
            ),
            "asserted of the base and the host, never written",
        ),
        "identity": Field(Map(DISTRIBUTION, VERSION), "versions that package metadata must report"),
        "untouched": Field(
            List(Text("the name of a root", pattern=r"[A-Za-z0-9_][A-Za-z0-9_-]*"), unique=True),
            "roots of which no file may be changed; verify proves it",
        ),
        "expect_applied": Field(List(name_of("an overlay"), unique=True), "overlays that the base may hold already"),
        "publish": Field(
            Object(
                {
                    "repository": Field(_REPOSITORY, "HOST/PATH", required=True),
                    "tag": Field(_TEMPLATE, "tag of the index", required=True),
                    "arch_tag": Field(_TEMPLATE, "tag of each platform's manifest; holds {arch}"),
                },
                "a mapping",
                lambda values: Publish(**values),
            ),
            "where the image goes",
        ),
        "attestations": Field(
            Object({"repository": Field(_REPOSITORY, "HOST/PATH", required=True)}, "a mapping"),
            "where signatures and attestations go, if not beside the image",
        ),
        "serve": Field(SERVE, "how the engine is started for checks"),
        "checks": Field(CHECKS, "what is checked"),
        "waiver": Field(Integer("a pull request's number", minimum=1), "number of the waiver"),
    },
    "a target",
)


def target_schema() -> dict[str, Any]:
    """The JSON Schema of target.yaml."""
    return json_schema(TARGET, name="target.json", title="imagebuild target")


def load_target(path: Path) -> Target:
    """The target that target.yaml at `path` describes.  Raises InputError, or SeveralErrors of them, with file and line:
    what `parse_yaml` and `validate` raise, and `target.*` of codes.yaml."""
    node = load_yaml(path)
    folder = Path(os.path.abspath(path.parent))
    target: Target = validate(node, replace(TARGET, build=lambda values: Target(folder=folder, **_fields(values))))
    return target
