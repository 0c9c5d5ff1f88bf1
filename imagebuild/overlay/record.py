"""Editing RECORD files so that they stay true of a patched distribution (images.md, Writing the layers, 8)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data
from imagebuild.overlay.contents import is_below, nearest_of
from imagebuild.overlay.distributions import Distribution, Distributions
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.record_rows import RecordRow, format_path, image_path, record_rows, replace_fields, row_path

PROVENANCE_NAME = "imagebuild.json"
"""Our file in the dist-info of each patched distribution; its row has no hash, since its bytes depend on the RECORD."""
SBOM_NAME = "sboms/imagebuild.cdx.json"
"""Our SBOM in the dist-info of each patched distribution (PEP 770)."""

_ALGORITHMS = frozenset(hashlib.algorithms_guaranteed) - {"shake_128", "shake_256"}


@dataclass(frozen=True, slots=True)
class RecordEdits:
    """What changed, by resolved image path.

    `written`: files that a row may list and whose bytes are new; None for a link, whose row then has no hash.  `removed`: files and
    folders that are gone, whited-out bytecode among them.  `added`: files that get a row if they have none; None for a row
    without hash.
    """

    written: Mapping[str, Data | None] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    added: Mapping[str, Data | None] = field(default_factory=dict)


def hash_field(data: Data, algorithm: str = "sha256") -> str:
    """`ALGORITHM=DIGEST`, urlsafe base64 without padding (Recording installed projects, after PEP 427)."""
    if algorithm == "sha256":
        raw = bytes.fromhex(data.sha256.hex)
    else:
        hasher = hashlib.new(algorithm, usedforsecurity=False)
        with data.open() as stream:
            while part := stream.read(1 << 20):
                hasher.update(part)
        raw = hasher.digest()
    return f"{algorithm}={base64.urlsafe_b64encode(raw).rstrip(b'=').decode('ascii')}"


def _refreshed(row: RecordRow, data: Data | None) -> bytes:
    """A row of a file with new bytes.  What the row does not claim (no hash, no size) it does not claim afterwards."""
    algorithm = row.hash.partition("=")[0]
    if not row.hash and not row.size:
        return row.raw
    if data is None:
        return replace_fields(row, ("", ""))
    if row.hash and algorithm not in _ALGORITHMS:
        raise RefusedError(
            "overlay.record-algorithm",
            f"RECORD lists {row.path} with a hash that cannot be made anew",
            expected="an algorithm of Python's hashlib, such as sha256=",
            found=row.hash[:80],
            hint="set `derived: {record: keep}` in target.yaml to leave the RECORD as it is",
        )
    return replace_fields(row, (hash_field(data, algorithm) if row.hash else "", str(data.size) if row.size else ""))


def edit_record(data: bytes, edits: RecordEdits, site: str, paths: Mapping[str, str] | None = None) -> bytes:
    """The RECORD with its rows edited; rows that no edit concerns stay the same bytes, in the same order.

    `site` is the folder that the rows are relative to; `paths` gives the image path of a row (by the row's path as
    written) where links make it another than the text says.  A row of a written file gets its new hash (by the row's own algorithm)
    and size; rows of removed files go; an added file without a row gets one after the last row of its folder, or of
    the nearest folder above that has rows.  Line endings are kept, a new row takes that of the row before it.  No row is ever added for a .pyc.

    Raises RefusedError `overlay.record-malformed`, `overlay.record-algorithm`.
    """
    known = paths or {}
    rows: list[tuple[str, bytes, bytes]] = []
    listed: set[str] = set()
    for row in record_rows(data):
        path = known.get(row.path) or (image_path(site, row.path) if row.path else "")
        if path and is_below(path, edits.removed) and path not in edits.written and path not in edits.added:
            continue
        raw = row.raw
        if path in edits.written:
            raw = _refreshed(row, edits.written[path])
        elif path in edits.added:
            raw = _refreshed(row, edits.added[path])
        listed.add(path)
        rows.append((path, raw, row.ending))
    for path in sorted(edits.added, key=lambda item: item.encode("utf-8", "surrogateescape")):
        if path not in listed and not path.endswith(".pyc"):
            _insert(rows, path, edits.added[path], site)
    return b"".join(raw + ending for _, raw, ending in rows)


def _insert(rows: list[tuple[str, bytes, bytes]], path: str, data: Data | None, site: str) -> None:
    claim = b",," if data is None else f",{hash_field(data)},{data.size}".encode("ascii")
    raw = format_path(row_path(site, path)) + claim
    if not rows:
        rows.append((path, raw, b"\n"))
        return
    at = _place(rows, path)
    before, text, ending = rows[at]
    if not ending:
        common = rows[at - 1][2] if at else b"\n"
        rows[at] = (before, text, common)
    rows.insert(at + 1, (path, raw, ending))


def _place(rows: list[tuple[str, bytes, bytes]], path: str) -> int:
    """The index of the row after which a new path goes."""
    folder = path.rpartition("/")[0]
    last = -1
    for index, (other, _, _) in enumerate(rows):
        if other and other.rpartition("/")[0] == folder:
            last = index
    while last < 0 and folder:
        for index, (other, _, _) in enumerate(rows):
            if other.startswith(folder + "/"):
                last = index
        folder = folder.rpartition("/")[0]
    return last if last >= 0 else len(rows) - 1


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One RECORD to edit: the distribution, and what `edit_record` is to be given for it."""

    distribution: Distribution
    path: str
    edits: RecordEdits

    def apply(self, data: bytes) -> bytes:
        """The new bytes of this RECORD.  Raises as `edit_record`."""
        paths = {row.path: path for path, row in self.distribution.rows.items()}
        return edit_record(data, self.edits, self.distribution.site, paths)


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """`patched`: every distribution that owns something that changed (each gets a provenance file); `changes`: the RECORDs to edit; `findings`:
    what is left as it is, and why; `not_proven`: RECORDs that could not be read; `touched`: by metadata folder, the paths of
    the asked changes that concern each patched distribution."""

    patched: tuple[Distribution, ...]
    changes: tuple[RecordChange, ...]
    findings: tuple[Finding, ...]
    not_proven: tuple[str, ...]
    touched: Mapping[str, frozenset[str]] = field(default_factory=dict)


Describe = Callable[[Distribution, frozenset[str]], Mapping[str, Data | None]]
"""Our own files in the dist-info of a patched distribution, by name below it, from the paths that concern it; None for one
whose row has no hash."""


def _provenance_only(_item: Distribution, _touched: frozenset[str]) -> Mapping[str, Data | None]:
    return {PROVENANCE_NAME: None}


def record_edits(
    distributions: Distributions,
    *,
    written: Mapping[str, Data | None],
    removed: Collection[str],
    added: Mapping[str, Data | None],
    keep: bool = False,
    describe: Describe = _provenance_only,
) -> RecordPlan:
    """Which RECORDs follow from a set of changes, all paths resolved.

    `written` replaces files of the base, `removed` are deleted files and folders and whited-out bytecode, `added` files that the base
    does not have.  A path listed by two RECORDs changes both, by none: none.  An added file belongs to the distribution that lists something in
    the nearest folder above it, below the site folder; where several do, to none (a shared namespace folder).
    With `keep` (`derived: {record: keep}`) nothing changes and a finding says which RECORD is no longer true.

    An editable installation is patched where a file of its project is, though its RECORD lists none of them.
    Each changed distribution gets rows for the files that `describe` names too.
    Raises RefusedError `overlay.record-signed` where a RECORD to change has a signature.
    """
    chosen: dict[str, tuple[dict[str, Data | None], set[str], dict[str, Data | None]]] = {}
    touched: dict[str, set[str]] = {}
    findings: list[Finding] = []
    gone = frozenset(removed)

    def of(item: Distribution, path: str) -> tuple[dict[str, Data | None], set[str], dict[str, Data | None]]:
        touched.setdefault(item.info, set()).add(path)
        return chosen.setdefault(item.info, ({}, set(), {}))

    for path, data in written.items():
        for item in distributions.owners(path):
            of(item, path)[0][path] = data
    if gone:
        for item in distributions.items:
            for path in item.rows:
                above = nearest_of(path, gone)
                if above is not None:
                    of(item, above)[1].add(path)
    for path, data in added.items():
        if distributions.owners(path):
            for item in distributions.owners(path):
                of(item, path)[0][path] = data
            continue
        holders = _holders(distributions, path)
        if len(holders) == 1 and not path.endswith(".pyc"):
            of(holders[0], path)[2][path] = data
        elif len(holders) > 1:
            names = ", ".join(item.name for item in holders)
            findings.append(
                Finding(
                    "overlay.record-shared-folder", Severity.NOTE, path, f"its folder belongs to {names}: in no RECORD"
                )
            )
    for path in (*written, *gone, *added):
        project = _project(distributions, path)
        if project is not None:
            of(project, path)
    patched = tuple(item for item in distributions.items if item.info in chosen)
    changes = []
    for item in patched:
        assert item.record is not None
        if keep:
            message = f"left as it is (derived: record: keep), no longer true of the changed files of {item.name}"
            findings.append(Finding("overlay.record-kept", Severity.WARNING, item.record, message))
            continue
        _refuse_signed(item)
        own, lost, new = chosen[item.info]
        for name, data in describe(item, frozenset(touched[item.info])).items():
            new.setdefault(f"{item.info}/{name}", data)
        changes.append(RecordChange(item, item.record, RecordEdits(own, frozenset(lost), new)))
    unread = tuple(
        f"which files {item.label} owns: /{item.record} was not read"
        for item in distributions.items
        if item.record is not None and item.record in item.unread
    )
    concerned = {info: frozenset(paths) for info, paths in touched.items()}
    return RecordPlan(patched, tuple(changes), tuple(findings), unread, concerned)


def _holders(distributions: Distributions, path: str) -> tuple[Distribution, ...]:
    """The distributions with rows at or below the nearest folder above `path` that has any, below their site folder."""
    folder = path.rpartition("/")[0]
    while folder:
        holders = tuple(
            item
            for item in distributions.folder_owners(folder)
            if folder.startswith(item.site + "/" if item.site else "")
        )
        if holders:
            return holders
        folder = folder.rpartition("/")[0]
    return ()


def _project(distributions: Distributions, path: str) -> Distribution | None:
    """The editable installation whose project folder is the nearest one above `path`."""
    above = [
        item
        for item in distributions.items
        if item.editable and item.record is not None and path.startswith(item.editable + "/")
    ]
    return max(above, key=lambda item: len(item.editable or ""), default=None)


def _refuse_signed(item: Distribution) -> None:
    if item.signatures:
        raise RefusedError(
            "overlay.record-signed",
            f"{item.label} has a signed RECORD: an edit would break the signature",
            expected="no RECORD.jws and no RECORD.p7s",
            found=", ".join("/" + path for path in item.signatures),
            hint="set `derived: {record: keep}` in target.yaml to leave RECORD and signature as they are",
        )
