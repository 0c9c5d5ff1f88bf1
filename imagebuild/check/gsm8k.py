"""One GSM8K run against a served model: lm-eval as a child process, the recording proxy between.

The folder of a run holds `answers.jsonl` (every answer as it came), lm-eval's `results_*.json` and `samples_*.jsonl`,
`meta_env.json` (InferenceX's keys and ours) and `summary.json`.  Stopped at any moment, the same call goes on with the
answers that are there.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.check import protocol
from imagebuild.check.answers import Answer, AnswerLog
from imagebuild.check.arms import ARMS
from imagebuild.check.compare import DEFAULT_LIMITS, AnswerLimits, run_faults
from imagebuild.check.endpoint import Client
from imagebuild.check.metrics import acceptance_length, parse_counters
from imagebuild.check.proofs import WantedProof, all_proven, counter_proof, unproven
from imagebuild.check.protocol import Dataset
from imagebuild.check.proxy import EvaluationProxy
from imagebuild.check.results import Run, load_run
from imagebuild.check.verdicts import Judgement, Verdict
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import InputError, RefusedError, UnavailableError, clean
from imagebuild.host import clock, environment, process
from imagebuild.oci.lock import locked

SETTINGS = "run.json"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run.  `meta` are facts that the caller declares (image digest, switch, hardware, …) and that stand
    in meta_env.json as such; `python` has lm-eval; `proofs` are what shows that the switched branch ran, for an arm
    that has to; `max_tokens` cuts answers shorter than the protocol does (such a run passes no gate); `deadline` in
    seconds; `declared` is what the gate will ask for, which is fixed with the run's first question."""

    folder: Path
    target: str
    arm: str
    dataset: Dataset
    python: str
    model: str | None = None
    context: int | None = None
    concurrency: int = 64
    limit: int | None = None
    chat: bool = True
    max_tokens: int | None = None
    proofs: tuple[WantedProof, ...] = ()
    limits: AnswerLimits = DEFAULT_LIMITS
    deadline: float = 86_400.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=no_entries)

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise InputError("check.bad-arm", "no such arm", expected=" | ".join(ARMS), found=self.arm)
        if any(number is not None and number < 1 for number in (self.concurrency, self.limit, self.max_tokens)):
            raise InputError("check.bad-count", "concurrency, limit and tokens of an answer are at least 1")

    @property
    def expected(self) -> int:
        """Questions that will be asked."""
        return min(self.limit or self.dataset.questions, self.dataset.questions)


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks on: `resumed` is told how many answers are kept, `answered` each new one."""

    resumed: Callable[[int], None] = lambda count: None
    answered: Callable[[Answer], None] = lambda answer: None


@dataclass(frozen=True, slots=True)
class Served:
    """What the server says of itself."""

    model: str
    context: int | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that came to its end, with its judgement: `passed` means that it counts, not that it is good."""

    run: Run
    summary: Mapping[str, Any]
    judgement: Judgement


def ask_server(client: Client, model: str | None) -> Served:
    """Raises InputError `check.wrong-model`, UnavailableError `check.endpoint-unavailable`."""
    listed = client.get("/v1/models")
    rows = listed.get("data") if isinstance(listed, dict) else None
    known = {
        str(row["id"]): row for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict) and "id" in row
    }
    if model is None and len(known) == 1:
        model = next(iter(known))
    if model is None or model not in known:
        raise InputError(
            "check.wrong-model",
            f"{client.endpoint} does not serve this model",
            expected=" | ".join(known) or "a model",
            found=model or "none named",
            hint="name one of them with --model",
        )
    length = known[model].get("max_model_len")
    try:
        said = client.get("/version")
    except UnavailableError:
        said = None
    version = said.get("version") if isinstance(said, dict) else None
    return Served(model, length if isinstance(length, int) else None, str(version) if version is not None else None)


Closing = Callable[[], Mapping[str, Any]]
"""Called when the last question is answered and the counters are read: what else stands in meta_env.json.  Whoever started
the engine stops it then, so that its whole log is known; `proofs` among it is what that log proves."""


def run_gsm8k(
    request: RunRequest, client: Client, watch: Watch | None = None, closing: Closing | None = None
) -> Finished:
    """Runs, or goes on with, one arm.

    Raises InputError for what is asked wrongly, RefusedError `check.other-run` where the folder holds a run with other
    settings, `check.run-in-progress` where another call is at work on it, UnavailableError `check.no-lm-eval`,
    `check.endpoint-unavailable`, `check.evaluation-failed` and of the disk; all answers so far are then in the folder.  A server that is lost on the way is no error: the judgement says
    `infrastructure`.
    """
    _check_lm_eval(request.python)
    served = ask_server(client, request.model)
    watch = watch or Watch()
    max_tokens = protocol.longest_answer(request.context or served.context or 1 << 20)
    max_tokens = min(max_tokens, request.max_tokens or max_tokens)
    with claimed(request.folder):
        return _run_claimed(request, client, served, max_tokens, watch, closing)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder of a run, made where it is not there, for this call alone while the block lasts.  Raises RefusedError
    `check.run-in-progress`, UnavailableError of the disk."""
    with io_faults(folder, "writing"):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False) as held:
        if not held:
            raise RefusedError(
                "check.run-in-progress",
                f"another call is at work on the run in {folder}",
                hint="wait for it to end; the same command then goes on with the answers that it kept",
                details={"file": str(folder)},
            )
        yield


def _run_claimed(
    request: RunRequest, client: Client, served: Served, max_tokens: int, watch: Watch, closing: Closing | None
) -> Finished:
    settings = _settings(request, served, max_tokens)
    _same_settings(request.folder / SETTINGS, settings)
    before, began = client.counters(parse_counters), clock.monotonic()
    with AnswerLog(request.folder / "answers.jsonl", client.secrets) as log:
        watch.resumed(log.resumed)
        with EvaluationProxy(client, log, watch.answered) as proxy:
            code, tail = _evaluate(request, served, max_tokens, proxy)
        if proxy.failure is not None:
            raise proxy.failure
        counts, statistics = log.counts(), log.statistics()
        tail = log.scrub(tail)
    if code != 0:
        raise UnavailableError(
            "check.evaluation-failed",
            f"lm-eval ended with exit code {code}: {clean(tail[-1500:])}",
            hint="the answers so far are kept; run the same command to go on",
        )
    after, earlier = client.counters(parse_counters), _earlier(request.folder / "meta_env.json")
    facts = dict(closing()) if closing is not None else {}
    counted = [counter_proof(wanted, before, after) for wanted in request.proofs]
    proven = all_proven(request.proofs, [*counted, *facts.pop("proofs", ())])
    meta = {
        **_inferencex(request, served),
        "arm": request.arm,
        "acceptance": "real",
        **request.meta,
        "engine_version": served.version,
        "mean_acceptance_length": acceptance_length(before, after) or earlier.get("mean_acceptance_length"),
        "switch_proof": proven or earlier.get("switch_proof"),
        **facts,
        "settings": settings,
        "eval_exit_code": code,
    }
    summary = {
        "kind": "gsm8k-run",
        "schemaVersion": 1,
        "target": request.target,
        "arm": request.arm,
        "endpoint": str(client.endpoint),
        "seconds": round(clock.monotonic() - began, 3),
        "counts": counts.to_json(),
        **statistics,
    }
    _store(request.folder / "meta_env.json", meta)
    _store(request.folder / "summary.json", summary)
    run = load_run(request.folder)
    judgement = _judge(run, request, client, statistics["models"])
    return Finished(run, {**summary, **judgement.to_json()}, judgement)


def _earlier(path: Path) -> dict[str, Any]:
    """What a finished run with these settings measured: a call that only reads its answers again measures nothing."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _judge(run: Run, request: RunRequest, client: Client, models: list[str]) -> Judgement:
    if client.lost.is_set():
        return Judgement(
            Verdict.INFRASTRUCTURE,
            f"the server was lost; {run.counts.failed} questions were not answered, the answers so far are kept",
        )
    faults = list(run_faults(run, request.arm, request.limits))
    if request.proofs and not run.meta.get("switch_proof"):
        faults.append(unproven(request.proofs))
    if len(models) > 1:
        faults.append(f"answers came from several models: {', '.join(models)}")
    if run.questions != request.expected:
        faults.append(f"{run.questions} questions were evaluated, {request.expected} were asked for")
    if faults:
        return Judgement(Verdict.INVALID, "; ".join(faults))
    return Judgement(Verdict.PASSED, "the run counts; gsm8k compare and gsm8k gate judge it")


def _check_lm_eval(python: str) -> None:
    probe = "from importlib.metadata import version; print(version('lm_eval'))"
    found = process.run([python, "-c", probe], deadline=60)
    version = found.stdout.decode("utf-8", "replace").strip()
    if found.code != 0 or version != protocol.LM_EVAL:
        raise UnavailableError(
            "check.no-lm-eval",
            f"{python} has no lm-eval {protocol.LM_EVAL}",
            expected=protocol.LM_EVAL,
            found=version or "none",
            hint="pip install 'imagebuild[eval]', or name a Python that has it with --eval-python",
        )


def _settings(request: RunRequest, served: Served, max_tokens: int) -> dict[str, Any]:
    """What two halves of one run must agree in."""
    return {
        "target": request.target,
        "arm": request.arm,
        "model": served.model,
        "chat": request.chat,
        "limit": request.limit,
        "concurrency": request.concurrency,
        "max_tokens": max_tokens,
        "max_tokens_asked": request.max_tokens,
        "shots": protocol.SHOTS,
        "lm_eval": protocol.LM_EVAL,
        "dataset": request.dataset.to_json(),
        "declared": dict(request.declared),
        "image_digest": request.meta.get("image_digest"),
        "engine_version": served.version,
    }


def _same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    if path.is_file():
        with io_faults(path, "reading"):
            found = path.read_bytes()
        if found != _encoded(settings):
            raise RefusedError(
                "check.other-run",
                f"{path.parent} holds a run with other settings, whose answers are not to be mixed with these",
                hint="name another folder with --output, or remove this one",
                details={"file": str(path)},
            )
    else:
        atomic_write(path, _encoded(settings))


def _encoded(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _store(path: Path, document: Mapping[str, Any]) -> None:
    atomic_write(path, _encoded(document))


def _evaluate(request: RunRequest, served: Served, max_tokens: int, proxy: EvaluationProxy) -> tuple[int, str]:
    """Runs lm-eval in a folder of its own, and moves its two files beside the answers when both are whole."""
    with tempfile.TemporaryDirectory(prefix=".lm-eval-", dir=request.folder) as name:
        work = Path(name).resolve()
        (work / "task").mkdir()
        atomic_write(work / "test.jsonl", request.dataset.test)
        atomic_write(work / "train.jsonl", request.dataset.train)
        # JSON is YAML
        _store(work / "task" / "gsm8k.yaml", protocol.task_document(work / "test.jsonl", work / "train.jsonl"))
        words = protocol.lm_eval_arguments(
            url=proxy.url,
            model=served.model,
            concurrency=request.concurrency,
            max_tokens=max_tokens,
            include=work / "task",
            output=work / "out",
            limit=request.limit,
            chat=request.chat,
        )
        done = process.run(
            [request.python, "-m", "lm_eval", *words],
            deadline=request.deadline,
            cwd=work,
            environment=_child_environment(work, proxy.client.secrets),
        )
        found = [list((work / "out").glob(f"*/{pattern}")) for pattern in ("results_*.json", "samples_*.jsonl")]
        if done.code == 0 and all(len(files) == 1 for files in found):
            _replace_results(request.folder, [files[0] for files in found])
        elif done.code == 0:
            return -1, "it wrote no results, though it ended well"
        return done.code, (done.stdout + done.stderr).decode("utf-8", "replace")


def _replace_results(folder: Path, files: list[Path]) -> None:
    with io_faults(folder, "writing"):
        for pattern in ("results_*.json", "samples_*.jsonl"):
            for old in folder.glob(pattern):
                old.unlink()
        for file in files:
            shutil.move(file, folder / file.name)


def _child_environment(work: Path, secrets: tuple[str, ...]) -> dict[str, str]:
    """Ours without keys, nothing fetched from a hub, no proxy before loopback."""
    values = {key: value for key, value in environment.variables().items() if value not in secrets}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    return {**values, **offline, "HF_HOME": str(work / "hub"), "OPENAI_API_KEY": "EMPTY", "NO_PROXY": "127.0.0.1"}


def _inferencex(request: RunRequest, served: Served) -> dict[str, Any]:
    """The keys of InferenceX's meta_env.json; what an endpoint does not tell is `unknown` unless declared."""
    unknown = dict.fromkeys(("hw", "framework", "precision", "spec_decoding", "infmax_model_prefix"), "unknown")
    return {**unknown, "is_multinode": False, "model": served.model, "conc": request.concurrency, "image": None}
