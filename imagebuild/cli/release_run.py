"""Bring a target from its lock to a signed, published release.

In order: lock, build, reproduce, smoke, GSM8K, SBOM and provenance, signatures, waiver (where the policy asks for one),
policy, push, tags, release manifest.  The journal build/release/TARGET/steps.json remembers what is finished; running again does
nothing, and after an interruption the same command ends with the same release.  --dry-run says what would run and why.

Examples:
  imagebuild release demo --key release.key
  imagebuild release b300-vllm --push --policy policy.yaml --key release.key
  imagebuild release b300-vllm --push --key release.key --dry-run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.release.pipeline import ReleaseAccount
    from imagebuild.release.request import LoadedPolicy, ReleaseRequest, Tools


def configure(parser: argparse.ArgumentParser) -> None:
    from imagebuild.cli.evidence_places import add_key_option

    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--push", action="store_true", help="publish under the tags of target.yaml")
    parser.add_argument("--policy", metavar="FILE", help="what it must show (default: policy.yaml of the workspace)")
    add_key_option(parser, required=False)
    parser.add_argument("--passphrase-file", metavar="FILE", help="its first line opens the key")
    parser.add_argument(
        "--to", metavar="REPOSITORY", help="publish there, under the same tags, with the signatures beside it"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would run and why; change nothing")
    parser.add_argument(
        "--runner", metavar="NAME", help="what starts containers for smoke and GSM8K (default: the site's)"
    )
    parser.add_argument("--site", metavar="NAME", help="a site of sites.yaml, for smoke and GSM8K")
    parser.add_argument("--data", metavar="PATH", help="folder with GSM8K's test.jsonl and train.jsonl")
    parser.add_argument("--builder-id", metavar="URI", help="builder.id of the provenance")
    parser.add_argument("--force", action="store_true", help="move a tag that points at another image")
    parser.add_argument(
        "--allow-base-transfer",
        action="store_true",
        help="stream base layers through here where a registry will not mount them",
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.errors import InputError
    from imagebuild.release.pipeline import plan_release, run_release

    if arguments.key is None and not arguments.dry_run:
        raise InputError(
            "cli.usage", "a release is signed", expected="--key KEY", hint="imagebuild keygen makes a pair"
        )
    request, tools = prepare(arguments, session)
    account = (plan_release if arguments.dry_run else run_release)(request, tools)
    for warning in account.warnings:
        session.output.warn(warning)
    session.output.answer(account.to_json(), account_text(account))
    return 0


def prepare(arguments: argparse.Namespace, session: Session) -> tuple[ReleaseRequest, Tools]:
    """What is asked and what it is done with.  Raises RefusedError `lock.missing`, `lock.stale`."""
    from imagebuild.attest.predicates.provenance import LOCAL_BUILDER
    from imagebuild.cli.evidence_places import signer_of
    from imagebuild.cli.release_checks import checks_here
    from imagebuild.cli.targets import artefacts_of, contents_of, current_lock, facts_of, load_target_and_series
    from imagebuild.content.digest import Digest
    from imagebuild.host.clock import now
    from imagebuild.oci.reference import parse_repository
    from imagebuild.release.request import ReleaseRequest, Tools

    name = arguments.target
    loaded = load_target_and_series(session, name)
    lock = current_lock(session, loaded)
    target = loaded.target
    opener = session.opener(session.workspace.root)
    elsewhere = None if arguments.to is None else parse_repository(arguments.to)
    published = target.publish.repository if target.publish is not None else None
    request = ReleaseRequest(
        target,
        loaded.overlays,
        lock,
        Digest.of(session.workspace.lock_path(name).read_bytes()),
        None if arguments.key is None else signer_of(arguments),
        policy_of(arguments.policy, session),
        elsewhere or published,
        arguments.push,
        now(),
        force=arguments.force,
        builder=arguments.builder_id or LOCAL_BUILDER,
        attestations=None if elsewhere is not None else target.attestations_repository,
        public_key=public_key_of(arguments.key, session),
    )
    tools = Tools(
        session.workspace,
        opener,
        contents_of(session, name),
        facts_of(session),
        artefacts_of(session, opener),
        session.emitter,
        checks_here(request, arguments, session),
    )
    return request, tools


def public_key_of(key: str | None, session: Session) -> str:
    """The file beside `NAME.key` that keygen made with it; a name to be filled in where there is none."""
    if key is not None and key.endswith(".key"):
        public = Path(f"{key.removesuffix('.key')}.pub")
        if public.is_file():
            return session.workspace.shown(public.resolve())
    return "KEY.pub"


def policy_of(named: str | None, session: Session) -> LoadedPolicy | None:
    """The named policy, else the workspace's, else none."""
    from imagebuild.release.request import read_policy

    if named is not None:
        return read_policy(Path(named))
    path = session.workspace.policy_path
    return read_policy(path) if path.is_file() else None


def account_text(account: ReleaseAccount) -> str:
    """A line a step; the pinned reference last."""
    from imagebuild.content.text import table

    rows = [[report.step, str(report.decision.action), report.decision.reason] for report in account.steps]
    lines = [table(rows, ["step", "does" if account.planned else "did", "why"])]
    summary = account.summary
    if summary:
        lines.append(f"release {summary['counter']} of {account.target}: {summary['manifest']}")
        lines.append(f"verify: {summary['verify']}")
    elif account.planned:
        lines.append("nothing would run" if not account.changed else "nothing was done: this is what would be")
    return "\n".join([*lines, account.reference])
