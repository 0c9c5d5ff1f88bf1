"""An engine that is started from an image for one run: until it answers, what it says of itself, and stopped afterwards.

The server's programs are started by `inside/serve_arm.py`, in the very container that serves: it prints the content ids and
the hashes of the patched files that it finds there, so that what was served is known from inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from imagebuild.check import inside
from imagebuild.check.endpoint import Client, Endpoint
from imagebuild.check.runner import CheckedImage, Devices, Job, Outcome, Runner, Server
from imagebuild.check.serving import REPORTED_VARIABLES, ServingPlan
from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import UnavailableError, clean
from imagebuild.host import clock

MARK = "imagebuild-launch: "
PAUSES = (0.05, 1.0)
"""Seconds between two looks at a server that is not up yet: the first, and what they grow to."""
REPORT_TAIL = 1 << 20
_START = (
    "import os, runpy; runpy.run_path(os.path.join(os.environ['IMAGEBUILD_IN'], 'serve_arm.py'), run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be found inside the image that serves: `content_id` (None: an image without any of ours), and the sha256
    or `absent` of `files`.  `parents` may be found beside it, where the base was built by us too; `provenance` are paths
    where the image's own account may lie."""

    content_id: Digest | None
    parents: tuple[Digest, ...] = ()
    files: Mapping[str, str] = field(default_factory=no_entries)
    provenance: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How an engine is started: `ready_deadline` until it answers, `deadline` of its whole life, both in seconds;
    `switches` are laid over the plan's environment, `unset` taken out of it."""

    image: CheckedImage
    plan: ServingPlan
    port: int
    expected: Expected
    ready_deadline: float
    deadline: float
    switches: Mapping[str, str] = field(default_factory=no_entries)
    unset: tuple[str, ...] = ()
    devices: Devices | None = None
    name: str = "gsm8k"

    def job(self) -> Job:
        launch = {
            "commands": self.plan.commands,
            "files": dict(self.expected.files),
            "provenance": self.expected.provenance,
            "environment": [*REPORTED_VARIABLES, *self.switches, *self.unset],
        }
        return Job(
            ("python3", "-c", _START),
            self.deadline,
            {**self.plan.environment, **self.switches},
            self.unset,
            {
                "serve_arm.py": inside.source("serve_arm"),
                "devices.py": inside.source("devices"),
                "serve_arm.json": json.dumps(launch).encode(),
            },
            self.plan.mounts,
            self.devices,
            network=True,
            shared_memory=16 << 30,
            name=self.name,
        )


class EngineServer:
    """Started and ready inside the block, stopped after it, whatever happens.

    Entering raises UnavailableError `check.engine-ended` where the server ends before it answers, `check.engine-not-ready`
    at its deadline, both with the end of its log, and what the runner raises.  `report` is what it said from inside, None
    where it said nothing; `waiting` is called with the seconds waited so far.
    """

    def __init__(
        self,
        runner: Runner,
        start: EngineStart,
        *,
        waiting: Callable[[float], None] = lambda seconds: None,
        monotonic: clock.Clock = clock.monotonic,
        sleep: clock.Sleep = clock.sleep,
    ) -> None:
        self.start = start
        self.report: Mapping[str, Any] | None = None
        self.ready_seconds = 0.0
        self._runner = runner
        self._waiting = waiting
        self._monotonic = monotonic
        self._sleep = sleep
        self._server: Server | None = None

    def __enter__(self) -> EngineServer:
        self._server = self._runner.serve(self.start.image, self.start.job(), self.start.port)
        try:
            self._wait(self._server)
        except BaseException:
            self._server.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> Endpoint:
        assert self._server is not None
        host, port = self._server.address
        return Endpoint("http", f"{host}:{port}", "")

    def client(self) -> Client:
        """Asks the server; its worker's counters too."""
        assert self._server is not None
        port = self.start.plan.metrics_port
        metrics = Endpoint("http", f"{self._server.address[0]}:{port}", "") if port is not None else None
        return Client(self.endpoint, sleep=self._sleep, metrics=metrics)

    def ended(self) -> Outcome | None:
        """What became of it, where it ended by itself."""
        return self._server.ended() if self._server is not None else None

    def stop(self) -> Outcome:
        """Stops it; its outcome holds what it printed."""
        assert self._server is not None
        outcome = self._server.stop()
        if self.report is None:
            self.report = find_report(outcome.stdout.decode("utf-8", "replace"))
        return outcome

    def _wait(self, server: Server) -> None:
        began, pause = self._monotonic(), PAUSES[0]
        with Client(self.endpoint, timeout=30.0) as client:
            while True:
                self.ready_seconds = self._monotonic() - began
                ended = server.ended()
                if self.report is None:
                    self.report = find_report(server.log_tail(REPORT_TAIL))
                if ended is not None:
                    raise UnavailableError(
                        "check.engine-ended",
                        f"the server ended before it answered ({_end(ended)}): {_tail(ended)}",
                        hint="the end of its log says why; the whole of it is what the command prints",
                    )
                if self._answers(client):
                    return
                if self.ready_seconds >= self.start.ready_deadline:
                    raise UnavailableError(
                        "check.engine-not-ready",
                        f"the server did not answer within {self.start.ready_deadline:g} s: "
                        f"{clean(server.log_tail(3000), 4000)}",
                        hint="give it more time with serve.ready_deadline, or see in its log what holds it up",
                    )
                self._waiting(self.ready_seconds)
                self._sleep(pause)
                pause = min(1.5 * pause, PAUSES[1])

    def _answers(self, client: Client) -> bool:
        """Health first, which small servers do not have (404); then a model must be listed: frontends are up before their
        workers."""
        if client.status("/health") not in (200, 404):
            return False
        try:
            listed = client.get("/v1/models")
        except UnavailableError:
            return False
        return isinstance(listed, dict) and bool(listed.get("data"))


def find_report(log: str) -> Mapping[str, Any] | None:
    """What the launcher said, once its line is whole."""
    for line in log.splitlines(keepends=True):
        if line.startswith(MARK) and line.endswith("\n"):
            try:
                found = json.loads(line[len(MARK) :])
            except ValueError:
                continue
            return found if isinstance(found, dict) else None
    return None


def identity_faults(report: Mapping[str, Any] | None, expected: Expected) -> Iterator[str]:
    """Why what serves is not the image that was meant, in words; nothing where it is."""
    if report is None:
        yield "nothing was said from inside the server's container, so that what was served is not known"
        return
    found = [str(one) for one in report.get("content_ids") or ()]
    wanted = [] if expected.content_id is None else [str(expected.content_id)]
    if not set(wanted) <= set(found) <= {*wanted, *map(str, expected.parents)}:
        yield (
            f"a server of another image answers: inside it stands {_ids(found)}, expected {_ids(wanted)}"
            if found
            else f"inside the image nothing says its content id, expected {_ids(wanted)}"
        )
    count = int(report.get("wrong_count") or 0)
    if count:
        path, want, have = (str(part) for part in (report.get("wrong") or [["?", "?", "?"]])[0])
        yield (
            f"{count} of {len(expected.files)} files inside the server's container are other ones: {path} is {have[:19]}, "
            f"expected {want[:19]}"
        )


def _ids(found: list[str]) -> str:
    return ", ".join(found) if found else "no content id of ours"


def _end(outcome: Outcome) -> str:
    said = f"exit code {outcome.code}" if outcome.code is not None else str(outcome.end)
    return f"{said}, {outcome.detail}" if outcome.detail else said


def _tail(outcome: Outcome) -> str:
    text = (outcome.stdout[-3000:] + outcome.stderr[-3000:]).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if not line.startswith(MARK)]
    return clean("\n".join(lines)[-1600:].strip() or "it printed nothing", 1700)
