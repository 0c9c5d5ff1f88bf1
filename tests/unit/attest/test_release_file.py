"""The signed release file: read with the keys alone, never rewritten without need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from places import stored

from imagebuild.attest.dsse import sign_payload
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.types import RELEASE
from imagebuild.attest.release_file import load_release, read_release, release_checks, store_release
from imagebuild.attest.statement import Statement, Subject
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError

ONE = Digest.of(b"one")


def release(counter: int = 1, **changes: Any) -> Statement:
    return Statement.about(ONE, RELEASE, {"target": "t", "counter": counter, **changes})


def test_what_was_stored_is_read_with_the_public_key_alone(tmp_path: Path, signer: KeySigner, other: KeySigner) -> None:
    path = tmp_path / "release.dsse.json"
    assert store_release(path, release(), signer)
    found = load_release(path, [other.public_key, signer.public_key])
    assert found.statement.value == {"target": "t", "counter": 1}
    assert found.keys == {signer.public_key}
    with pytest.raises(RefusedError) as caught:
        load_release(path, [other.public_key])
    assert caught.value.code == "attest.bad-signature"


def test_the_same_release_leaves_the_file_as_it_is(tmp_path: Path, signer: KeySigner, other: KeySigner) -> None:
    path = tmp_path / "release.dsse.json"
    store_release(path, release(), signer)
    before = path.read_bytes()
    assert not store_release(path, release(), signer)
    assert path.read_bytes() == before
    assert store_release(path, release(2), signer)
    assert path.read_bytes() != before
    assert store_release(path, release(2), other)
    path.write_text("broken")
    assert store_release(path, release(2), other)


def test_another_statement_is_no_release(signer: KeySigner) -> None:
    statement = Statement.about(ONE, "https://example.com/p", {})
    raw = sign_payload(statement.format(), signer.sign).format()
    with pytest.raises(RefusedError) as caught:
        read_release(raw, [signer.public_key])
    assert caught.value.code == "attest.bad-statement"


def test_an_altered_release_is_refused(tmp_path: Path, signer: KeySigner) -> None:
    path = tmp_path / "release.dsse.json"
    store_release(path, release(5), signer)
    value = json.loads(path.read_bytes())
    value["payload"] = json.loads(sign_payload(release(9).format(), signer.sign).format())["payload"]
    with pytest.raises(RefusedError) as caught:
        read_release(json.dumps(value).encode(), [signer.public_key])
    assert caught.value.code == "attest.bad-signature"


def test_a_release_must_name_every_part_of_the_image(tmp_path: Path, signer: KeySigner) -> None:
    subjects = stored(tmp_path).subjects
    some = Statement(tuple(Subject(s.digest, s.name) for s in subjects[:2]), RELEASE, {})
    raw = sign_payload(some.format(), signer.sign).format()
    checks = release_checks(read_release(raw, [signer.public_key]), subjects)
    assert [check.passed for check in checks] == [True, True, False]
