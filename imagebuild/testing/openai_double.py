"""A synthetic OpenAI-compatible server with a declared pattern of errors and faults, for tests of accuracy runs.

It knows the right answers and says for itself which questions it gets wrong, so a test knows the verdict beforehand.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from imagebuild.host import clock
from imagebuild.host.loopback import LoopbackHandler, LoopbackServer

FAULTS = (
    "429",
    "500",
    "null",
    "empty",
    "truncated",
    "reasoning",
    "reasoning_content",
    "drop",
    "garbage",
    "echo-key",
    "other-model",
)


@dataclass(frozen=True, slots=True)
class Script:
    """What the double does.  `questions` are pairs of question and right number, in order; `wrong` the questions that it
    gets wrong; `faults` what happens to a question, one word of FAULTS a request (the last one stays with `stuck`);
    after `dies_after` completions every connection is dropped; `delay` seconds before each answer; `counter` is a metric
    that grows with each answer."""

    questions: Sequence[tuple[str, str]]
    wrong: Iterable[int] = ()
    faults: Mapping[int, Sequence[str]] = field(default_factory=dict)
    stuck: frozenset[int] = frozenset()
    dies_after: int | None = None
    delay: float = 0.0
    counter: str | None = None
    model: str = "double"
    version: str = "0.0.0+double"

    def __post_init__(self) -> None:
        unknown = {word for words in self.faults.values() for word in words} - set(FAULTS)
        if unknown:
            raise ValueError(f"unknown faults: {', '.join(sorted(unknown))}")


class OpenAIDouble:
    """Serves a script on `url` (loopback) while the block lasts.  `asked` lists the questions of all requests."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.script = script
        self.wrong = frozenset(script.wrong)
        self.asked: list[int] = []
        self.keys: set[str] = set()
        self.answered = 0
        self._left = {number: list(words) for number, words in script.faults.items()}
        self._lock = threading.Lock()
        self._server = _Server(self, port)
        self.url = f"http://{self._server.address}"

    def __enter__(self) -> OpenAIDouble:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._server.hang_up()

    def find(self, prompt: str) -> int | None:
        """The number of the question that stands last in a prompt."""
        places = [(prompt.rfind(question), number) for number, (question, _) in enumerate(self.script.questions)]
        place, number = max(places, default=(-1, 0))
        return number if place >= 0 else None

    @property
    def dead(self) -> bool:
        """True once it has died: it then drops whoever calls."""
        return self.script.dies_after is not None and self.answered >= self.script.dies_after

    def fault(self, number: int) -> str | None:
        """What happens to this request, None for nothing."""
        with self._lock:
            self.asked.append(number)
            if self.dead:
                return "drop"
            words = self._left.get(number)
            if words:
                return words[0] if len(words) == 1 and number in self.script.stuck else words.pop(0)
            return None

    def count(self) -> None:
        with self._lock:
            self.answered += 1

    def text(self, number: int) -> str:
        """The right answer, or one that is off by one."""
        right = self.script.questions[number][1]
        said = str(int(right.replace(",", "")) + 1) if number in self.wrong else right
        return f"Step by step.\n#### {said}"


class _Server(LoopbackServer):
    def __init__(self, double: OpenAIDouble, port: int) -> None:
        self.double = double
        self._open: set[socket.socket] = set()
        super().__init__(_Handler, backlog=1024, port=port)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Cuts connections that clients keep open: who is gone answers nobody."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(LoopbackHandler):
    server: _Server

    def do_GET(self) -> None:
        script = self.server.double.script
        if self.server.double.dead:
            self._drop()
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": script.model, "object": "model"}]})
        elif self.path == "/version":
            self._send(200, {"version": script.version})
        elif self.path == "/metrics" and script.counter is not None:
            text = f'# TYPE x counter\n{script.counter}{{engine="0"}} {self.server.double.answered}\n'
            self._send_bytes(200, text.encode(), "text/plain")
        else:
            self._send(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        double = self.server.double
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        double.keys.add(key)
        if document.get("model") != double.script.model:
            self._send(404, {"error": {"message": f"The model `{document.get('model')}` does not exist."}})
            return
        chat = self.path == "/v1/chat/completions"
        prompt = document["messages"][-1]["content"] if chat else document["prompt"]
        if isinstance(prompt, list):
            prompt = "".join(part if isinstance(part, str) else part.get("text", "") for part in prompt)
        number = double.find(prompt)
        if number is None:
            self._send(400, {"error": {"message": "not a question that was declared"}})
            return
        fault = double.fault(number)
        if double.script.delay:
            clock.sleep(double.script.delay)
        self._act(fault, double.text(number), chat, key)

    def _act(self, fault: str | None, text: str, chat: bool, key: str) -> None:
        if fault == "drop":
            self._drop()
            return
        if fault in ("429", "500"):
            self._send(int(fault), {"error": {"message": "busy"}}, {"Retry-After": "1"} if fault == "429" else {})
            return
        if fault == "garbage":
            self._send(200, {"unexpected": True})
            return
        said: str | None = {"null": None, "empty": "", "truncated": text[:8]}.get(fault or "", text)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if fault in ("reasoning", "reasoning_content"):
            message = {"role": "assistant", "content": None, fault: text}
        if fault == "echo-key":
            message["content"] = f"{text} {key}"
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if fault == "truncated" else "stop"}
        choice.update({"message": message} if chat else {"text": said})
        self.server.double.count()
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        model = "another" if fault == "other-model" else self.server.double.script.model
        self._send(200, {"id": "x", "model": model, "choices": [choice], "usage": usage})

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send_bytes(status, json.dumps(document).encode(), "application/json", headers)

    def _send_bytes(self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
