"""The recording proxy between an evaluation program and a served model.

lm-eval forgets `finish_reason`, dies with the first request that fails for good, and loses what it has when it is
stopped.  Through the proxy every answer is on the disk as it comes and is given again when asked again, a request that
fails gets an empty answer so that the others are not lost (and is counted, which voids the run), and the key stays on
this side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

from imagebuild.check.answers import Answer, AnswerLog, read_answer, request_id
from imagebuild.check.endpoint import BODY_LIMIT, Client
from imagebuild.errors import ImagebuildError, clean
from imagebuild.host.loopback import LoopbackHandler, LoopbackServer

PATHS = ("/v1/chat/completions", "/v1/completions")


class EvaluationProxy:
    """Serves on loopback while the block lasts; `url` is where the evaluation program is sent to.

    `failure` is what the proxy itself could not do (a full disk): the run is over then, and what was kept is whole.
    """

    def __init__(self, client: Client, log: AnswerLog, on_answer: Callable[[Answer], None] | None = None) -> None:
        self.client = client
        self.log = log
        self.failure: ImagebuildError | None = None
        self._on_answer = on_answer
        self._server = _Server(self)
        self.url = f"http://{self._server.address}"

    def __enter__(self) -> EvaluationProxy:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    def answer(self, path: str, document: dict[str, Any]) -> Answer:
        """The answer to a request: a kept one, or the server's, which is kept."""
        request = request_id(path, document)
        kept = self.log.find(request)
        if kept is not None:
            return kept
        body = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
        reply = self.client.post(path, body, lambda data: _completion(request, data) is not None)
        if reply.status == 200 and reply.error is None:
            text = self.log.scrub(reply.body.decode("utf-8", "replace"))
            found = read_answer(request, json.loads(text), reply.attempts, reply.seconds)
            assert found is not None
        else:
            error = self.log.scrub(reply.error or f"status {reply.status}")
            found = Answer(request, None, reply.attempts, reply.seconds, error=error)
        self.log.append(found)
        if self._on_answer is not None:
            self._on_answer(found)
        return found


def _completion(request: str, data: bytes) -> Answer | None:
    try:
        return read_answer(request, json.loads(data), 0, 0.0)
    except (ValueError, RecursionError):
        return None


def _stub(path: str, model: object) -> dict[str, Any]:
    """An empty answer in place of one that never came."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "error"}
    if path == PATHS[0]:
        choice["message"] = {"role": "assistant", "content": ""}
    else:
        choice["text"] = ""
    return {"object": "error", "model": model, "choices": [choice]}


class _Server(LoopbackServer):
    def __init__(self, proxy: EvaluationProxy) -> None:
        self.proxy = proxy
        super().__init__(_Handler, backlog=1024)


class _Handler(LoopbackHandler):
    server: _Server

    def do_POST(self) -> None:
        proxy = self.server.proxy
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= BODY_LIMIT:
                raise ValueError(f"a body of {length} bytes")
            document = json.loads(self.rfile.read(length))
            if self.path not in PATHS or not isinstance(document, dict):
                raise ValueError(f"a request to {self.path}")
        except (ValueError, RecursionError) as error:
            self.close_connection = True
            self._send(400, {"error": {"message": f"not understood: {clean(str(error), 200)}"}})
            return
        if proxy.failure is None:
            try:
                answer = proxy.answer(self.path, document)
            except ImagebuildError as error:
                proxy.failure = error
            else:
                self._send(200, answer.body if answer.body is not None else _stub(self.path, document.get("model")))
                return
        self._send(507, {"error": {"message": str(proxy.failure)}})

    def _send(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
