"""Run GSM8K and keep every answer.

Without --endpoint the engine is started from the image by the target's `serve`, once for each arm: `base` from the unpatched
base, `off` and `on` from the built image with the overlays' switches set; it is stopped afterwards.  With --endpoint a running
OpenAI-compatible server is asked, one arm at a time.  The protocol is InferenceX's: lm-eval 0.4.13, five shots as turns, greedy,
all questions.  A recording proxy of ours stands between; an interrupted run goes on with the answers it has.

Examples:
  imagebuild gsm8k run b300-vllm --data gsm8k --runner docker --churn
  imagebuild gsm8k run b300-vllm --arm on --data gsm8k --site lab
  imagebuild gsm8k run b300-vllm --arm on --data gsm8k --endpoint http://127.0.0.1:8000 --image sha256:…
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.check.engine_run import ArmResult
    from imagebuild.check.gsm8k import RunRequest
    from imagebuild.check.protocol import Dataset
    from imagebuild.target.document import Target


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target's name")
    parser.add_argument(
        "--arm", metavar="ARM", action="append", default=[],
        help="base, base-again, off or on; may be repeated (default: the arms of checks.gsm8k)",
    )  # fmt: skip
    parser.add_argument("--churn", action="store_true", help="run base once more, to know the churn of the base itself")
    parser.add_argument(
        "--data", metavar="PATH", required=True,
        help="folder with GSM8K's test.jsonl and train.jsonl, or hub:COMMIT for a revision of openai/gsm8k",
    )  # fmt: skip
    parser.add_argument("--endpoint", metavar="URL", help="a running server, http://HOST:PORT; nothing is started then")
    parser.add_argument(
        "--runner", metavar="NAME", help="docker, podman, oci, slurm or host (default: the site's, else docker)"
    )
    parser.add_argument("--site", metavar="NAME", help="a site of sites.yaml: runner, mounts, models, environment")
    parser.add_argument(
        "--image", metavar="REF",
        help="the patched image (default: the built one); with --endpoint the digest of what is served, as declared by you",
    )  # fmt: skip
    parser.add_argument(
        "--platform", metavar="PLATFORM", help="which platform of the images (default: the SKU's, else this machine's)"
    )
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions (never enough for the gate)")
    parser.add_argument("--concurrency", metavar="N", type=int, help="requests in flight (the target's, else 64)")
    parser.add_argument(
        "--model", metavar="NAME", help="the served model's name (default: the target's, else the only one)"
    )
    parser.add_argument("--context", metavar="N", type=int, help="the model's context in tokens (default: asked)")
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, help="cut answers shorter (never good enough for the gate)"
    )
    parser.add_argument("--completions", action="store_true", help="a base model: plain completions, no chat")
    parser.add_argument("--hardware", metavar="TEXT", help="what it runs on, for meta_env.json (default: asked inside)")
    parser.add_argument("--key-variable", metavar="NAME", default="OPENAI_API_KEY", help="variable that holds the key")
    parser.add_argument("--eval-python", metavar="FILE", help="a Python that has lm-eval (default: this one)")
    parser.add_argument(
        "--output", metavar="DIR",
        help="folder with one folder an arm (build/gsm8k/TARGET, with several platforms build/gsm8k/TARGET/ARCH)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.check.verdicts import worst
    from imagebuild.errors import ImagebuildError, SeveralErrors, worst_exit_code

    target = session.workspace.target(arguments.target)
    arms = _arms(arguments, target)
    results: list[ArmResult] = []
    errors: list[tuple[str, ImagebuildError]] = []
    for arm, result in _each(arguments, session, target, arms):
        if isinstance(result, ImagebuildError):
            if len(arms) == 1:
                raise result
            errors.append((arm, result))
            session.output.note(f"{arm}: {result.message}")
        else:
            _record(session, target, result)
            results.append(result)
            session.output.note(f"{arm}: {result.judgement.verdict}: {result.judgement.reason}")
    if errors:
        session.output.error_lines(SeveralErrors([error for _, error in errors]))
    documents = [result.to_json() for result in results]
    documents += [{**error.document(), "arm": arm} for arm, error in errors]
    text = "\n".join(_text(result) for result in results)
    if len(arms) == 1:
        session.output.answer(documents[0], text)
    else:
        session.output.answer(
            {"kind": "gsm8k-runs", "schemaVersion": 1, "target": target.name, "results": documents}, text
        )
    verdicts = [worst(result.judgement.verdict for result in results).exit_code] if results else []
    return worst_exit_code([*verdicts, *(error.exit_code for _, error in errors)])


def _record(session: Session, target: Target, result: ArmResult) -> None:
    from imagebuild.check.gate_record import demands_of, run_predicate, store_predicate
    from imagebuild.host import clock

    if result.run is not None and not result.reused:
        demands = demands_of(target, session.workspace.series(target))
        store_predicate(result.folder, run_predicate(result.run, result.judgement, demands, clock.now()))


def _arms(arguments: argparse.Namespace, target: Target) -> list[str]:
    from imagebuild.errors import InputError

    asked = target.checks.gsm8k if target.checks is not None else None
    arms = list(dict.fromkeys(arguments.arm or (asked.arms if asked is not None else ("base", "off", "on"))))
    if arguments.churn and "base-again" not in arms:
        arms.append("base-again")
    if arguments.endpoint is not None:
        if len(arms) != 1 or not arguments.arm:
            raise InputError(
                "check.one-arm", "a running server serves one arm", expected="--arm ARM, once", found=", ".join(arms)
            )
        if arguments.runner or arguments.site:
            raise InputError("cli.usage", "with --endpoint nothing is started: leave --runner and --site out")
    return arms


def _each(arguments: argparse.Namespace, session: Session, target: Target, arms: list[str]) -> Any:
    """Each arm with its result, or with the error that kept it from one."""
    from imagebuild.errors import ImagebuildError

    requests = [_request(arguments, session, target, arm) for arm in arms]
    if arguments.endpoint is not None:
        yield arms[0], _asked(arguments, session, target, requests[0])
        return
    from imagebuild.cli.gsm8k_engines import engines

    with engines(arguments, session, target) as start:
        for arm, request in zip(arms, requests, strict=True):
            try:
                yield arm, start(arm, request)
            except ImagebuildError as error:
                yield arm, error


def _request(arguments: argparse.Namespace, session: Session, target: Target, arm: str) -> RunRequest:
    from imagebuild.check.gate_record import demands_of
    from imagebuild.check.gsm8k import RunRequest
    from imagebuild.cli.gsm8k_engines import arms_folder
    from imagebuild.target.serve import Gsm8k

    asked = target.checks.gsm8k if target.checks is not None else None
    demands = demands_of(target, session.workspace.series(target))
    return RunRequest(
        folder=arms_folder(arguments.output, arguments.platform, target, session) / arm,
        target=target.name,
        arm=arm,
        dataset=_dataset(arguments, session),
        python=arguments.eval_python or sys.executable,
        model=arguments.model,
        context=arguments.context,
        concurrency=(asked or Gsm8k()).concurrency[0] if arguments.concurrency is None else arguments.concurrency,
        limit=arguments.limit,
        chat=not arguments.completions,
        max_tokens=arguments.max_tokens,
        limits=demands.limits,
        meta=_declared(arguments, target),
        declared=demands.declared() if asked is not None else {},
    )


def _dataset(arguments: argparse.Namespace, session: Session) -> Dataset:
    from imagebuild.check.hub import fetch_dataset, parse_hub
    from imagebuild.check.protocol import load_dataset

    revision = parse_hub(arguments.data)
    if revision is None:
        return load_dataset(Path(arguments.data))
    return fetch_dataset(revision, arguments.eval_python or sys.executable, session.cache / "gsm8k")


def _asked(arguments: argparse.Namespace, session: Session, target: Target, request: RunRequest) -> ArmResult:
    """A run against a server that somebody else started: the image is the caller's word."""
    from dataclasses import replace

    from imagebuild.check.arms import wanted_proofs
    from imagebuild.check.endpoint import Client, parse_endpoint
    from imagebuild.check.engine_run import of_finished
    from imagebuild.check.gsm8k import run_gsm8k
    from imagebuild.cli.answer_progress import AnswerProgress
    from imagebuild.content.digest import Digest
    from imagebuild.host.environment import variable

    image = str(Digest.parse(arguments.image)) if arguments.image else None
    meta = {**request.meta, "image_digest": image, "switch": {"off": "0", "on": "1"}.get(request.arm)}
    proofs = wanted_proofs(session.workspace.series(target)) if request.arm == "on" else ()
    request = replace(request, meta=meta, proofs=proofs)
    with (
        Client(parse_endpoint(arguments.endpoint), key=variable(arguments.key_variable)) as client,
        AnswerProgress(session, request.arm, request.expected) as progress,
    ):
        return of_finished(run_gsm8k(request, client, progress.watch))


def _text(result: ArmResult) -> str:
    from imagebuild.check.results import METRIC

    lines = [str(result.folder)]
    if result.run is not None:
        lines.append(f"{METRIC}: " + ", ".join(f"{name} {score:.5f}" for name, score in result.run.claimed.items()))
    return "\n".join([*lines, f"{result.arm}: {result.judgement.verdict}: {result.judgement.reason}"])


def _declared(arguments: argparse.Namespace, target: Target) -> dict[str, Any]:
    """What stands in meta_env.json before the server says anything: InferenceX's keys, as the target declares them."""
    serve = target.serve
    speculative = serve.speculative if serve is not None else None
    declared: dict[str, Any] = {"hardware": arguments.hardware}
    if target.sku is not None:
        declared["hw"] = target.sku
    if serve is not None:
        declared |= {"framework": serve.engine, "spec_decoding": speculative.method if speculative else "none"}
        declared |= {"tool_parser": serve.tool_parser, "reasoning_parser": serve.reasoning_parser}
    if speculative is not None:
        declared["acceptance"] = speculative.acceptance
    return declared
