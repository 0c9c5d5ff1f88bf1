"""The recording proxy against a server that errs and fails as declared."""

import errno
import http.client
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check.answers import AnswerLog, read_answer
from imagebuild.check.endpoint import Client, parse_endpoint
from imagebuild.check.proxy import EvaluationProxy
from imagebuild.check.results import Counts
from imagebuild.errors import InputError, UnavailableError
from imagebuild.testing.openai_double import OpenAIDouble, Script

QUESTIONS = [(f"What is {number} and {number}?", str(2 * number)) for number in range(12)]
KEY = "sk-very-secret"


class Bench:
    """A double, the proxy before it, and what was slept."""

    def __init__(self, double: OpenAIDouble, proxy: EvaluationProxy, slept: list[float]) -> None:
        self.double, self.proxy, self.slept = double, proxy, slept

    def ask(self, number: int, model: str = "double", chat: bool = True) -> dict[str, Any]:
        question = f"Question: {QUESTIONS[number][0]}\nAnswer:"
        body: dict[str, Any] = {"model": model, "temperature": 0}
        body |= {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": [question]}
        connection = http.client.HTTPConnection(self.proxy.url.removeprefix("http://"), timeout=20)
        connection.request("POST", "/v1/chat/completions" if chat else "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        document = json.loads(response.read())
        connection.close()
        assert response.status == 200, document
        return document

    def text(self, number: int) -> str:
        said: str = self.ask(number)["choices"][0]["message"]["content"]
        return said

    @property
    def counts(self) -> Counts:
        return self.proxy.log.counts()


MakeBench = Callable[..., Any]


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    @contextmanager
    def make(**script: Any) -> Iterator[Bench]:
        slept: list[float] = []
        with OpenAIDouble(Script(QUESTIONS, **script)) as double, AnswerLog(tmp_path / "answers.jsonl", (KEY,)) as log:
            client = Client(parse_endpoint(double.url + "/v1"), key=KEY, attempts=3, timeout=20, sleep=slept.append)
            with client, EvaluationProxy(client, log) as proxy:
                yield Bench(double, proxy, slept)

    return make


def test_right_and_wrong_answers_pass_through(bench: MakeBench) -> None:
    with bench(wrong=[3]) as made:
        assert made.text(2).endswith("#### 4")
        assert made.text(3).endswith("#### 7")
        assert made.ask(4, chat=False)["choices"][0]["text"].endswith("#### 8")
        assert made.counts == Counts(0, 0, 0, 0)
        assert made.proxy.log.statistics()["models"] == ["double"]


@pytest.mark.parametrize(
    ("fault", "counts", "said"),
    [
        ("null", Counts(1, 0, 0, 0), ""),
        ("empty", Counts(0, 1, 0, 0), ""),
        ("truncated", Counts(0, 0, 1, 0), "Step by "),
    ],
)
def test_faulty_answers_are_counted(bench: MakeBench, fault: str, counts: Counts, said: str) -> None:
    with bench(faults={1: [fault]}) as made:
        assert made.text(1) == said
        assert made.counts == counts


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_stands_in_for_missing_content(bench: MakeBench, field: str) -> None:
    """vllm-project/vllm#33402: newer servers say `reasoning`."""
    with bench(faults={1: [field]}) as made:
        assert made.text(1).endswith("#### 2")
        assert made.counts == Counts(0, 0, 0, 0)
        assert made.proxy.log.statistics()["from_reasoning"] == 1


@pytest.mark.parametrize("fault", ["429", "500", "drop", "garbage"])
def test_what_passes_by_is_asked_again(bench: MakeBench, fault: str) -> None:
    with bench(faults={1: [fault, fault]}) as made:
        assert made.text(1).endswith("#### 2")
        assert made.proxy.log.statistics()["retries"] == 2
        assert len(made.slept) == 2
        assert made.slept[0] >= 1.0
        assert made.counts == Counts(0, 0, 0, 0)


@pytest.mark.parametrize("fault", ["500", "drop"])
def test_one_question_that_always_fails_loses_no_other(bench: MakeBench, fault: str) -> None:
    """EleutherAI/lm-evaluation-harness#2548"""
    with bench(faults={1: [fault]}, stuck=frozenset({1})) as made:
        assert made.text(0).endswith("#### 0")
        assert made.text(1) == ""
        assert made.text(2).endswith("#### 4")
        assert made.counts == Counts(0, 0, 0, 1)
        assert not made.proxy.client.lost.is_set()


def test_a_server_that_dies_in_the_middle_keeps_what_was_answered(bench: MakeBench) -> None:
    with bench(dies_after=3) as made:
        said = [made.text(number) for number in range(8)]
        assert [bool(text) for text in said] == [True] * 3 + [False] * 5
        assert made.proxy.client.lost.is_set()
        assert made.counts.failed == 5
        assert len(made.slept) == 2


def test_a_wrong_model_is_not_asked_again(bench: MakeBench) -> None:
    with bench() as made:
        made.ask(1, model="other")
        assert made.slept == []
        assert made.counts.failed == 1
        assert "does not exist" in (made.proxy.log.answers()[0].error or "")


def test_a_lost_server_is_noticed_and_the_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    slept: list[float] = []
    with OpenAIDouble(Script(QUESTIONS)) as double, AnswerLog(path) as log:
        client = Client(parse_endpoint(double.url), attempts=2, timeout=20, sleep=slept.append)
        with EvaluationProxy(client, log) as proxy:
            made = Bench(double, proxy, slept)
            assert made.text(0)
            assert made.text(1)
    with AnswerLog(path) as log, client, EvaluationProxy(client, log) as proxy:
        made = Bench(double, proxy, slept)
        assert made.text(2) == ""
        assert client.lost.is_set()
        slept.clear()
        assert made.text(3) == ""
        assert slept == []
        assert made.text(0)
        assert log.counts().failed == 2
    with path.open("ab") as stream:
        stream.write(b'{"request": "torn')
    with OpenAIDouble(Script(QUESTIONS)) as double, AnswerLog(path) as log:
        assert log.resumed == 2
        with Client(parse_endpoint(double.url)) as client, EvaluationProxy(client, log) as proxy:
            made = Bench(double, proxy, slept)
            assert all(made.text(number) for number in range(4))
        assert double.asked == [2, 3]
        assert log.counts() == Counts(0, 0, 0, 0)


def test_the_key_reaches_the_server_and_nothing_else(bench: MakeBench, tmp_path: Path) -> None:
    with bench(faults={1: ["echo-key"]}) as made:
        assert KEY not in made.text(1)
        assert made.double.keys == {KEY}
    assert KEY not in (tmp_path / "answers.jsonl").read_text()


def test_a_full_disk_ends_the_run(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(answer: object) -> None:
        raise UnavailableError("content.disk-full", "no room left")

    with bench() as made:
        made.text(0)
        monkeypatch.setattr(made.proxy.log, "append", full)
        with pytest.raises(AssertionError):
            made.text(1)
        assert made.proxy.failure is not None
        assert made.proxy.failure.code == "content.disk-full"


def test_half_a_line_never_stands_before_another(tmp_path: Path) -> None:
    """The disk is full for one answer, and has room for another thread's."""
    path = tmp_path / "answers.jsonl"
    answers = [read_answer(f"r{n}", {"choices": [{"text": "x" * n}]}, 1, 0.1) for n in (1, 900, 2)]

    class Full(io.FileIO):
        def write(self, data: object, /) -> int:
            part = bytes(data)  # type: ignore[call-overload]
            if len(part) < 900:
                return super().write(part)
            super().write(part[:100])
            raise OSError(errno.ENOSPC, "no room")

    with AnswerLog(path) as log:
        log._stream.close()
        log._stream = Full(path, "a")
        assert all(answers)
        log.append(answers[0])  # type: ignore[arg-type]
        with pytest.raises(UnavailableError) as caught:
            log.append(answers[1])  # type: ignore[arg-type]
        log.append(answers[2])  # type: ignore[arg-type]
    assert caught.value.code == "content.disk-full"
    assert [json.loads(line)["request"] for line in path.read_text().splitlines()] == ["r1", "r2"]


def test_a_damaged_file_of_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"request": 1}\n')
    with pytest.raises(InputError) as caught:
        AnswerLog(path)
    assert caught.value.code == "check.bad-answers"


@pytest.mark.parametrize("text", ["localhost:8000", "ftp://h", "http://u:p@h:1", "http://h:99999", "http://h/?a=1", ""])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_endpoint(text)
    assert caught.value.code == "check.bad-endpoint"
    assert "u:p" not in str(caught.value)


def test_endpoints() -> None:
    for text in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert str(parse_endpoint(text)) == "http://h:1"
    assert str(parse_endpoint("https://h/gate/v1")) == "https://h/gate"
    with Client(parse_endpoint("http://127.0.0.1:9"), timeout=5) as client, pytest.raises(UnavailableError):
        client.get("/v1/models")
