"""Evidence that was made elsewhere, taken over into manifests/TARGET/evidence/imported.

Ours is taken only with its signature checked, by a key of the policy.  Result files of others (InferenceX's artefacts,
lm-eval's own) have no signature: they are marked so, and taken only where the policy allows unsigned evidence.  Whatever is
taken is of this very image, or of the unmodified base; `index.json` says where each came from and who signed it.  Nothing is
written unless all of it can be taken.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.attest.bundle import BUNDLE_TYPE
from imagebuild.content.canonical import load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_file, atomic_write, io_faults, refuse_too_many
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors
from imagebuild.release.evidence import (
    UNSIGNED,
    CheckEvidence,
    EvidenceFile,
    bare_evidence,
    read_evidence_file,
    verify_evidence_file,
)
from imagebuild.release.request import LoadedPolicy
from imagebuild.release.results import find_runs, run_files, run_statement
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Lock

FOLDER = "imported"
INDEX = "index.json"
FILE_LIMIT = 5000
RAW_LIMIT = 64 << 20
"""Bytes of one file that a statement names as its evidence and that is taken along."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Which folder, for which locked target, by which policy.  `image` and `concurrency` belong to result files of others:
    the digest that was served where they do not say it, and which run of several is meant; `now` in seconds since 1970."""

    folder: Path
    target: Target
    lock: Lock
    policy: LoadedPolicy
    now: int
    image: Digest | None = None
    concurrency: int | None = None

    @property
    def known(self) -> dict[Digest, str]:
        """What evidence may be of: this image's manifests and index, and the unmodified base's."""
        inputs, result = self.lock.inputs, self.lock.result
        out = {inputs.base_digest: "the unmodified base"}
        out |= {p.manifest: f"the unmodified base, {p.platform}" for p in inputs.platforms}
        out |= {p.manifest: str(p.platform) for p in result.platforms}
        out[result.digest] = out.get(result.digest, "index")
        return out


@dataclass(frozen=True, slots=True)
class ImportedEvidence:
    """One entry of the index: the copied statement, where it came from, its digest, who signed it (nobody: unsigned)."""

    file: str
    source: str
    digest: Digest
    check: str
    verdict: str
    subjects: tuple[str, ...]
    signed_by: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "from": self.source,
            "digest": str(self.digest),
            "check": self.check,
            "verdict": self.verdict,
            "subjects": list(self.subjects),
            "signed": bool(self.signed_by),
            "signed_by": list(self.signed_by),
            "files": dict(sorted(self.files.items())),
        }


@dataclass(frozen=True, slots=True)
class _Taken:
    """What will be written: the statement's bytes under a name, and raw files to be copied beside it."""

    entry: ImportedEvidence
    statement: bytes
    raw: Mapping[str, Path]


def import_evidence(request: ImportRequest) -> list[ImportedEvidence]:
    """Takes over everything below the folder; what was taken.

    Raises InputError `release.no-evidence`, `release.no-image`, `content.too-many-files`; RefusedError `release.unsigned-evidence`, `release.other-image`,
    `attest.bad-signature`; what reading result files raises; SeveralErrors of these.  An equal import again changes nothing.
    """
    if not request.folder.is_dir():
        raise InputError("release.no-evidence", f"{request.folder} is not a folder", expected="a folder with evidence")
    taken, errors = _collect(request)
    if errors:
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
    if not taken:
        raise InputError(
            "release.no-evidence",
            f"{request.folder} holds no evidence",
            expected="signed statements of checks, or result files of GSM8K (results_*.json with samples_*.jsonl)",
        )
    top = request.target.folder / "evidence" / FOLDER
    for item in taken:
        _write(top, item)
    _enter(top / INDEX, [item.entry for item in taken])
    return [item.entry for item in taken]


def _collect(request: ImportRequest) -> tuple[list[_Taken], list[ImagebuildError]]:
    taken: dict[Digest, _Taken] = {}
    errors: list[ImagebuildError] = []
    bare: list[EvidenceFile] = []
    with io_faults(request.folder, "reading"):
        paths = sorted(path for path in request.folder.rglob("*") if path.is_file() and not path.is_symlink())
    refuse_too_many(request.folder, len(paths), FILE_LIMIT)
    for path in paths:
        file = read_evidence_file(path) if path.suffix == ".json" else None
        if file is None:
            continue
        if file.envelope is None:
            bare.append(file)
            continue
        try:
            found = verify_evidence_file(file, request.policy.keys)
            if found is not None:
                taken[found.digest] = _signed(request, file, found, paths)
        except ImagebuildError as error:
            errors.append(error)
    covered = {digest for item in taken.values() for digest in item.entry.files.values()}
    for file in bare:
        try:
            said = bare_evidence(file, UNSIGNED)
            if said is not None and taken.keys().isdisjoint({said.digest, Digest.of(file.raw)}):
                verify_evidence_file(file, request.policy.keys)
        except ImagebuildError as error:
            errors.append(error)
    for folder in find_runs(request.folder):
        try:
            item = _unsigned(request, folder, covered)
        except ImagebuildError as error:
            errors.append(error)
        else:
            if item is not None:
                taken[item.entry.digest] = item
    return list(taken.values()), errors


def _subjects(request: ImportRequest, found: CheckEvidence) -> tuple[str, ...]:
    known = request.known
    named = [digest for digest in known if found.statement.names(digest)]
    if not named:
        raise RefusedError(
            "release.other-image",
            f"{found.file} is of another image than {request.target.name} and its base",
            expected=", ".join(f"{digest} ({name})" for digest, name in known.items()),
            found=", ".join(str(item.digest) for item in found.statement.subjects[:5]),
            hint="evidence is never reused for other content: run the check on this image",
        )
    return tuple(str(digest) for digest in named)


def _signed(request: ImportRequest, file: EvidenceFile, found: CheckEvidence, paths: Sequence[Path]) -> _Taken:
    subjects = _subjects(request, found)
    folder = f"{found.check}-{found.digest.short(12)}"
    kind = "sigstore.json" if BUNDLE_TYPE.encode() in file.raw else "dsse.json"
    raw = _named_files(found, paths)
    entry = ImportedEvidence(
        f"{folder}/statement.{kind}",
        _source(request, file.path),
        found.digest,
        found.check,
        found.verdict,
        subjects,
        tuple(str(key) for key in found.keys),
        {f"{folder}/{name}": str(_digest_of(path)) for name, path in raw.items()},
    )
    return _Taken(entry, file.raw, {f"{folder}/{name}": path for name, path in raw.items()})


def _named_files(found: CheckEvidence, paths: Sequence[Path]) -> dict[str, Path]:
    """Files of the folder that the statement names as its evidence, by their digest."""
    listed = found.statement.value.get("evidence")
    wanted = {}
    for item in listed if isinstance(listed, list) else ():
        digest = item.get("digest", {}).get("sha256") if isinstance(item, dict) else None
        if isinstance(digest, str):
            wanted[f"sha256:{digest}"] = _file_name(str(item.get("name", "")))
    out: dict[str, Path] = {}
    for path in paths:
        if path.stat().st_size <= RAW_LIMIT and (name := wanted.pop(str(_digest_of(path)), None)) is not None:
            out[name if name not in out else f"{len(out)}-{name}"] = path
        if not wanted:
            break
    return out


def _file_name(name: str) -> str:
    """A resource's name (`on/meta_env.json`) as that of one file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "evidence"


def _digest_of(path: Path) -> Digest:
    with io_faults(path, "reading"):
        return Digest.of(path.read_bytes())


def _source(request: ImportRequest, path: Path) -> str:
    return f"{request.folder.name}/{path.relative_to(request.folder)}"


def _unsigned(request: ImportRequest, folder: Path, covered: set[str]) -> _Taken | None:
    """A run's result files; None where a signed statement in the folder names them already."""
    if {str(_digest_of(path)) for path in run_files(folder)} <= covered:
        return None
    made = run_statement(folder, request.target, request.lock, request.now, request.image, request.concurrency)
    if request.policy.policy.unsigned_evidence != "allow":
        raise RefusedError(
            "release.unsigned-evidence",
            f"{folder} holds results that nobody signed",
            expected="a policy with `unsigned_evidence: allow`, or a signed statement of the check",
            found=f"{request.policy.path} refuses them",
        )
    name = f"gsm8k-{Digest.of(json.dumps(made.files, sort_keys=True).encode()).short(12)}"
    entry = ImportedEvidence(
        f"{name}/statement.json",
        _source(request, folder),
        Digest.of(made.payload),
        "gsm8k",
        made.verdict,
        (str(made.image),),
        (),
        {f"{name}/{file}": digest for file, digest in made.files.items()},
    )
    return _Taken(entry, made.payload, {f"{name}/{file}": path for file, path in made.paths.items()})


def _write(top: Path, item: _Taken) -> None:
    statement = top / item.entry.file
    if not item.entry.signed_by and statement.is_file():
        # the same files were taken before, at another time: that statement stands
        return
    for name, path in item.raw.items():
        if (top / name).is_file() and str(_digest_of(top / name)) == item.entry.files[name]:
            continue
        with open(path, "rb") as stream, atomic_file(top / name) as out:
            shutil.copyfileobj(stream, out, 1 << 20)
    statement.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(statement, item.statement)


def _enter(path: Path, entries: Sequence[ImportedEvidence]) -> None:
    known: dict[str, Any] = {}
    if path.is_file():
        with io_faults(path, "reading"):
            value = load_json(path.read_bytes(), str(path))
        listed = value.get("entries") if isinstance(value, dict) else None
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, dict) and isinstance(item.get("file"), str):
                known[item["file"]] = item
    for entry in entries:
        if entry.signed_by or entry.file not in known:
            known[entry.file] = entry.to_json()
    value = {"schemaVersion": 1, "entries": [known[file] for file in sorted(known)]}
    atomic_write(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")
