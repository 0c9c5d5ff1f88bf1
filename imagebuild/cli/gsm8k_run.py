"""Run GSM8K against a running OpenAI-compatible endpoint and keep every answer.

The protocol is InferenceX's: lm-eval 0.4.13, five shots as turns, greedy, all questions.  A recording proxy of ours
stands between; an interrupted run goes on with the answers it has.  The endpoint must be up already: starting an engine
from an image is not part of this verb yet.  A key is taken from the variable named by --key-variable.

Example:
  imagebuild gsm8k run b300-vllm --arm on --endpoint http://127.0.0.1:8000 --data gsm8k --image sha256:…
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.check.answers import Answer
    from imagebuild.target.document import Target

EVERY = 5.0
"""Seconds between lines of progress."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target's name")
    parser.add_argument("--endpoint", metavar="URL", required=True, help="where the engine serves, http://HOST:PORT")
    parser.add_argument("--arm", metavar="ARM", required=True, help="what is served: base, base-again, off or on")
    parser.add_argument("--data", metavar="PATH", required=True, help="folder with GSM8K's test.jsonl and train.jsonl")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions (never enough for the gate)")
    parser.add_argument("--concurrency", metavar="N", type=int, help="requests in flight (the target's, else 64)")
    parser.add_argument("--model", metavar="NAME", help="the served model's name (default: the only one)")
    parser.add_argument("--context", metavar="N", type=int, help="the model's context in tokens (default: asked)")
    parser.add_argument("--completions", action="store_true", help="a base model: plain completions, no chat")
    parser.add_argument("--image", metavar="DIGEST", help="digest of the served image, as declared by you")
    parser.add_argument("--hardware", metavar="TEXT", help="what it runs on, for meta_env.json")
    parser.add_argument("--key-variable", metavar="NAME", default="OPENAI_API_KEY", help="variable that holds the key")
    parser.add_argument("--eval-python", metavar="FILE", help="a Python that has lm-eval (default: this one)")
    parser.add_argument("--output", metavar="DIR", help="folder of the run (build/gsm8k/TARGET/ARM)")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.check.endpoint import Client, parse_endpoint
    from imagebuild.check.gsm8k import RunRequest, run_gsm8k
    from imagebuild.check.protocol import load_dataset
    from imagebuild.check.results import METRIC
    from imagebuild.host.environment import variable

    workspace = session.workspace
    target = workspace.target(arguments.target)
    asked = target.checks.gsm8k if target.checks is not None else None
    folder = workspace.root / "build" / "gsm8k" / target.name / arguments.arm
    request = RunRequest(
        folder=Path(arguments.output) if arguments.output else folder,
        target=target.name,
        arm=arguments.arm,
        dataset=load_dataset(Path(arguments.data)),
        python=arguments.eval_python or sys.executable,
        model=arguments.model,
        context=arguments.context,
        concurrency=arguments.concurrency or (asked.concurrency[0] if asked is not None else 64),
        limit=arguments.limit,
        chat=not arguments.completions,
        counter=_counter(session, target),
        max_null=asked.max_null if asked is not None else 0,
        meta=_declared(arguments, target),
    )
    with Client(parse_endpoint(arguments.endpoint), key=variable(arguments.key_variable)) as client:
        done = run_gsm8k(request, client, _progress(session, request.expected))
    scores = [f"{name} {score:.5f}" for name, score in done.run.claimed.items()]
    text = "\n".join(
        [str(request.folder), f"{METRIC}: " + ", ".join(scores), f"{done.judgement.verdict}: {done.judgement.reason}"]
    )
    session.output.answer({**done.summary, "folder": str(request.folder), "scores": dict(done.run.claimed)}, text)
    return done.judgement.verdict.exit_code


def _counter(session: Session, target: Target) -> str | None:
    """The counter by which an overlay of the target proves its switch."""
    proofs = [overlay.proof for overlay in session.workspace.series(target) if overlay.proof is not None]
    return next((proof.counter for proof in proofs if proof.counter is not None), None)


def _declared(arguments: argparse.Namespace, target: Target) -> dict[str, Any]:
    from imagebuild.content.digest import Digest

    serve = target.serve
    speculative = serve.speculative if serve is not None else None
    declared: dict[str, Any] = {
        "image_digest": str(Digest.parse(arguments.image)) if arguments.image else None,
        "switch": {"off": "0", "on": "1"}.get(arguments.arm),
        "hardware": arguments.hardware,
    }
    if target.sku is not None:
        declared["hw"] = target.sku
    if serve is not None:
        declared |= {"framework": serve.engine, "spec_decoding": speculative.method if speculative else "none"}
        declared |= {"tool_parser": serve.tool_parser, "reasoning_parser": serve.reasoning_parser}
    if speculative is not None:
        declared["acceptance"] = speculative.acceptance
    return declared


def _progress(session: Session, total: int) -> Callable[[Answer], None]:
    from imagebuild.host import clock

    began = shown = clock.monotonic()
    done = 0

    def count(answer: Answer) -> None:
        nonlocal done, shown
        done += 1
        moment = clock.monotonic()
        if moment - shown >= EVERY:
            shown = moment
            rate = done / (moment - began)
            session.output.note(f"{done} of {total} answers, {rate:.1f}/s, {(total - done) / rate:.0f} s left")

    return count
