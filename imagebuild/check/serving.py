"""From a target's serve definition to the programs that serve it (checks.md, Arms).

Each engine says the same things in words of its own: where to listen, which model in which revision, both parsers, the
method of speculation with its draft.  With Dynamo the frontend takes the parsers and the worker refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuild.check.runner import Mount
from imagebuild.errors import InputError
from imagebuild.target.serve import Serve, Speculative

OWN = frozenset(
    {
        "--host", "--port", "--http-host", "--http-port", "--served-model-name", "--model", "--model-path", "--tool-call-parser",
        "--reasoning-parser", "--speculative-config", "--speculative-algorithm",
    }
)  # fmt: skip
"""Flags that follow from the definition's other keys, so that they may not stand among its arguments as well."""
_SYNTHETIC = re.compile(
    r"rejection_sample_method\W+synthetic|synthetic_acceptance_\w+\W+?(?!\s*(?:null|None))[\[\s]*[0-9.]|--simulate-acc"
)
"""How engines are told to accept draft tokens by a rate, without looking at the model."""
_SYNTHETIC_VARIABLES = ("SGLANG_SIMULATE_ACC", "SIMULATE_ACC")
REPORTED_VARIABLES = (*_SYNTHETIC_VARIABLES,)
"""Prefixes of variables that the launcher reports of the running server."""


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The programs that serve together in one container, in the order of their start, their environment, and where the
    model is seen.  `metrics_port` is where the engine's counters are read if not beside the API."""

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    served_model: str | None = None
    metrics_port: int | None = None


def serving_plan(
    serve: Serve, port: int, *, host: str = "127.0.0.1", folders: Mapping[str, str] | None = None
) -> ServingPlan:
    """The programs for a definition, listening on `host` and `port`.

    `folders` says where models lie on the machine that serves, by id (a site's `models`); else the definition's own path
    holds, else the hub's id in its revision.  Raises InputError `check.serve-argument` for an argument that another key
    stands for, and `check.no-model` where an engine is not told what to serve.
    """
    folders = folders or {}
    for word in serve.args:
        if word.partition("=")[0] in OWN and serve.engine != "openai":
            raise InputError(
                "check.serve-argument",
                f"{word.partition('=')[0]} stands among the server's arguments, and follows from another key as well",
                expected="host and port from the check; model, parsers and speculation from their own keys of `serve`",
                found=word,
            )
    place = folders.get(serve.model.id, serve.model.path) if serve.model is not None else None
    name = serve.model.id if serve.model is not None else None
    draft = folders.get(serve.speculative.draft or "") if serve.speculative is not None else None
    mounts = tuple(_mount(path) for path in (place, draft) if path is not None)
    if serve.engine == "openai":
        filled = {"{port}": str(port), "{host}": host, "{model}": place or name or ""}
        command = tuple(_filled(word, filled) for word in (*serve.command, *serve.args))
        return ServingPlan((command,), serve.env, mounts, name)
    if serve.model is None:
        raise InputError(
            "check.no-model", "the definition of the server names no model", hint="declare serve.model in the target"
        )
    model = _Model(place or serve.model.id, serve.model.id, None if place else serve.model.revision)
    spoken = _Speculation(serve.speculative, draft) if serve.speculative is not None else None
    if serve.engine == "vllm":
        words = [
            "python3",
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            model.place,
            "--host",
            host,
            "--port",
            str(port),
        ]
        words += [*model.named(), *_vllm_parsers(serve), *(spoken.vllm() if spoken else ()), *serve.args]
        return ServingPlan((tuple(words),), serve.env, mounts, name)
    if serve.engine == "sglang":
        words = [
            "python3",
            "-m",
            "sglang.launch_server",
            "--model-path",
            model.place,
            "--host",
            host,
            "--port",
            str(port),
        ]
        words += [
            *model.named(),
            "--enable-metrics",
            *_parsers(serve),
            *(spoken.sglang() if spoken else ()),
            *serve.args,
        ]
        return ServingPlan((tuple(words),), serve.env, mounts, name)
    # frontend and worker of one machine find each other through a folder, so that no other service is needed
    found = ("--discovery-backend", "file")
    front = ["python3", "-m", "dynamo.frontend", "--http-host", host, "--http-port", str(port), *found]
    if serve.tool_parser is not None or serve.reasoning_parser is not None:
        front += ["--dyn-chat-processor", "vllm", *_vllm_parsers(serve)]
    work = ["python3", "-m", "dynamo.vllm", "--model", model.place, *model.named(), *found]
    work += [*(spoken.vllm() if spoken else ()), *serve.args]
    shared = f"/dev/shm/imagebuild-dynamo-{port}"  # noqa: S108 (inside a container of its own)
    environment = {"DYN_FILE_KV": shared, "DYN_SYSTEM_PORT": str(port + 1), **serve.env}
    return ServingPlan((tuple(front), tuple(work)), environment, mounts, name, port + 1)


def synthetic_acceptance(serve: Serve, environment: Mapping[str, str]) -> str | None:
    """What says that draft tokens are accepted by a rate that somebody chose; None where acceptance is real.

    `environment` is that of the running server, the image's own variables included.
    """
    if serve.speculative is not None and serve.speculative.acceptance != "real":
        return f"serve.speculative.acceptance is {serve.speculative.acceptance}"
    found = _SYNTHETIC.search(" ".join((*serve.args, *serve.command)))
    if found is not None:
        return f"the server's arguments say {found.group()}"
    for name, value in environment.items():
        if name.startswith(_SYNTHETIC_VARIABLES) and value.strip() not in ("", "0", "-1", "false", "False"):
            return f"the server's environment says {name}={value[:80]}"
    return None


@dataclass(frozen=True, slots=True)
class _Model:
    place: str
    name: str
    revision: str | None

    def named(self) -> Iterator[str]:
        yield from ("--served-model-name", self.name)
        if self.revision is not None:
            yield from ("--revision", self.revision)


@dataclass(frozen=True, slots=True)
class _Speculation:
    """`folder` is where the draft lies, None for the hub."""

    said: Speculative
    folder: str | None

    @property
    def draft(self) -> str | None:
        return self.folder or self.said.draft

    @property
    def revision(self) -> str | None:
        return None if self.folder else self.said.revision

    def vllm(self) -> Iterator[str]:
        keys = ("method", "model", "revision", "num_speculative_tokens")
        values = (self.said.method, self.draft, self.revision, self.said.tokens)
        config = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        yield from ("--speculative-config", json.dumps(config))

    def sglang(self) -> Iterator[str]:
        for flag, value in (
            ("--speculative-algorithm", self.said.method.upper()),
            ("--speculative-draft-model-path", self.draft),
            ("--speculative-draft-model-revision", self.revision),
            ("--speculative-num-draft-tokens", self.said.tokens),
        ):
            if value is not None:
                yield from (flag, str(value))


def _mount(place: str) -> Mount:
    if not place.startswith("/"):
        raise InputError(
            "check.no-model",
            "a model's folder is an absolute path of the machine that serves",
            expected="/…, or no path, so that the hub's id is served",
            found=place,
        )
    return Mount(Path(place), place)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _parsers(serve: Serve) -> Iterator[str]:
    if serve.tool_parser is not None:
        yield from ("--tool-call-parser", serve.tool_parser)
    if serve.reasoning_parser is not None:
        yield from ("--reasoning-parser", serve.reasoning_parser)


def _vllm_parsers(serve: Serve) -> Iterator[str]:
    if serve.tool_parser is not None:
        yield "--enable-auto-tool-choice"
    yield from _parsers(serve)
