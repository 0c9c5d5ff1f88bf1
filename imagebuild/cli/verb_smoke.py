"""Is the patched code what runs?  Smoke checks of a built image, cheapest first, and the evidence of them.

files (no container), python (which file and which bytecode Python really imports), switch (registered, off, on),
devices, kernel (matrix product, all-reduce), engine (a server of a tiny model, off, on, off), parity (off equals the base),
overlay (the overlays' own checks), and the devices again.  What could not be looked at is `not-run`, never passed.
Evidence is left below build/smoke/TARGET/ARCH.

Examples:
  imagebuild smoke demo --runner podman --step files --step python --step switch
  imagebuild smoke b300-vllm --site lab --junit smoke.xml
  imagebuild smoke b300-vllm b300-vllm-public --site cluster
  imagebuild smoke --show manifests/b300-vllm/evidence/smoke/evidence.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", nargs="*", help="a target's name; several go out together on a cluster"
    )
    parser.add_argument(
        "--runner", metavar="NAME", help="docker, podman, oci, slurm or host (default: the site's, else docker)"
    )
    parser.add_argument("--site", metavar="NAME", help="a site of sites.yaml: runner, mounts, environment")
    parser.add_argument("--image", metavar="REF", help="the patched image (default: the built one)")
    parser.add_argument(
        "--platform", metavar="PLATFORM", action="append", default=[],
        help="which platform of the image; may be repeated (default: the SKU's, else this machine's)",
    )  # fmt: skip
    parser.add_argument(
        "--step", metavar="STEP", action="append", default=[],
        help="run this step only; may be repeated (then no good statement is written unless nothing is left out)",
    )  # fmt: skip
    parser.add_argument(
        "--junit", metavar="FILE", help="write JUnit XML there too; of several results, each to FILE-TARGET-ARCH"
    )
    parser.add_argument("--output", metavar="DIR", help="folder of the evidence (build/smoke/TARGET/ARCH)")
    parser.add_argument(
        "--show", metavar="FILE", nargs="?", const="", help="print evidence that is there (the target's, or FILE's)"
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.errors import InputError

    if arguments.show is not None:
        return _show(arguments, session)
    if not arguments.target:
        raise InputError("cli.usage", "smoke needs a target", expected="imagebuild smoke TARGET, or --show FILE")
    from imagebuild.check.smoke.show import evidence_text
    from imagebuild.check.verdicts import Verdict
    from imagebuild.cli.smoke_run import smoke_targets
    from imagebuild.errors import worst_exit_code

    made = smoke_targets(arguments, session)
    texts = [f"{evidence_text(document)}" for _, document in made]
    for path, _ in made:
        session.output.note(f"evidence: {path}")
    documents: list[dict[str, Any]] = [document for _, document in made]
    if len(documents) == 1:
        session.output.answer(documents[0], texts[0])
    else:
        session.output.answer({"kind": "smoke-evidences", "schemaVersion": 1, "results": documents}, "\n\n".join(texts))
    return worst_exit_code([Verdict(document["verdict"]).exit_code for document in documents])


def _show(arguments: argparse.Namespace, session: Session) -> int:
    """Prints evidence; the exit code is that of its verdict."""
    from imagebuild.check.smoke.evidence import load_evidence_document
    from imagebuild.check.smoke.show import evidence_text
    from imagebuild.check.verdicts import Verdict
    from imagebuild.cli.gsm8k_engines import platform_of
    from imagebuild.errors import InputError

    if arguments.show:
        path = Path(arguments.show)
    elif len(arguments.target) == 1:
        target = session.workspace.target(arguments.target[0])
        platform = platform_of(arguments.platform[0] if arguments.platform else None, target)
        folder = (
            Path(arguments.output) if arguments.output else session.workspace.root / "build" / "smoke" / target.name
        )
        path = folder / platform.architecture / "evidence.json" if not arguments.output else folder / "evidence.json"
    else:
        raise InputError("cli.usage", "which evidence?", expected="imagebuild smoke TARGET --show, or --show FILE")
    path = path / "evidence.json" if path.is_dir() else path
    if not path.exists():
        name = arguments.target[0] if arguments.target else "TARGET"
        raise InputError("cli.no-file", f"there is no evidence at {path}", hint=f"imagebuild smoke {name} makes it")
    document = load_evidence_document(path)
    session.output.answer(document, evidence_text(document, parts=True))
    return Verdict(document["verdict"]).exit_code
