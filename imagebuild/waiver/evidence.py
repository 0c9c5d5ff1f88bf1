"""Evidence on record beside a target: in-toto test results, read for what they say and no further.

`manifests/TARGET/evidence/` may hold statements of `https://in-toto.io/attestation/test-result/v0.1` (bare, in a
DSSE envelope or in a Sigstore bundle) in files `*.json` at any depth.  Anything else there is counted as other and claims nothing.
Signatures are not checked here: a waiver names the evidence, a release's policy decides whose word counts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from imagebuild.attest.predicates.types import TEST_RESULT, TEST_RESULTS
from imagebuild.content.canonical import load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults, refuse_too_many
from imagebuild.errors import ImagebuildError, clean

SIZE_LIMIT = 4 << 20
"""Bytes of one file; a statement is a few kilobytes."""
FILE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class TestRecord:
    """One test result.  `file` is its name for people, `digest` that of its bytes; `subjects` the images that it is of;
    `check` gsm8k, smoke or other; `result` PASSED, WARNED or FAILED; `tests` what passed and failed, by name;
    `configuration` the digests of what it was run with (the content id among them); `raw` names and digests of the files
    that it rests on."""

    __test__ = False

    file: str
    digest: Digest
    subjects: frozenset[Digest]
    check: str
    result: str
    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    configuration: frozenset[Digest] = frozenset()
    raw: tuple[tuple[str, Digest], ...] = ()

    def of(self, digests: Collection[Digest]) -> bool:
        """Whether it speaks of one of these images (or content ids)."""
        return bool((self.subjects | self.configuration) & set(digests))


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is on record for one target: `records`, and the names of files that are no test result."""

    records: tuple[TestRecord, ...] = ()
    other: tuple[str, ...] = ()

    def about(self, digests: Collection[Digest], *checks: str) -> tuple[TestRecord, ...]:
        """The records of these images, of these checks (all where none is named)."""
        return tuple(r for r in self.records if r.subjects & set(digests) and (not checks or r.check in checks))


class EvidenceSource(Protocol):
    """Where evidence comes from; a folder today, a registry or a release's own store behind the same call."""

    def __call__(self, target: str) -> Evidence: ...


def load_evidence(folder: Path, shown: str) -> Evidence:
    """The evidence below `folder`, named `shown` for people.  A folder that is not there holds none; a file that cannot
    be understood is other evidence, never a fault.  Raises UnavailableError `content.io` where reading
    fails, InputError `content.too-many-files`."""
    records: list[TestRecord] = []
    other: list[str] = []
    for name, data in json_files(folder, shown, SIZE_LIMIT):
        record = None if data is None else parse_record(data, name)
        if record is None:
            other.append(name)
        else:
            records.append(record)
    return Evidence(tuple(records), tuple(other))


def json_files(folder: Path, shown: str, size_limit: int) -> Iterator[tuple[str, bytes | None]]:
    """The JSON files below `folder` in the order of their names, each by its name for people and with its bytes; None for one
    of more than `size_limit` bytes.  A folder that is not there holds none.  Raises UnavailableError `content.io`,
    InputError `content.too-many-files` above FILE_LIMIT."""
    if not folder.is_dir():
        return
    with io_faults(folder, "reading"):
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))
    refuse_too_many(folder, len(names), FILE_LIMIT)
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        with io_faults(path, "reading"), path.open("rb") as stream:
            data = stream.read(size_limit + 1)
        yield f"{shown}/{name}", data if len(data) <= size_limit else None


def parse_record(data: bytes, file: str) -> TestRecord | None:
    """The test result that a file holds, None where it holds none."""
    try:
        value = load_json(data, file)
        if isinstance(value, dict) and isinstance(value.get("dsseEnvelope"), dict):
            value = value["dsseEnvelope"]
        if isinstance(value, dict) and isinstance(value.get("payload"), str):
            value = load_json(base64.b64decode(value["payload"], validate=True), file)
    except (ImagebuildError, binascii.Error, ValueError):
        return None
    if not isinstance(value, dict) or value.get("predicateType") != TEST_RESULT:
        return None
    predicate = value.get("predicate")
    if not isinstance(predicate, dict) or predicate.get("result") not in TEST_RESULTS:
        return None
    subjects = _digests(value.get("subject"))
    if not subjects:
        return None
    passed, failed = _names(predicate.get("passedTests")), _names(predicate.get("failedTests"))
    descriptors = _list(predicate.get("configuration"))
    words = [
        file.rpartition("/evidence/")[2],
        *passed,
        *failed,
        *(str(_dict(one).get("name", "")) for one in descriptors),
    ]
    # the check says its own name where we made the result; others are told by the names in it
    own = predicate.get("check")
    if isinstance(own, str):
        words = [own]
    check = next((kind for kind in ("gsm8k", "smoke") if any(kind in word.lower() for word in words)), "other")
    return TestRecord(
        file,
        Digest.of(data),
        subjects,
        check,
        predicate["result"],
        passed,
        failed,
        _digests(predicate.get("configuration")),
        tuple(
            (str(_dict(one).get("name", "")), d) for one in _list(predicate.get("evidence")) for d in _digests([one])
        ),
    )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(value: Any) -> tuple[str, ...]:
    return tuple(clean(item, 200) for item in _list(value) if isinstance(item, str))


def _digests(value: Any) -> frozenset[Digest]:
    out = set()
    for item in _list(value):
        text = _dict(_dict(item).get("digest")).get("sha256")
        try:
            out.add(Digest.parse(f"sha256:{text}"))
        except ImagebuildError:
            continue
    return frozenset(out)
