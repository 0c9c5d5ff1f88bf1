"""From a waiver's number to everything that its pages state."""

from __future__ import annotations

import re

from imagebuild.content.store import CompressedStore
from imagebuild.errors import InputError
from imagebuild.overlay.document import PatchChange
from imagebuild.overlay.members import read_member
from imagebuild.target.workspace import Workspace
from imagebuild.waiver.document import Waiver, load_waiver
from imagebuild.waiver.evidence import load_evidence
from imagebuild.waiver.facts import TargetFacts, load_facts
from imagebuild.waiver.render import WaiverFacts


def waiver_numbers(workspace: Workspace) -> tuple[int, ...]:
    """Numbers of the waivers that the workspace holds, ascending."""
    folder = workspace.waivers
    names = [path.stem for path in folder.glob("*.yaml")] if folder.is_dir() else []
    return tuple(sorted(int(name) for name in names if name.isdecimal() and name.isascii()))


def load_numbered(workspace: Workspace, number: int) -> Waiver:
    """Raises InputError `waiver.unknown`, and what load_waiver raises."""
    path = workspace.waiver_path(number)
    if not path.is_file():
        known = ", ".join(map(str, waiver_numbers(workspace)))
        raise InputError(
            "waiver.unknown",
            f"there is no waiver {number}",
            expected=known or f"none is in {workspace.waivers} yet",
            found=str(number),
            hint=f"imagebuild waiver new {number} --target TARGET",
        )
    return load_waiver(path)


def gather(workspace: Workspace, number: int) -> WaiverFacts:
    """The waiver, the facts of its targets and the evidence on record.  Raises what loading these raises: `waiver.unknown`,
    `lock.missing`, `lock.stale` among it."""
    waiver = load_numbered(workspace, number)
    targets = tuple(load_facts(workspace, name, waiver.notes) for name in waiver.targets)
    evidence = {}
    variables = {}
    for facts in targets:
        variables[facts.name] = registered_variables(facts, CompressedStore(workspace.content_path(facts.name)))
        folder = facts.target.folder / "evidence"
        evidence[facts.name] = load_evidence(folder, workspace.shown(folder))
    return WaiverFacts(waiver, targets, evidence, variables)


_REGISTERED = re.compile(rb"""["']([A-Z][A-Z0-9]*_[A-Z0-9_]+)["']\s*:""")
_ADDED = re.compile(rb"""^\+.*?["']([A-Z][A-Z0-9]*_[A-Z0-9_]+)["']\s*:""", re.MULTILINE)


def registered_variables(facts: TargetFacts, store: CompressedStore) -> frozenset[str]:
    """Names of the variables that the image's `envs.py` files register: those of the base's file, which the lock keeps where
    it is patched, and those that a patch of the series adds.  Empty where no such file is kept."""
    found: set[bytes] = set()
    for platform in facts.lock.inputs.platforms:
        for fact in platform.facts:
            if fact.change.endswith("/envs.py") and fact.sha256 is not None:
                data = store.get(fact.sha256)
                found |= set(_REGISTERED.findall(data)) if data is not None else set()
    if not found:
        return frozenset()
    for overlay in facts.overlays:
        for change in overlay.changes:
            if isinstance(change, PatchChange):
                found |= set(_ADDED.findall(read_member(overlay, change.patch)))
    return frozenset(name.decode() for name in found)
