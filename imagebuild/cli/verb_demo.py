"""Run everything once on a realistic base.

The base is made from the real vllm 0.33.0 wheel (fetched once, pinned by sha256, kept in the cache) as an OCI layout on
disk: no server, no daemon, no root.  Then the demo target is locked, planned, built, verified and reproduced.  Run it
in a checkout of imagebuild.  --small DIR only writes a base to practise on, a few files that nobody can run, and needs
neither checkout nor network.

Examples:
  imagebuild demo
  imagebuild demo --small build/base                               prints the base's pinned reference
  imagebuild demo --platform linux/amd64 --platform linux/arm64    both wheels, a two-platform index
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from imagebuild.cli.output import Output
from imagebuild.cli.session import Session
from imagebuild.content.text import size_text, table
from imagebuild.oci.platform import Platform


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform", action="append", type=Platform.parse, default=[], help="one or both (default: linux/amd64)"
    )
    parser.add_argument(
        "--small", metavar="DIR", help="write a small base to practise on into this layout, and nothing else"
    )


class _Quiet(Output):
    """Keeps the answer of one step, so that the demo gives one of its own."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(json=True, quiet=quiet)
        self.document: dict[str, Any] = {}

    def answer(self, document: Any, text: str, *, whole: bool = False) -> None:
        del text, whole
        self.document = dict(document)


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.errors import InputError
    from imagebuild.host import clock
    from imagebuild.testing.demo_base import demo_base
    from imagebuild.testing.wheel_fetch import AMD64

    platforms = sorted(set(arguments.platform)) or [AMD64]
    if arguments.small is not None:
        return _small(arguments.small, platforms, session)
    name = "demo" if len(platforms) == 1 else "demo-all"
    if platforms != [AMD64] and len(platforms) == 1:
        raise InputError("cli.usage", "the demo knows linux/amd64, or both platforms", found=str(platforms[0]))
    try:
        workspace = session.workspace
        here, known = workspace.root, name in workspace.targets()
    except InputError as error:
        if error.code != "target.no-workspace" or arguments.workspace is not None:
            raise
        here, known = Path.cwd(), False
    if not known:
        raise InputError(
            "demo.not-here",
            f"{here} has no target {name}",
            hint="run the demo in a checkout of imagebuild; anywhere else, `imagebuild demo --small DIR` writes a base to practise on",
        )
    times: list[tuple[str, float]] = []
    started = clock.monotonic()

    def step(text: str, *words: str) -> dict[str, Any]:
        begun = clock.monotonic()
        session.output.note(f"== {text}")
        document = _call(list(words), session)
        times.append((text, clock.monotonic() - begun))
        return document

    session.output.note("== the base, from the real vllm 0.33.0 wheel")
    base = demo_base(workspace.root, platforms, _progress(session))
    times.append(("base", clock.monotonic() - started))
    locked = step("lock", "lock", name, "--complete")
    plan = step("plan", "plan", name)
    built = step("build", "build", name)
    verified = step("verify", "verify", built["reference"], "--target", name)
    reproduced = step("reproduce", "reproduce", name)
    document = {
        "kind": "demo-result",
        "schemaVersion": 1,
        "target": name,
        "base": {"reference": base.reference, "digest": str(base.digest)},
        "lock": locked,
        "plan": plan,
        "build": built,
        "verify": verified,
        "reproduce": reproduced,
        "seconds": {text: round(seconds, 3) for text, seconds in times},
    }
    session.output.answer(document, _text(name, document, times))
    return 0


def _small(folder: str, platforms: list[Platform], session: Session) -> int:
    """The base of the tutorial.  The same bytes everywhere."""
    from pathlib import Path

    from imagebuild.oci.reference import PathReference
    from imagebuild.testing.images import write_layout
    from imagebuild.testing.small_engine import engine_base

    base = engine_base([str(platform) for platform in platforms])
    write_layout(Path(folder), {"v1": base})
    reference = str(PathReference("oci", folder, "v1", base.digest))
    session.output.answer(
        {"kind": "demo-base", "schemaVersion": 1, "reference": reference, "digest": str(base.digest)}, reference
    )
    return 0


def _call(words: list[str], session: Session) -> dict[str, Any]:
    """One verb in this process, with this run's common options; its failure is the demo's."""
    from importlib import import_module

    from imagebuild.cli.options import Parser, add_common
    from imagebuild.errors import RefusedError

    module = import_module(f"imagebuild.cli.verb_{words[0]}")
    parser = Parser(prog=f"imagebuild {words[0]}", allow_abbrev=False)
    module.configure(parser)
    add_common(parser)
    common = [
        "-C",
        str(session.workspace.root),
        "--cache",
        str(session.cache),
        *(["-q"] if session.output.quiet else []),
    ]
    output = _Quiet(session.output.quiet)
    with Session(parser.parse_args([*words[1:], *common]), output) as inner:
        code = module.run(inner.arguments, inner)
    if code != 0:
        raise RefusedError(
            "demo.step-failed", f"{' '.join(words)} ended with {code}", details={"answer": output.document}
        )
    return output.document


def _progress(session: Session) -> Any:
    def progress(what: str, done: int, total: int) -> None:
        session.emitter.emit("progress", task=what, done=done, total=total or None)

    return progress


def _text(name: str, document: dict[str, Any], times: list[tuple[str, float]]) -> str:
    lines = []
    for platform in document["plan"]["platforms"]:
        lines.append(f"What was changed on {platform['platform']}:")
        rows = [[item["guard"], item["kind"], item["path"]] for item in platform["files"]]
        lines += [table(rows, ["GUARD", "KIND", "PATH"]), ""]
        lines.append("Guards (sha256 before and after):")
        for item in platform["files"]:
            if item["origin"].startswith("change:"):
                lines.append(f"  {item['origin'].removeprefix('change:')}")
                lines.append(f"    before {item['before'] or 'absent'}")
                lines.append(f"    after  {item['after'] or 'absent'}")
        lines.append("")
    build, plan = document["build"], document["plan"]
    checks = document["verify"]["checks"]
    rebuilds = [item for item in document["reproduce"]["rebuilds"] if item["equal"]]
    own = sum(layer["size"] for p in build["platforms"] for layer in p["layers"])
    lines += [
        f"verify: {sum(1 for c in checks if c['passed'])} checks passed; reproduce: {len(rebuilds)} rebuilds, every blob equal",
        "time: " + ", ".join(f"{text} {seconds:.1f} s" for text, seconds in times),
        f"bytes: {size_text(own)} of our own layers on {size_text(plan['build']['worst_case_bytes'])} of base layers, which stay as they are",
        "The image, pinned:",
        build["reference"],
    ]
    return "\n".join(lines)
