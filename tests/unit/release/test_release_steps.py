"""`release` in order: what runs, what does not run again, what says no before anything is published."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from release_space import Space, reasons, steps

from imagebuild.attest.dsse import Envelope
from imagebuild.build.reproduce import Rebuild
from imagebuild.content.digest import Digest

Verb = Callable[..., Any]
RUNS = ("build", "reproduce", "sbom and provenance", "sign and attest", "push", "tag", "release manifest")


def test_everything_runs_once_and_again_does_nothing(
    make_space: Callable[..., Space], verb: Verb, rebuilt: list[str]
) -> None:
    space = make_space(platforms=2)
    space.policy()
    first = verb("release", "tuned", "--push", *space.key, "--json")
    assert first.code == 0, first.err
    assert steps(first.document) == {
        **dict.fromkeys(RUNS, "run"),
        **dict.fromkeys(("smoke", "gsm8k", "waiver check"), "not asked for"),
        **dict.fromkeys(("lock", "policy"), "check"),
    }
    digest, images = str(space.small.digest()), space.images()
    assert {tag: d for tag, d in space.tags().items() if not tag.startswith("sha256-")} == {
        "v1-tuned": digest,
        "v1-tuned-x86_64": str(images["linux/amd64"]),
        "v1-tuned-aarch64": str(images["linux/arm64"]),
    }
    before = space.files()
    space.registry.log.clear()
    again = verb("release", "tuned", "--push", *space.key, "--json")
    assert again.code == 0, again.err
    assert steps(again.document) == {**steps(first.document), **dict.fromkeys(RUNS, "done")}
    assert (again.document["changed"], again.document["summary"]) == (False, first.document["summary"])
    assert space.writes() == []
    assert space.files() == before
    assert rebuilt == ["tuned"]


def test_what_is_published_is_verified_by_the_key_the_file_and_the_policy(space: Space, verb: Verb) -> None:
    space.policy()
    assert verb("release", "tuned", "--push", *space.key).code == 0
    for image in (f"{space.repository}:v1-tuned", f"oci:{space.root}/build/tuned"):
        ran = verb(
            "verify",
            image,
            "--target",
            "tuned",
            "--key",
            "builder.pub",
            "--release",
            "manifests/tuned/release.dsse.json",
        )
        assert ran.code == 0, ran.out
        # the release statement is beside the image too: the policy needs no file
        ran = verb("verify", image, "--target", "tuned", "--policy", "policy.yaml")
        assert ran.code == 0, ran.out


@pytest.mark.parametrize("policy", [True, False])
def test_the_command_that_is_printed_verifies_as_it_stands(space: Space, verb: Verb, policy: bool) -> None:
    if policy:
        space.policy()
    (space.root / "my keys").mkdir()
    for name in ("builder.key", "builder.pub"):
        shutil.copy(space.root / name, space.root / "my keys" / name)
    ran = verb("release", "tuned", "--push", "--key", "my keys/builder.key")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.out.splitlines() if line.startswith("verify: ")]
    trusted = "--policy policy.yaml" if policy else "--key 'my keys/builder.pub'"
    assert line.endswith(trusted)
    done = verb(*shlex.split(line)[2:])
    assert done.code == 0, done.out


def test_tags_come_after_signatures_and_the_manifest_after_tags(space: Space, verb: Verb) -> None:
    space.registry.log.clear()
    assert verb("release", "tuned", "--push", *space.key).code == 0
    puts = [line for line in space.writes() if "/manifests/" in line]
    tag = next(n for n, line in enumerate(puts) if line.endswith("/manifests/v1-tuned"))
    # image, signature, provenance and SBOM go by digest before; the release statement follows
    assert len(puts[:tag]) >= 4
    assert len(puts[tag + 1 :]) == 1


def test_a_plan_writes_nothing_and_tells_why(space: Space, verb: Verb) -> None:
    before = space.files()
    space.registry.log.clear()
    plan = verb("release", "tuned", "--push", "--dry-run", "--json").document
    assert (space.files(), space.writes()) == (before, [])
    assert (plan["kind"], plan["changed"]) == ("release-plan", True)
    assert reasons(plan)["reproduce"] == "never ran"
    assert reasons(plan)["push"].startswith("follows build, reproduce")
    assert verb("release", "tuned", "--push", *space.key).code == 0
    before = space.files()
    plan = verb("release", "tuned", "--push", *space.key, "--dry-run", "--json").document
    assert (space.files(), plan["changed"]) == (before, False)
    assert reasons(plan)["release manifest"] == "release 1 is on record"
    space.target(env={"ADDED": "1"})
    assert verb("lock", "tuned", "--complete").code == 0
    plan = verb("release", "tuned", "--push", *space.key, "--dry-run", "--json").document
    assert "another image" in reasons(plan)["reproduce"]
    assert "changed what they say" in reasons(plan)["sbom and provenance"]


def test_without_push_the_release_stays_in_the_layout_and_a_push_later_is_the_same(space: Space, verb: Verb) -> None:
    space.registry.log.clear()
    assert verb("release", "tuned", *space.key).code == 0
    assert space.writes() == []
    file = (space.small.folder() / "release.dsse.json").read_bytes()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    done = {name: action for name, action in steps(ran.document).items() if action in ("run", "done")}
    assert done == {**dict.fromkeys(RUNS, "done"), "push": "run", "tag": "run", "release manifest": "run"}
    assert (space.small.folder() / "release.dsse.json").read_bytes() == file
    assert "v1-tuned" in space.tags()


def test_the_counter_grows_by_one_with_each_different_release(space: Space, verb: Verb) -> None:
    assert verb("release", "tuned", "--push", *space.key).code == 0
    first = space.release_file()
    shutil.rmtree(space.root / "build")
    assert verb("release", "tuned", "--push", *space.key).code == 0
    assert space.release_file() == first, "a lost journal makes no new release"
    space.target(env={"ADDED": "1"})
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb("release", "tuned", "--push", *space.key).code == 0
    second = space.release_file()
    assert (first["predicate"]["counter"], second["predicate"]["counter"]) == (1, 2)
    assert space.tags()["v1-tuned"] == str(space.small.digest())


def test_a_release_that_no_trusted_key_signed_stops_the_counter(space: Space, verb: Verb) -> None:
    assert verb("release", "tuned", *space.key).code == 0
    ran = verb("release", "tuned", "--key", "tester.key", "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.unverifiable-manifest")
    space.policy()
    assert verb("release", "tuned", *space.key).code == 0


@pytest.mark.parametrize("gone", ["tag", "image", "layout", "statements", "manifest"])
def test_what_is_gone_is_made_again(space: Space, verb: Verb, gone: str) -> None:
    assert verb("release", "tuned", "--push", *space.key).code == 0
    first, tags = space.release_file(), space.tags()
    repository = space.registry.repository("me/engine")
    if gone == "tag":
        del repository.tags["v1-tuned"]
    elif gone == "image":
        repository.manifests.clear()
        repository.tags.clear()
    elif gone == "layout":
        shutil.rmtree(space.root / "build" / "tuned")
    elif gone == "statements":
        shutil.rmtree(space.root / "build" / "release" / "tuned" / "statements")
    else:
        (space.small.folder() / "release.dsse.json").unlink()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert ran.code == 0, ran.err
    expected = {
        "tag": {"tag"},
        "image": {"push", "tag"},
        "layout": {"build", "sign and attest", "push", "release manifest"},
        "statements": {"sbom and provenance"},
        "manifest": {"release manifest"},
    }[gone]
    assert {name for name, action in steps(ran.document).items() if action == "run"} >= expected
    assert "reproduce" not in {name for name, action in steps(ran.document).items() if action == "run"}
    assert space.tags() == tags
    assert space.release_file() == first
    assert verb("verify", f"{space.repository}:v1-tuned", "--key", "builder.pub").code == 0


def test_a_lock_that_leaves_facts_open_is_released_only_by_a_policy_that_allows_it(space: Space, verb: Verb) -> None:
    assert verb("lock", "tuned").code == 0
    space.small.lock_path().unlink()
    shutil.rmtree(space.small.cache)
    assert verb("lock", "tuned").code == 0
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"], ran.document["details"]["step"]) == (1, "release.lock-incomplete", "lock")
    space.policy("not_proven: allow\n")
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, len(ran.document["warnings"])) == (0, 1), ran.err
    assert space.release_file()["predicate"]["notProven"]


def test_a_stale_lock_is_not_released(space: Space, verb: Verb) -> None:
    space.target(env={"ADDED": "1"})
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "lock.stale")


@pytest.mark.parametrize(("equal", "code"), [(False, "release.not-reproducible"), (None, "release.not-rebuilt")])
def test_what_cannot_be_built_twice_is_not_released(
    space: Space, verb: Verb, monkeypatch: pytest.MonkeyPatch, equal: bool | None, code: str
) -> None:
    rebuild = Rebuild({"python": "3"}, equal, str(Digest.of(b"other")), reason="no" if equal is None else None)
    monkeypatch.setattr("imagebuild.release.steps_image.reproduce", lambda *_: [rebuild])
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1 if equal is False else 3, code)
    assert "me/engine" not in space.registry.repositories or space.tags() == {}


def test_the_policy_says_no_before_anything_is_published(space: Space, verb: Verb) -> None:
    space.policy("builders: ['https://example.com/ci/*']\n")
    space.registry.log.clear()
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "release.policy-refuses")
    assert any(check["passed"] is False for check in ran.document["details"]["checks"])
    assert space.writes() == []
    assert not (space.small.folder() / "release.dsse.json").exists()
    assert verb("release", "tuned", "--push", *space.key, "--builder-id", "https://example.com/ci/7").code == 0


def test_a_second_signer_signs_the_layout_and_the_release_goes_on(space: Space, verb: Verb) -> None:
    text = space.root / "policy.yaml"
    space.policy()
    text.write_text(
        text.read_text().replace("{predicate: image}", "{predicate: image, threshold: 2, distinct_roles: true}")
    )
    assert verb("release", "tuned", *space.key).code == 1
    assert verb("sign", f"oci:{space.root}/build/tuned", "--key", "tester.key").code == 0
    ran = verb("release", "tuned", "--push", *space.key)
    assert ran.code == 0, ran.err
    ran = verb("verify", f"{space.repository}:v1-tuned", "--target", "tuned", "--policy", "policy.yaml")
    assert ran.code == 0, ran.out


def test_it_can_be_published_elsewhere_under_the_same_tags(space: Space, verb: Verb) -> None:
    ran = verb("release", "tuned", "--push", "--to", f"{space.registry.host}/other/place", *space.key, "--json")
    assert ran.code == 0, ran.err
    assert set(space.registry.repository("other/place").tags) >= {"v1-tuned", "v1-tuned-x86_64"}
    assert space.release_file()["predicate"]["publish"] == {"repository": f"{space.registry.host}/other/place"}


def test_a_tag_of_somebody_else_is_not_moved(space: Space, verb: Verb) -> None:
    space.registry.put_image("me/engine", space.small.base, "v1-tuned")
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert (ran.code, ran.document["code"], ran.document["details"]["step"]) == (1, "registry.tag-elsewhere", "tag")
    ran = verb("release", "tuned", "--push", *space.key, "--force", "--json")
    assert ran.code == 0, ran.err
    assert space.tags()["v1-tuned"] == str(space.small.digest())


def test_a_key_is_needed_and_a_place_to_publish(space: Space, verb: Verb) -> None:
    assert verb("release", "tuned").code == 2
    space.small.write_target()
    assert verb("lock", "tuned", "--complete").code == 0
    ran = verb("release", "tuned", "--push", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (2, "build.no-publish")
    assert verb("release", "tuned", *space.key).code == 0


def test_a_damaged_journal_costs_work_and_nothing_else(space: Space, verb: Verb) -> None:
    assert verb("release", "tuned", "--push", *space.key).code == 0
    first = space.release_file()
    journal = space.root / "build" / "release" / "tuned" / "steps.json"
    for damage in (
        b"{",
        b"[]",
        b'{"schemaVersion": 1, "steps": {"push": {"id": 3}}, "created": []}',
        b'{"schemaVersion": 1, "steps": {"push": {"id": "sha256:zz", "result": {}}}}',
    ):
        journal.write_bytes(damage)
        assert verb("release", "tuned", "--push", *space.key).code == 0
        assert space.release_file() == first
        assert json.loads(journal.read_bytes())["steps"]


def test_the_envelope_beside_the_image_is_the_one_in_the_file(space: Space, verb: Verb) -> None:
    assert verb("release", "tuned", "--push", *space.key).code == 0
    raw = (space.small.folder() / "release.dsse.json").read_bytes()
    signature = Envelope.parse(raw).to_json()["signatures"][0]["sig"].encode()
    blobs = space.registry.repository("me/engine").blobs
    assert any(signature in data for data in blobs.values())


def test_smoke_runs_as_the_verb_does_and_its_raw_evidence_stays_beside_the_statement(
    make_space: Callable[..., Space], verb: Verb
) -> None:
    space = make_space(platforms=2, checks={"smoke": {"steps": ["files"]}})
    ran = verb("release", "tuned", *space.key, "--runner", "host", "--json")
    assert ran.code == 0, ran.err
    assert steps(ran.document)["smoke"] == "run"
    for machine, platform in (("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")):
        raw = json.loads((space.small.folder() / "evidence" / f"smoke-{machine}.evidence.json").read_bytes())
        assert (raw["verdict"], raw["platform"]) == ("passed", platform)
    before = space.files()
    assert verb("release", "tuned", *space.key, "--runner", "host", "--json").document["changed"] is False
    assert space.files() == before


def test_a_runner_that_cannot_work_here_and_missing_questions_are_exit_3(
    make_space: Callable[..., Space], verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(checks={"smoke": {"steps": ["files", "python"]}})
    monkeypatch.setenv("PATH", "/nonexistent")
    ran = verb("release", "tuned", *space.key, "--runner", "podman", "--json")
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run"), ran.err
    space.target(checks={"gsm8k": {}})
    assert verb("lock", "tuned", "--complete").code == 0
    ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (3, "release.check-not-run")
    assert "--data" in ran.document["message"]


def test_signatures_can_go_to_another_repository(make_space: Callable[..., Space], verb: Verb) -> None:
    space = make_space()
    space.target(attestations={"repository": f"{space.registry.host}/me/signatures"})
    assert verb("release", "tuned", "--push", *space.key).code == 0
    assert len(space.registry.repository("me/signatures").manifests) >= 4
    assert len(space.registry.repository("me/engine").manifests) == 1
    image = f"{space.repository}:v1-tuned"
    ran = verb("verify", image, "--target", "tuned", "--key", "builder.pub")
    assert ran.code == 0, ran.out
    assert verb("release", "tuned", "--push", *space.key, "--json").document["changed"] is False


def test_another_key_of_the_policy_signs_the_same_release(space: Space, verb: Verb) -> None:
    space.policy()
    assert verb("release", "tuned", "--push", *space.key).code == 0
    first = space.release_file()
    ran = verb("release", "tuned", "--push", "--key", "tester.key", "--json")
    assert ran.code == 0, ran.err
    assert space.release_file() == first
    for key in ("builder.pub", "tester.pub"):
        assert verb("verify", f"{space.repository}:v1-tuned", "--target", "tuned", "--key", key).code == 0


def test_two_runs_of_one_target_do_not_mix(space: Space, verb: Verb) -> None:
    from imagebuild.oci.lock import locked

    folder = space.root / "build" / "release" / "tuned"
    folder.mkdir(parents=True)
    with locked(folder):
        ran = verb("release", "tuned", *space.key, "--json")
    assert (ran.code, ran.document["code"]) == (3, "release.busy")


def test_a_release_without_a_push_needs_nothing_of_the_base(
    in_workspace: Callable[..., Any], verb: Verb, rebuilt: list[str]
) -> None:
    """The base's layout is gone: the lock's content is enough."""
    small = in_workspace()
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb("keygen", "k", "--unencrypted").code == 0
    shutil.rmtree(small.root / "build")
    shutil.rmtree(small.cache)
    ran = verb("release", "tuned", "--key", "k.key", "--json")
    assert ran.code == 0, ran.err
    assert verb("release", "tuned", "--key", "k.key", "--json").document["changed"] is False


def test_release_target_is_release_run_target(space: Space, verb: Verb) -> None:
    plan = verb("release", "run", "tuned", "--dry-run", "--json").document
    for words in (
        ("release", "tuned", "--dry-run", "--json"),
        ("release", "--dry-run", "--json", "tuned"),
        ("-C", str(space.root), "release", "tuned", "--dry-run", "--json"),
    ):
        assert verb(*words).document == plan
    assert verb("release").code == 2
    unknown = verb("release", "import-evidenc", "--dry-run", "--json")
    assert (unknown.code, unknown.document["code"]) == (2, "target.unknown-target")
