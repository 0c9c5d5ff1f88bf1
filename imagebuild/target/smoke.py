"""What a target says of its smoke test: steps, deadlines, and the small engine that is started for it (checks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.schema import INVALID, Faults, Field, Integer, List, Map, Object, Schema, Text
from imagebuild.content.strict_yaml import ListNode, MapNode, Node, no_entries
from imagebuild.overlay.vocabulary import DURATION, ENV, LINE, LOCAL_PATH

SMOKE_STEPS = ("files", "python", "switch", "devices", "kernel", "engine", "parity", "overlay")


@dataclass(frozen=True, slots=True)
class TinyEngine:
    """The engine that the steps `engine` and `parity` start: random weights of the model that `config` (a model hub's
    config.json) describes, so that nothing is downloaded.

    `command` replaces what `serve.engine` is started with (`{model}`, `{port}`, `{python}` in it); `args` and `env` are
    added to it, `serve.args` are not: they are made for the real model.  `tokens` are generated for each prompt,
    `ready_deadline` is in seconds.
    """

    config: Mapping[str, Any] = field(default_factory=no_entries)
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=no_entries)
    tokens: int = 16
    ready_deadline: int = 600


@dataclass(frozen=True, slots=True)
class Smoke:
    """Which smoke steps run (all, in their order, by default).

    `deadline` of each step in seconds (each has its own default); `prompts` names a file of token ids for the parity
    step; `python` is the image's interpreter; `registry` is where switches are registered, `MODULE:ATTRIBUTE`;
    `expected_devices` how many accelerators there must be (None: one at least); `overlay_args` the arguments of
    overlays' own checks, by `OVERLAY/FILE`.
    """

    steps: tuple[str, ...] = SMOKE_STEPS
    deadline: int | None = None
    prompts: str | None = None
    python: str = "python3"
    registry: str | None = None
    expected_devices: int | None = None
    overlay_args: Mapping[str, tuple[str, ...]] = field(default_factory=no_entries)
    engine: TinyEngine | None = None


class _Json(Schema):
    """Any JSON value, as it stands in the YAML."""

    __slots__ = ()

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if isinstance(node, MapNode):
            return {name: self.read(value, f"{key}.{name}", faults) for name, (_, value) in node.entries.items()}
        if isinstance(node, ListNode):
            return [self.read(item, f"{key}[{number}]", faults) for number, item in enumerate(node.items)]
        value = node.value
        if isinstance(value, float) and value - value != 0:
            faults.add("schema.bad-value", node, key, "JSON knows no such number", found=node.text)
            return INVALID
        return value

    def json(self) -> dict[str, Any]:
        return {}


_ARGUMENT = Text("an argument", lines=True, empty=True, limit=20_000)
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"

_ENGINE = Object(
    {
        "config": Field(Map(LINE, _Json(), "a model's config.json"), "config.json of a tiny model", True),
        "command": Field(List(_ARGUMENT), "what starts the server; {model}, {port} and {python} are filled in"),
        "args": Field(List(_ARGUMENT), "arguments added to it"),
        "env": Field(ENV, "environment of the server"),
        "tokens": Field(Integer("a number of tokens", minimum=1, maximum=1024), "generated for each prompt"),
        "ready_deadline": Field(DURATION, "how long the server may take to answer"),
    },
    "the smoke test's engine",
    lambda values: TinyEngine(**values),
)

SMOKE = Object(
    {
        "steps": Field(List(Text("a smoke step", choices=SMOKE_STEPS), minimum=1, unique=True), "all if left out"),
        "deadline": Field(DURATION, "of each step"),
        "prompts": Field(LOCAL_PATH, "token ids of the parity step's prompts (JSON), below the workspace"),
        "python": Field(LINE, "the image's interpreter (default python3)"),
        "registry": Field(
            Text("a registry", pattern=rf"{_MODULE}:[A-Za-z_][A-Za-z0-9_]*", form="MODULE:ATTRIBUTE"),
            "where the engine registers its environment variables",
        ),
        "expected_devices": Field(
            Integer("a number of devices", minimum=1, maximum=1024), "accelerators of the machine"
        ),
        "overlay_args": Field(Map(LINE, List(_ARGUMENT)), "arguments of overlays' own checks, by OVERLAY/FILE"),
        "engine": Field(_ENGINE, "the tiny engine that the steps engine and parity start"),
    },
    "smoke checks",
    lambda values: Smoke(**values),
)
