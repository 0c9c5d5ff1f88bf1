"""Smoke and GSM8K of a release: run here, made elsewhere and imported, refused where it is of another image or nobody's word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from release_space import TIME, Space, payload_of, reasons, result, steps, write_result, write_signed

from imagebuild.attest.bundle import Bundle
from imagebuild.attest.dsse import sign_payload
from imagebuild.attest.keys import KeySigner
from imagebuild.content.digest import Digest
from imagebuild.host.clock import now
from imagebuild.waiver.evidence import load_evidence

Verb = Callable[..., Any]
SMOKE = {"smoke": {"steps": ["files"]}}


@pytest.fixture
def checked(make_space: Callable[..., Space]) -> Space:
    """A target that asks for smoke."""
    return make_space(checks=SMOKE)


def image(space: Space) -> Digest:
    return space.images()["linux/amd64"]


def here(space: Space, verdict: str = "passed", finished: int = TIME) -> None:
    write_result(space.root / "build/smoke/tuned/amd64", result("smoke", verdict, image(space), finished))


def release(space: Space, verb: Verb, *more: str) -> Any:
    return verb("release", "tuned", "--push", *space.key, "--json", *more)


def without_runners(monkeypatch: pytest.MonkeyPatch, **checks: Callable[[], str]) -> None:
    monkeypatch.setattr("imagebuild.cli.release_checks.checks_here", lambda *_: checks)


@pytest.fixture(autouse=True)
def _nothing_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_runners(monkeypatch)


def test_a_check_that_cannot_run_here_stops_the_release_with_exit_3(checked: Space, verb: Verb) -> None:
    checked.registry.log.clear()
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    assert "import-evidence" in ran.document["hint"]
    assert checked.writes() == []
    plan = release(checked, verb, "--dry-run").document
    assert reasons(plan)["smoke"] == "never ran: linux/amd64 (asked for by target.yaml)"
    assert steps(plan)["sign and attest"] == "waits"


def test_what_ran_here_is_signed_committed_and_attached(checked: Space, verb: Verb) -> None:
    here(checked)
    ran = release(checked, verb)
    assert ran.code == 0, ran.err
    before = checked.files()
    again = release(checked, verb)
    assert (again.document["changed"], checked.files()) == (False, before)
    statement = payload_of(checked.small.folder() / "evidence" / "smoke-x86_64.dsse.json")
    assert statement["predicate"]["verdict"] == "passed"
    (entry,) = checked.release_file()["predicate"]["evidence"]
    assert (entry["check"], entry["verdict"]) == ("smoke", "passed")
    checked.policy("not_proven: allow\n")
    policy = checked.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("require: [", "require: [{predicate: smoke, verdicts: [passed]}, "))
    ran = verb("verify", f"{checked.repository}:v1-tuned", "--target", "tuned", "--policy", "policy.yaml")
    assert ran.code == 0, ran.out


def test_committed_evidence_saves_the_run_on_another_machine(checked: Space, verb: Verb) -> None:
    import shutil

    here(checked)
    assert release(checked, verb).code == 0
    first = checked.release_file()
    shutil.rmtree(checked.root / "build")
    ran = release(checked, verb)
    assert ran.code == 0, ran.err
    assert steps(ran.document)["smoke"] == "done"
    assert checked.release_file() == first


def test_evidence_is_never_used_for_other_content(checked: Space, verb: Verb) -> None:
    here(checked)
    assert release(checked, verb).code == 0
    checked.target(checks=SMOKE, env={"ADDED": "1"})
    assert verb("lock", "tuned", "--complete").code == 0
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")


def test_a_result_that_names_another_content_id_beside_the_digest_is_none(checked: Space, verb: Verb) -> None:
    folder, content = (
        checked.root / "build/smoke/tuned/amd64",
        Digest.parse(checked.small.lock()["result"]["content_id"]),
    )
    write_result(folder, result("smoke", "passed", image(checked), content_id=Digest.of(b"other")))
    assert release(checked, verb).code == 3
    write_result(folder, result("smoke", "passed", image(checked), content_id=content))
    assert release(checked, verb).code == 0


def test_every_platform_needs_evidence_of_its_own(make_space: Callable[..., Space], verb: Verb) -> None:
    space = make_space(platforms=2, checks=SMOKE)
    here(space)
    ran = release(space, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    assert "linux/arm64" in ran.document["message"]
    write_result(space.root / "build/smoke/tuned/arm64", result("smoke", "passed", space.images()["linux/arm64"]))
    ran = release(space, verb)
    assert ran.code == 0, ran.err
    assert len(space.release_file()["predicate"]["evidence"]) == 2


def test_a_failed_check_is_a_no_and_the_latest_result_counts(checked: Space, verb: Verb) -> None:
    here(checked, "failed", TIME + 10)
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (1, "release.check-failed")
    # an older good one changes nothing, a later good one does
    older = write_signed(
        checked.small.folder() / "evidence", result("smoke", "passed", image(checked)), checked.builder
    )
    assert release(checked, verb).code == 1
    older.unlink()
    write_signed(
        checked.small.folder() / "evidence", result("smoke", "passed", image(checked), TIME + 20), checked.builder
    )
    assert release(checked, verb).code == 0


def test_a_check_that_can_run_here_runs_once(checked: Space, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def smoke() -> str:
        runs.append(1)
        here(checked)
        return "passed"

    without_runners(monkeypatch, smoke=smoke)
    for action in ("run", "done"):
        ran = release(checked, verb)
        assert (ran.code, steps(ran.document)["smoke"]) == (0, action), ran.err
    assert len(runs) == 1


def test_a_check_that_leaves_no_result_is_no_pass(checked: Space, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    without_runners(monkeypatch, smoke=lambda: "infrastructure: the GPU hangs")
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    assert "the GPU hangs" in ran.document["message"]


def test_a_policy_can_ask_for_a_check_that_the_target_does_not(space: Space, verb: Verb) -> None:
    space.policy()
    policy = space.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("require: [", "require: [{predicate: smoke, roles: [tester]}, "))
    here(space)
    # the builder's word on what it ran itself is not the tester's
    ran = release(space, verb)
    assert (ran.code, ran.document["code"]) == (1, "release.policy-refuses")
    write_signed(
        space.small.folder() / "evidence" / "by-tester", result("smoke", "passed", image(space), TIME + 1), space.tester
    )
    ran = release(space, verb)
    assert ran.code == 0, ran.err
    assert steps(ran.document)["smoke"] == "imported"
    ran = verb("verify", f"{space.repository}:v1-tuned", "--target", "tuned", "--policy", "policy.yaml")
    assert ran.code == 0, ran.out


def bundle(data: bytes, signer: KeySigner) -> bytes:
    return Bundle(sign_payload(data, signer.sign), signer.public_key.hint).format()


@pytest.mark.parametrize("form", ["envelope", "bundle"])
def test_signed_evidence_is_imported_with_its_files(checked: Space, verb: Verb, form: str) -> None:
    checked.policy()
    raw = b'{"kind": "smoke-evidence"}'
    statement = json.loads(result("smoke", "passed", image(checked)))
    statement["predicate"]["evidence"] = [{"name": "evidence.json", "digest": {"sha256": Digest.of(raw).hex}}]
    data = json.dumps(statement).encode()
    source = checked.root.parent / "cluster" / "smoke"
    if form == "envelope":
        write_signed(source, data, checked.tester)
    else:
        write_result(source, bundle(data, checked.tester), "statement.sigstore.json")
    write_result(source, data)  # the bare one beside it is what was signed
    write_result(source, raw, "evidence.json")
    write_result(source, b"not named by anybody", "core.dump")
    ran = verb("release", "import-evidence", str(source.parent), "--target", "tuned", "--json")
    assert ran.code == 0, ran.err
    (entry,) = ran.document["entries"]
    assert (entry["check"], entry["verdict"], entry["signed"]) == ("smoke", "passed", True)
    assert "tester" in entry["signed_by"][0]
    top = checked.small.folder() / "evidence" / "imported"
    assert {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()} == {
        "index.json", entry["file"], *entry["files"],
    }  # fmt: skip
    assert [(top / name).read_bytes() for name in entry["files"]] == [raw]
    records = load_evidence(top, "imported").records
    assert [(record.check, record.result) for record in records] == [("smoke", "PASSED")], "waivers see it too"
    before = checked.files()
    assert verb("release", "import-evidence", str(source.parent), "--target", "tuned").code == 0
    assert checked.files() == before
    ran = release(checked, verb)
    assert (ran.code, steps(ran.document)["smoke"]) == (0, "imported"), ran.err


@pytest.mark.parametrize("who", ["nobody", "a stranger", "another image", "a broken signature"])
def test_what_may_not_be_imported_is_refused_whole(checked: Space, verb: Verb, who: str) -> None:
    checked.policy()
    source = checked.root.parent / "cluster"
    write_signed(source / "good", result("smoke", "passed", image(checked)), checked.tester)
    data = result("smoke", "passed", image(checked), TIME + 1)
    if who == "nobody":
        write_result(source / "bad", data)
    elif who == "a stranger":
        write_signed(source / "bad", data, KeySigner.make())
    elif who == "another image":
        write_signed(source / "bad", result("smoke", "passed", Digest.of(b"x")), checked.tester)
    else:
        path = write_signed(source / "bad", data, checked.tester)
        value = json.loads(path.read_bytes())
        value["payload"] = json.loads(
            write_signed(source / "tmp", result("smoke", "failed", image(checked)), checked.tester).read_bytes()
        )["payload"]
        path.write_text(json.dumps(value))
    code = {
        "nobody": "release.unsigned-evidence", "a stranger": "attest.bad-signature", "another image": "release.other-image",
        "a broken signature": "attest.bad-signature",
    }[who]  # fmt: skip
    ran = verb("release", "import-evidence", str(source), "--target", "tuned", "--json")
    assert (ran.code, ran.document["code"]) == (1, code)
    assert not (checked.small.folder() / "evidence").exists()


def test_an_import_needs_a_policy_and_something_to_import(checked: Space, verb: Verb) -> None:
    source = checked.root.parent / "cluster"
    source.mkdir()
    ran = verb("release", "import-evidence", str(source), "--target", "tuned", "--json")
    assert (ran.code, ran.document["code"]) == (2, "release.no-policy")
    checked.policy()
    for folder in (source, source / "missing"):
        ran = verb("release", "import-evidence", str(folder), "--target", "tuned", "--json")
        assert (ran.code, ran.document["code"]) == (2, "release.no-evidence")


def test_evidence_signed_where_it_was_made_can_be_imported(checked: Space, verb: Verb) -> None:
    checked.policy()
    source = checked.root.parent / "cluster"
    # however it is laid out, the bare statement beside the envelope is the one that was signed
    indented = json.dumps(json.loads(result("smoke", "passed", image(checked))), indent=2).encode() + b"\n"
    write_result(source / "amd64", indented)
    ran = verb("release", "sign-evidence", str(source), "--key", "tester.key", "--json")
    assert [path.rpartition("/")[2] for path in ran.document["paths"]] == ["statement.dsse.json"]
    signed = (source / "amd64" / "statement.dsse.json").read_bytes()
    assert verb("release", "sign-evidence", str(source), "--key", "tester.key").code == 0
    assert (source / "amd64" / "statement.dsse.json").read_bytes() == signed
    assert verb("release", "import-evidence", str(source), "--target", "tuned").code == 0
    assert release(checked, verb).code == 0
    assert verb("release", "sign-evidence", str(checked.root / "overlays"), "--key", "tester.key").code == 2


def test_committed_files_that_nobody_trusted_signed_are_passed_over_and_told(checked: Space, verb: Verb) -> None:
    folder = checked.small.folder() / "evidence"
    write_result(folder, result("smoke", "passed", image(checked)), "bare.json")
    write_signed(folder, result("smoke", "passed", image(checked)), KeySigner.make(), "strange.json")
    write_result(folder, b'{"benchmark": 1}', "other.json")
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    assert len(ran.document["details"]["ignored"]) == 2


def test_evidence_that_is_too_old_for_the_policy_is_made_again(checked: Space, verb: Verb) -> None:
    checked.policy()
    policy = checked.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("require: [", "require: [{predicate: smoke, max_age: 30d}, "))
    here(checked, finished=now() - 40 * 86_400)
    ran = release(checked, verb)
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    here(checked, finished=now() - 20 * 86_400)
    ran = release(checked, verb)
    assert ran.code == 0, ran.err


def test_a_folder_with_too_many_files_is_not_read_in_part(
    checked: Space, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        write_result(
            checked.root / "many", result("smoke", "passed", checked.images()["linux/amd64"]), f"{number}.json"
        )
        write_result(checked.small.folder() / "evidence", b"{}", f"{number}.json")
    for module in ("release.importing", "release.evidence", "waiver.evidence"):
        monkeypatch.setattr(f"imagebuild.{module}.FILE_LIMIT", 3)
    checked.policy()
    assert verb("waiver", "new", "77", "--target", "tuned").code == 0
    for words in (
        ("release", "import-evidence", "many", "--target", "tuned"),
        ("release", "tuned", *checked.key),
        ("report", "tuned"),
        ("waiver", "render", "77"),
    ):
        ran = verb(*words, "--json")
        assert (ran.code, ran.document["code"]) == (2, "content.too-many-files")
