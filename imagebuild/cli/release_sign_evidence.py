"""Sign what checks left on this machine, so that a release elsewhere can import it.

Writes NAME.dsse.json beside every bare statement below DIR.

Example:
  imagebuild release sign-evidence build/smoke/b300-vllm --key tester.key
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    from imagebuild.cli.evidence_places import add_key_option

    parser.add_argument("folder", metavar="DIR", help="the folder with statements")
    add_key_option(parser, required=True)
    parser.add_argument("--passphrase-file", metavar="FILE", help="its first line opens the key")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.evidence_places import signer_of
    from imagebuild.release.signing import sign_evidence

    signer = signer_of(arguments)
    paths = [str(path) for path in sign_evidence(Path(arguments.folder), signer)]
    document = {
        "kind": "signed-evidence",
        "schemaVersion": 1,
        "key": signer.public_key.fingerprint,
        "paths": paths,
    }
    session.output.answer(document, "\n".join(paths))
    return 0
