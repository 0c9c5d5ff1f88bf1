"""A release is killed at every event and at many changes of the file system; the same command then ends with the same release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import EVENTS, FILES, killed_at

from imagebuild.attest.dsse import Envelope
from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.attest.predicates.check_result import check_result
from imagebuild.attest.predicates.types import TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.build.reproduce import Rebuild
from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WORDS = ("release", "tuned", "--key", "k.key")


def said(space: SmallWorkspace) -> tuple[set[bytes], dict[str, Any]]:
    """Every payload in the layout but the release's, and the release statement without its time."""
    payloads = set()
    for path in (space.root / "build" / "tuned" / "blobs" / "sha256").iterdir():
        data = path.read_bytes()
        if b'"dsseEnvelope"' in data:
            payloads.add(Envelope.from_json(json.loads(data)["dsseEnvelope"]).payload)
    release = json.loads(Envelope.parse((space.folder() / "release.dsse.json").read_bytes()).payload)
    release["predicate"].pop("created")
    return {p for p in payloads if b'"counter"' not in p}, release


@pytest.mark.parametrize("kinds", [{EVENTS}, {EVENTS, FILES}], ids=["events", "files"])
def test_release_killed_at_every_moment(
    in_workspace: Callable[..., SmallWorkspace],
    verb: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: set[str],
) -> None:
    monkeypatch.setattr(
        "imagebuild.release.steps_image.reproduce",
        lambda workspace, target, lock, *rest: [Rebuild({"python": "3"}, True, str(lock.result.digest))],
    )
    space = in_workspace(engine_base())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    space.write_target(checks={"smoke": {"steps": ["files"]}})
    assert verb("lock", "tuned", "--complete").code == 0
    store_key_pair(KeySigner.make(), space.root / "k", None)
    image = Digest.parse(space.lock()["result"]["platforms"]["linux/amd64"]["manifest"])
    smoke = check_result("smoke", "passed", configuration={}, evidence={}, finished=1_790_000_000)
    (space.root / "build" / "smoke" / "tuned").mkdir(parents=True)
    (space.root / "build" / "smoke" / "tuned" / "statement.json").write_bytes(
        Statement.about(image, TEST_RESULT, smoke).format()
    )
    shutil.copytree(space.root, tmp_path / "fresh", symlinks=True)
    assert verb(*WORDS).code == 0
    reference, moment, tried = said(space), 0, 0
    while True:
        shutil.rmtree(space.root)
        shutil.copytree(tmp_path / "fresh", space.root, symlinks=True)
        monkeypatch.chdir(space.root)
        ended = killed_at(moment, WORDS, kinds)
        again = verb(*WORDS, "--json")
        assert again.code == 0, again.err
        assert said(space) == reference
        third = verb(*WORDS, "--json")
        assert (third.code, third.document["changed"]) == (0, False)
        assert (
            verb("verify", "oci:build/tuned", "--key", "k.pub", "--release", "manifests/tuned/release.dsse.json").code
            == 0
        )
        kept = [p for p in (space.root / "manifests").rglob("*") if p.name.startswith(TEMPORARY_PREFIX)]
        assert len(kept) <= 1, "a killed write leaves its own unfinished file at most"
        if ended is not None:
            assert ended == 0
            break
        tried += 1
        moment += 1 if kinds == {EVENTS} else 5
    assert tried >= 20
