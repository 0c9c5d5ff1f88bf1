"""Every answer of a served model, kept as it comes: one JSON line a request, so that an interrupted run goes on with the
answers it has.

A request is known by the sha256 of its path and its JSON in canonical order.  Keys never reach the file.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from imagebuild.check.results import LINE_LIMIT, Counts
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError

MASK = "***"
_SHORTEST_KEY = 6
"""Shorter words are no keys, and masking them would eat the answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request gave.  `body` is the server's document (None where it was never answered: `error` says why);
    `attempts` counts requests sent, `seconds` the last one's time.  `from_reasoning`: there was no content, and the
    reasoning stands in its place."""

    request: str
    body: Mapping[str, Any] | None
    attempts: int
    seconds: float
    null: bool = False
    empty: bool = False
    truncated: bool = False
    from_reasoning: bool = False
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "attempts": self.attempts,
            "seconds": round(self.seconds, 6),
            "null": self.null,
            "empty": self.empty,
            "truncated": self.truncated,
            "from_reasoning": self.from_reasoning,
            "error": self.error,
            "body": self.body,
        }


def request_id(path: str, document: Mapping[str, Any]) -> str:
    """The name under which a request's answer is kept."""
    text = json.dumps([path, document], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def read_answer(request: str, body: Any, attempts: int, seconds: float) -> Answer | None:
    """An OpenAI chat or text completion; None where the document is neither.

    Content that is null or blank is replaced by `reasoning_content` or `reasoning` where there is one: parsers of
    reasoning leave the whole answer there when the model never ends its thought.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    truncated = choice.get("finish_reason") == "length"
    message = choice.get("message")
    if not isinstance(message, dict):
        if "text" not in choice or not isinstance(choice["text"], (str, type(None))):
            return None
        text = choice["text"]
        kept = body if text is not None else _with_choice(body, {**choice, "text": ""})
        return Answer(request, kept, attempts, seconds, text is None, text is not None and not text.strip(), truncated)
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return Answer(request, body, attempts, seconds, truncated=truncated)
    reasoning = next(
        (
            text
            for key in ("reasoning_content", "reasoning")
            if isinstance(text := message.get(key), str) and text.strip()
        ),
        None,
    )
    if reasoning is not None:
        changed = _with_choice(body, {**choice, "message": {**message, "content": reasoning}})
        return Answer(request, changed, attempts, seconds, truncated=truncated, from_reasoning=True)
    null = not isinstance(content, str)
    kept = _with_choice(body, {**choice, "message": {**message, "content": ""}}) if null else body
    return Answer(request, kept, attempts, seconds, null, not null, truncated)


def _with_choice(body: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    return {**body, "choices": [choice, *body["choices"][1:]]}


class AnswerLog:
    """The file of answers.  Safe to use from several threads; an answer that was appended is on the disk."""

    def __init__(self, path: Path, secrets: tuple[str, ...] = ()) -> None:
        """Reads what an earlier run left (a torn last line is cut off) and opens the file to append.

        Raises InputError `check.bad-answers` and UnavailableError of the disk.
        """
        self.path = path
        self._secrets = tuple(word for word in secrets if len(word) >= _SHORTEST_KEY)
        self._lock = threading.Lock()
        self._answers: dict[str, Answer] = {}
        with io_faults(path, "writing"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._whole = self._read() if path.exists() else 0
            # unbuffered: what could not be written must not be tried again when the file is closed
            self._stream: FileIO = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__
            self._stream.truncate(self._whole)
        self.resumed = sum(answer.error is None for answer in self._answers.values())

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def _read(self) -> int:
        whole, number = 0, 0
        with open(self.path, "rb") as stream:
            while line := stream.readline(LINE_LIMIT + 1):
                number += 1
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                    answer = Answer(
                        row["request"], row["body"], row["attempts"], row["seconds"], row["null"], row["empty"],
                        row["truncated"], row["from_reasoning"], row["error"],
                    )  # fmt: skip
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise InputError(
                        "check.bad-answers",
                        f"{self.path}:{number}: not a recorded answer",
                        hint="move the file away to begin the run anew",
                        details={"file": str(self.path), "line": number},
                    ) from error
                self._answers[answer.request] = answer
                whole += len(line)
        return whole

    def find(self, request: str) -> Answer | None:
        """The answer that is kept; a request that failed is asked again."""
        with self._lock:
            answer = self._answers.get(request)
        return answer if answer is not None and answer.error is None else None

    def append(self, answer: Answer) -> None:
        """Keeps an answer, on the disk when this returns.  Raises UnavailableError `content.disk-full`, `content.io`."""
        line = self.scrub(json.dumps(answer.to_json(), ensure_ascii=False)).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock, io_faults(self.path, "writing"):
            try:
                written = 0
                while written < len(line):
                    written += self._stream.write(line[written:])
                os.fsync(self._stream.fileno())
            except OSError:
                # another thread's answer may still fit, and must not stand behind half a line
                self._stream.truncate(self._whole)
                raise
            self._whole += len(line)
            self._answers[answer.request] = answer

    def scrub(self, text: str) -> str:
        """The text without keys."""
        for word in self._secrets:
            text = text.replace(word, MASK)
        return text

    def answers(self) -> tuple[Answer, ...]:
        with self._lock:
            return tuple(self._answers.values())

    def counts(self) -> Counts:
        """Null, empty, truncated and failed answers, each request once."""
        rows = self.answers()
        good = [row for row in rows if row.error is None]
        return Counts(
            sum(row.null for row in good),
            sum(row.empty for row in good),
            sum(row.truncated for row in good),
            len(rows) - len(good),
        )

    def statistics(self) -> dict[str, Any]:
        """Answers, retries, reasoning used in place of content, and the latency of answered requests in seconds."""
        rows = self.answers()
        times = sorted(row.seconds for row in rows if row.error is None)
        models = {str(row.body.get("model")) for row in rows if row.error is None and row.body is not None}
        return {
            "answers": len(times),
            "retries": sum(row.attempts - 1 for row in rows if row.attempts > 1),
            "from_reasoning": sum(row.from_reasoning for row in rows),
            "resumed": self.resumed,
            "models": sorted(models),
            "latency_seconds": {
                name: round(times[min(len(times) - 1, int(share * len(times)))], 6) if times else None
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
            },
        }
