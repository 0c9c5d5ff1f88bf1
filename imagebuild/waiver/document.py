"""waivers/NUMBER.yaml as a value (waivers.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from imagebuild.content.schema import Field, Integer, List, Map, Object, Text, json_schema, validate
from imagebuild.content.strict_yaml import load_yaml, no_entries
from imagebuild.errors import InputError
from imagebuild.overlay.vocabulary import DATE, LINE, PROSE, ROOT_PATH, URL, name_of

STATES = ("open", "draft", "merged", "closed")


@dataclass(frozen=True, slots=True)
class Why:
    """Why the unmodified image cannot run this: the author's `text`, and addresses or log excerpts as `evidence`."""

    text: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpstreamLink:
    """A pull request or issue upstream, and its state when the file was written (None: not said)."""

    url: str
    state: str | None = None


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """When the patch goes, what is deleted then (files and call sites), and the last day that the waiver is good
    for."""

    condition: str
    delete: tuple[str, ...] = ()
    expires: date | None = None


@dataclass(frozen=True, slots=True)
class Chinese:
    """The texts of the Chinese page; headings, code and addresses are the English page's."""

    title: str
    why: str
    removal_plan: str


@dataclass(frozen=True, slots=True)
class Waiver:
    """One waiver as written.  What is patched is never written here: it comes from the locks of `targets`; `notes` adds
    a remark to a path.  A file without upstream links is well formed; whether it passes is the gate's business."""

    number: int
    title: str
    targets: tuple[str, ...]
    why_unmodified_cannot_run: Why
    removal_plan: RemovalPlan
    configs: tuple[str, ...] = ()
    upstream: tuple[UpstreamLink, ...] = ()
    notes: Mapping[str, str] = field(default_factory=no_entries)
    zh: Chinese | None = None


WAIVER = Object(
    {
        "schema": Field(Integer("the format's number", only=1), "number of this format", required=True),
        "number": Field(
            Integer("a pull request's number", minimum=1), "the pull request that introduces the patch", required=True
        ),
        "title": Field(LINE, "the page's title", required=True),
        "targets": Field(
            List(name_of("a target"), minimum=1, unique=True), "targets whose changes it covers", required=True
        ),
        "configs": Field(List(LINE, unique=True), "configurations of the benchmark that it covers"),
        "patched": Field(Text("the word auto", choices=("auto",)), "auto: what is patched is read from the lock"),
        "why_unmodified_cannot_run": Field(
            Object(
                {
                    "text": Field(PROSE, "what fails without the patch", required=True),
                    "evidence": Field(List(PROSE), "addresses or log excerpts"),
                },
                "a reason",
                lambda values: Why(**values),
            ),
            "why the unmodified upstream image cannot run this",
            required=True,
        ),
        "upstream": Field(
            List(
                Object(
                    {
                        "url": Field(URL, "pull request or issue", required=True),
                        "state": Field(Text("a state", choices=STATES), "its state when this was written"),
                    },
                    "a link",
                    lambda values: UpstreamLink(**values),
                )
            ),
            "pull requests and issues upstream",
        ),
        "removal_plan": Field(
            Object(
                {
                    "condition": Field(PROSE, "what must happen", required=True),
                    "delete": Field(List(LINE, unique=True), "files and call sites that go then"),
                    "expires": Field(DATE, "last day that this waiver is good for"),
                },
                "a plan",
                lambda values: RemovalPlan(**values),
            ),
            "when and how the patch goes",
            required=True,
        ),
        "notes": Field(Map(ROOT_PATH, LINE), "path: remark in the table"),
        "zh": Field(
            Object(
                {
                    "title": Field(LINE, "title", required=True),
                    "why": Field(PROSE, "why_unmodified_cannot_run.text", required=True),
                    "removal_plan": Field(PROSE, "removal_plan.condition", required=True),
                },
                "the Chinese texts",
                lambda values: Chinese(**values),
            ),
            "the texts of the Chinese page",
        ),
    },
    "a waiver",
)


def waiver_schema() -> dict[str, Any]:
    """The JSON Schema of a waiver."""
    return json_schema(WAIVER, name="waiver.json", title="imagebuild waiver")


def load_waiver(path: Path) -> Waiver:
    """The waiver at `path`, whose name must be its number.  Raises InputError, or SeveralErrors of them, with file and
    line: what `parse_yaml` and `validate` raise, and `waiver.name-mismatch`."""

    def build(values: dict[str, Any]) -> Waiver:
        values.pop("schema")
        values.pop("patched", None)
        waiver = Waiver(**values)
        if path.name != f"{waiver.number}.yaml":
            raise InputError(
                "waiver.name-mismatch",
                "the file's name is not the waiver's number",
                expected=f"{waiver.number}.yaml",
                found=path.name,
                hint="the number is that of the pull request that introduces the patch",
                details={"key": "number"},
            )
        return waiver

    waiver: Waiver = validate(load_yaml(path), replace(WAIVER, build=build))
    return waiver
