"""How an engine is started for checks, and which checks a target asks for (formats.md, serve and checks; checks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from imagebuild.content.schema import Field, Integer, List, Map, Number, Object, Text
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import InputError
from imagebuild.overlay.vocabulary import DURATION, ENV, LINE
from imagebuild.target.smoke import SMOKE
from imagebuild.target.smoke import SMOKE_STEPS as SMOKE_STEPS
from imagebuild.target.smoke import Smoke as Smoke

ENGINES = ("vllm", "dynamo-vllm", "sglang", "openai")
ARMS = ("base", "off", "on")


@dataclass(frozen=True, slots=True)
class Model:
    """`id` and `revision` as the model's hub names them; `path` where it lies on the machine that serves."""

    id: str
    revision: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Speculative:
    """Speculative decoding: draft model, its revision, draft `tokens` a step; `acceptance` is real in a run that
    counts."""

    method: str
    draft: str | None = None
    revision: str | None = None
    tokens: int | None = None
    acceptance: str = "real"


@dataclass(frozen=True, slots=True)
class Serve:
    """One full definition of a server: engine, arguments, environment, model, parsers; `ready_deadline` in seconds.

    With the engine `openai` it is `command` that starts a server of one's own with an OpenAI-compatible API: `{port}` in
    it is where the server has to listen, `{model}` where the model lies.  What engines are told of parsers and of
    speculation, such a command is told by its author.
    """

    engine: str
    args: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=no_entries)
    model: Model | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    speculative: Speculative | None = None
    ready_deadline: int = 1800

    def __post_init__(self) -> None:
        if bool(self.command) != (self.engine == "openai"):
            raise InputError(
                "target.serve-command",
                "a command of one's own belongs to the engine `openai`, and that engine needs one",
                expected="engine: openai with command, or another engine without",
                found=f"engine: {self.engine} with{'' if self.command else 'out'} command",
                details={"key": "engine"},
            )
        if self.engine == "openai" and (self.tool_parser or self.reasoning_parser or self.speculative):
            raise InputError(
                "target.serve-command",
                "parsers and speculation of a command of one's own stand in the command",
                details={"key": "engine"},
            )


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """The accuracy gate: both filters reach `threshold` (a fraction; `thresholds` says another one for a model by its
    id), and the paired difference stays within `margin` (points).  A run has as many requests in flight as
    `concurrency` says, one number, unless it is told otherwise; more than `max_null` null or empty answers void it, and so do more than
    `max_truncated` that were cut off at the longest length (one in a hundred, if nothing is said)."""

    threshold: Decimal = Decimal("0.90")
    thresholds: Mapping[str, Decimal] = field(default_factory=no_entries)
    margin: Decimal = Decimal("1.0")
    arms: tuple[str, ...] = ARMS
    concurrency: tuple[int, ...] = (64,)
    max_null: int = 0
    max_truncated: int = 13

    def threshold_of(self, *models: str | None) -> Decimal:
        """The threshold of the first of these model ids that the table names, else the common one."""
        return next((self.thresholds[model] for model in models if model and model in self.thresholds), self.threshold)


@dataclass(frozen=True, slots=True)
class Checks:
    """What a target asks to be checked; None: not asked for."""

    smoke: Smoke | None = None
    gsm8k: Gsm8k | None = None

    def __post_init__(self) -> None:
        if self.gsm8k is not None and "base" not in self.gsm8k.arms:
            raise InputError(
                "target.no-base-arm",
                "the accuracy verdict compares with the unpatched base",
                expected="the arm `base` among them",
                found=", ".join(self.gsm8k.arms),
                details={"key": "gsm8k.arms"},
            )
        if self.gsm8k is not None and len(self.gsm8k.concurrency) != 1:
            raise InputError(
                "target.several-concurrencies",
                "a gate judges runs of one concurrency, so that a second number would never be run",
                expected="one number",
                found=", ".join(map(str, self.gsm8k.concurrency)),
                hint="keep one; run and judge another with `gsm8k run --concurrency N --output DIR` and "
                "`gsm8k gate --runs DIR`",
                details={"key": "gsm8k.concurrency"},
            )


SERVE = Object(
    {
        "engine": Field(
            Text("an engine", choices=ENGINES),
            "vllm, dynamo-vllm (its frontend takes the parsers), sglang, or openai for a command of one's own",
            True,
        ),
        "args": Field(
            List(Text("an argument", lines=True, empty=True, limit=20_000)), "arguments of the server, one an item"
        ),
        "command": Field(
            List(Text("a word", lines=True, empty=True, limit=20_000), minimum=1),
            "of the engine `openai`: starts a server with an OpenAI-compatible API; {port} and {model} are filled in",
        ),
        "env": Field(ENV, "environment of the server"),
        "model": Field(
            Object(
                {
                    "id": Field(LINE, "name on the model's hub", True),
                    "revision": Field(LINE, "commit on the model's hub"),
                    "path": Field(LINE, "where it lies; a site may say otherwise"),
                },
                "a model",
                lambda values: Model(**values),
            ),
            "the model that is served",
        ),
        "tool_parser": Field(LINE, "the engine's name of the tool-call parser"),
        "reasoning_parser": Field(LINE, "the engine's name of the reasoning parser"),
        "speculative": Field(
            Object(
                {
                    "method": Field(LINE, "the engine's name of the method", True),
                    "draft": Field(LINE, "the draft model"),
                    "revision": Field(LINE, "the draft's commit"),
                    "tokens": Field(Integer("a number of tokens", minimum=1, maximum=64), "draft tokens a step"),
                    "acceptance": Field(
                        Text("a kind of acceptance", choices=("real", "synthetic")),
                        "a run with synthetic acceptance is invalid",
                    ),
                },
                "speculative decoding",
                lambda values: Speculative(**values),
            ),
            "speculative decoding",
        ),
        "ready_deadline": Field(DURATION, "how long the server may take to answer"),
    },
    "a server",
    lambda values: Serve(**values),
)

CHECKS = Object(
    {
        "smoke": Field(SMOKE, "smoke checks, cheapest first"),
        "gsm8k": Field(
            Object(
                {
                    "threshold": Field(Number("a fraction"), "what both filters must reach"),
                    "thresholds": Field(
                        Map(LINE, Number("a fraction")), "model id: what both filters must reach for it"
                    ),
                    "margin": Field(Number("a number of points", maximum=100), "margin of non-inferiority, in points"),
                    "arms": Field(List(Text("an arm", choices=ARMS), minimum=1, unique=True), "what is run"),
                    "concurrency": Field(
                        List(Integer("a number of requests", minimum=1, maximum=65_536), minimum=1, unique=True),
                        "requests in flight, one number in a list; the run's option may name another",
                    ),
                    "max_null": Field(
                        Integer("a count", maximum=1319), "null or empty answers above which a run is void"
                    ),
                    "max_truncated": Field(
                        Integer("a count", maximum=1319),
                        "answers cut off at the longest length above which a run is void (13)",
                    ),
                },
                "the accuracy gate",
                lambda values: Gsm8k(**values),
            ),
            "the accuracy gate",
        ),
    },
    "checks",
    lambda values: Checks(**values),
)
