"""Take over evidence of checks that ran on another machine.

Signed statements (DSSE envelopes, Sigstore bundles) are taken where a key of the policy signed them; result files of GSM8K
that nobody signed (InferenceX's artefacts) only where the policy says `unsigned_evidence: allow`, and they stay marked so.
Everything must be of this target's image or of its unmodified base.

Examples:
  imagebuild release import-evidence ./from-the-cluster --target b300-vllm
  imagebuild release import-evidence ./artefact --target b300-vllm --policy lenient.yaml --image sha256:…
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder with the evidence")
    parser.add_argument("--target", metavar="TARGET", required=True, help="the target that it is of")
    parser.add_argument(
        "--policy", metavar="FILE", help="whose signatures count (default: policy.yaml of the workspace)"
    )
    parser.add_argument(
        "--image", metavar="DIGEST", help="the image that result files are of, where they do not say it"
    )
    parser.add_argument("--concurrency", type=int, metavar="N", help="which of several runs in one folder is meant")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.release_run import policy_of
    from imagebuild.cli.targets import current_lock, load_target_and_series
    from imagebuild.content.digest import Digest
    from imagebuild.errors import InputError
    from imagebuild.host.clock import now
    from imagebuild.release.importing import FOLDER, INDEX, ImportRequest, import_evidence

    loaded = load_target_and_series(session, arguments.target)
    policy = policy_of(arguments.policy, session)
    if policy is None:
        raise InputError(
            "release.no-policy",
            "evidence is taken on somebody's word, and no policy says on whose",
            expected=f"--policy FILE, or {session.workspace.policy_path}",
        )
    entries = import_evidence(
        ImportRequest(
            Path(arguments.folder),
            loaded.target,
            current_lock(session, loaded),
            policy,
            now(),
            None if arguments.image is None else Digest.parse(arguments.image),
            arguments.concurrency,
        )
    )
    index = session.workspace.shown(loaded.target.folder / "evidence" / FOLDER / INDEX)
    document = {
        "kind": "imported-evidence",
        "schemaVersion": 1,
        "target": arguments.target,
        "index": index,
        "entries": [entry.to_json() for entry in entries],
    }
    lines = [
        f"{entry.check} {entry.verdict}: {entry.source}, "
        + (f"signed by {', '.join(entry.signed_by)}" if entry.signed_by else "UNSIGNED")
        for entry in entries
    ]
    session.output.answer(document, "\n".join([*lines, index]))
    return 0
