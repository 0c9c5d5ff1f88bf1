"""What a policy asks for, and what each answer looks like."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from places import NOW, Stored, passed, stored

from imagebuild.attest.check import Check
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.image_signature import TYPE as IMAGE
from imagebuild.attest.predicates.types import BUILD_TYPE, PROVENANCE, RELEASE, SBOM, TEST_RESULT, VEX
from imagebuild.attest.statement import Statement, Subject
from imagebuild.attest.trust import TrustedKey, count_signers, keys_named, keys_of_policy
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.host.clock import rfc3339
from imagebuild.target.policy import PolicyKey, Requirement, WaiverRule, load_policy


@pytest.fixture
def image(tmp_path: Path) -> Stored:
    return stored(tmp_path)


def say(image: Stored, kind: str, predicate: dict[str, Any], signer: KeySigner, *, top: bool = False) -> None:
    """Attests the same of both platforms, or of the index."""
    for number in (0,) if top else (1, 2):
        image.attach(number, Statement.about(image.subjects[number].digest, kind, predicate), signer)


def provenance(**changes: Any) -> dict[str, Any]:
    return {
        "buildDefinition": {
            "buildType": changes.get("build_type", BUILD_TYPE),
            "externalParameters": {
                "base": changes.get("base", "docker.io/v/v:1@sha256:00"), "platform": changes.get("platform"),
            },
            "internalParameters": {
                "notProven": changes.get("not_proven", []), "contentId": changes.get("content_id", "sha256:aa"),
            },
        },
        "runDetails": {"builder": {"id": changes.get("builder", "https://example.com/b/v1")}},
    }  # fmt: skip


def of(checks: list[Check], code: str) -> list[Check]:
    return [check for check in checks if check.code == code]


def test_roles_and_thresholds(image: Stored, signer: KeySigner, other: KeySigner) -> None:
    keys = {"a": (signer, "builder"), "b": (other, "tester")}
    need = (Requirement("sbom", roles=("tester",)),)
    say(image, SBOM, {"bomFormat": "CycloneDX"}, signer)
    checks = of(image.judge(keys, require=need), "verify.evidence")
    assert [check.passed for check in checks] == [False, False]
    assert checks[0].expected == "signed by 1 in the role tester"
    assert "does not count here" in str(checks[0].found)
    say(image, SBOM, {"bomFormat": "CycloneDX"}, other)
    assert passed(image.judge(keys, require=need), "verify.evidence") == [True, True]
    two = (Requirement("sbom", threshold=2),)
    assert passed(image.judge(keys, require=two), "verify.evidence") == [True, True]


def test_a_statement_on_the_index_says_nothing_of_a_platform(image: Stored, signer: KeySigner) -> None:
    say(image, SBOM, {}, signer, top=True)
    assert passed(image.judge({"a": (signer, "x")}, require=(Requirement("sbom"),)), "verify.evidence") == [False] * 2


@pytest.mark.parametrize(
    ("check", "verdict", "result", "wanted", "good"),
    [
        ("smoke", "passed", "PASSED", (), True),
        ("smoke", None, "PASSED", ("passed",), True),
        ("smoke", "failed", "FAILED", (), False),
        ("smoke", "failed", "FAILED", ("failed",), True),
        ("gsm8k", "passed", "PASSED", (), False),
        ("smoke", "passed", "FAILED", (), False),
        ("smoke", "inconclusive", "PASSED", (), False),
        ("smoke", "non-inferior", "PASSED", ("passed",), False),
    ],
)
def test_verdicts(
    image: Stored, signer: KeySigner, check: str, verdict: str | None, result: str, wanted: tuple[str, ...], good: bool
) -> None:
    say(image, TEST_RESULT, {"result": result, "check": check, "verdict": verdict}, signer)
    need = (Requirement("smoke", verdicts=wanted),)
    assert passed(image.judge({"a": (signer, "x")}, require=need), "verify.evidence") == [good, good]


def test_age_is_the_signers_word_and_must_be_given(image: Stored, signer: KeySigner) -> None:
    def verdict(age: int) -> list[Check]:
        need = (Requirement("vex", max_age=age),)
        return of(image.judge({"a": (signer, "x")}, require=need), "verify.evidence")

    say(image, VEX, {}, signer)
    assert verdict(100)[0].passed is False
    assert "does not say when" in str(verdict(100)[0].found)
    say(image, VEX, {"timestamp": rfc3339(NOW - 50)}, signer)
    assert verdict(100)[0].passed is True
    assert verdict(10)[0].passed is False
    assert "too old" in str(verdict(10)[0].found)


def test_a_time_to_come_is_not_young(image: Stored, signer: KeySigner) -> None:
    say(image, VEX, {"timestamp": rfc3339(NOW + 100 * 86400)}, signer)
    need = (Requirement("vex", max_age=100),)
    (check, _) = of(image.judge({"a": (signer, "x")}, require=need), "verify.evidence")
    assert check.passed is False
    assert "still to come" in str(check.found)


@pytest.mark.parametrize("asked", [{"max_age": 100}, {"verdicts": ("passed",)}])
@pytest.mark.parametrize(("word", "kind"), [("image", IMAGE), ("sbom", SBOM), ("https://example.com/p", None)])
def test_what_a_statement_cannot_show_is_not_passed_over(
    image: Stored, signer: KeySigner, asked: dict[str, Any], word: str, kind: str | None
) -> None:
    image.sign_all(signer)
    if kind != IMAGE:
        say(image, kind or word, {}, signer)
    checks = image.judge({"a": (signer, "x")}, require=(Requirement(word, **asked),))
    found = passed(checks, "verify.evidence")
    assert found
    assert not any(found)


def test_days_of_keys(image: Stored, signer: KeySigner) -> None:
    keys = {"a": (signer, "x")}
    image.sign_all(signer)
    need = (Requirement("image"),)

    def verdict(**days: date) -> list[bool | None]:
        return passed(image.judge(keys, require=need, days={"a": days}), "verify.signature")

    assert verdict(valid_from=date(2026, 9, 21), valid_until=date(2026, 9, 21)) == [True] * 3
    assert verdict(valid_until=date(2026, 9, 20)) == [False] * 3
    assert verdict(valid_from=date(2026, 9, 22)) == [False] * 3


def test_a_key_whose_days_are_over_is_named_before_what_strangers_signed(image: Stored, signer: KeySigner) -> None:
    for _ in range(11):
        image.attach(0, Statement.about(image.subjects[0].digest, IMAGE, {}), KeySigner.make())
    image.sign_all(signer)
    checks = image.judge({"a": (signer, "x")}, days={"a": {"valid_until": date(2026, 9, 20)}})
    top = of(checks, "verify.signature")[0]
    assert top.expected == "1 of: no key that counts"
    assert signer.public_key.fingerprint in str(top.found)
    assert "which does not count here" in str(top.found)


def test_provenance_must_be_of_our_build_type(image: Stored, signer: KeySigner) -> None:
    keys = {"a": (signer, "x")}
    say(image, PROVENANCE, provenance(build_type="https://example.com/other"), signer)
    checks = of(image.judge(keys, require=(Requirement("provenance"),)), "verify.evidence")
    assert [check.passed for check in checks] == [False, False]
    assert "https://example.com/other" in str(checks[0].found)
    assert passed(image.judge(keys, require=(Requirement(PROVENANCE),)), "verify.evidence") == [True, True]
    say(image, PROVENANCE, provenance(), signer)
    assert passed(image.judge(keys, require=(Requirement("provenance"),)), "verify.evidence") == [True, True]


def test_bases_and_builders(image: Stored, signer: KeySigner) -> None:
    keys = {"a": (signer, "x")}
    rules: dict[str, Any] = {"bases": ("docker.io/v/*",), "builders": ("https://example.com/b/*",)}
    checks = image.judge(keys, **rules)
    assert passed(checks, "verify.allowed-base") == passed(checks, "verify.builder") == [False]
    assert of(checks, "verify.builder")[0].found == "no trusted key says"
    say(image, PROVENANCE, provenance(), signer)
    checks = image.judge(keys, **rules)
    assert passed(checks, "verify.allowed-base") == passed(checks, "verify.builder") == [True]
    say(image, PROVENANCE, provenance(base="quay.io/v/v@sha256:00", builder="https://example.com/c/v1"), signer)
    checks = image.judge(keys, **rules)
    assert passed(checks, "verify.allowed-base") == passed(checks, "verify.builder") == [False]


def test_what_one_platform_comes_from_says_nothing_of_the_other(image: Stored, signer: KeySigner) -> None:
    keys = {"a": (signer, "x")}
    rules: dict[str, Any] = {"bases": ("docker.io/v/*",), "builders": ("https://example.com/b/*",)}
    image.attach(1, Statement.about(image.subjects[1].digest, PROVENANCE, provenance()), signer)
    checks = image.judge(keys, **rules)
    for code in ("verify.allowed-base", "verify.builder"):
        (check,) = of(checks, code)
        assert check.passed is False
        assert "no trusted key says of linux/arm64" in str(check.found)
    (check,) = of(checks, "verify.not-proven")
    assert check.passed is None
    assert "linux/arm64" in check.message
    named = tuple(Subject(subject.digest) for subject in image.subjects)
    image.attach(0, Statement(named, RELEASE, {"base": {"reference": "docker.io/v/v:1@sha256:00"}}), signer)
    assert passed(image.judge(keys, **rules), "verify.allowed-base") == [True]


def test_repositories(image: Stored, signer: KeySigner) -> None:
    def verdict(repository: str | None) -> list[bool | None]:
        checks = image.judge({"a": (signer, "x")}, repository=repository, repositories=("docker.io/me/*",))
        return passed(checks, "verify.repository")

    assert verdict("docker.io/me/engine") == [True]
    assert verdict("docker.io/you/engine") == [False]
    assert verdict(None) == [None]


def test_unproven_facts(image: Stored, signer: KeySigner) -> None:
    keys = {"a": (signer, "x")}
    assert passed(image.judge(keys), "verify.not-proven") == [None]
    assert not of(image.judge(keys), "verify.not-proven")[0].required
    say(image, PROVENANCE, provenance(), signer)
    assert passed(image.judge(keys), "verify.not-proven") == [True]
    say(image, PROVENANCE, provenance(not_proven=["/a/b"]), signer)
    (check,) = of(image.judge(keys), "verify.not-proven")
    assert (check.passed, check.found) == (False, "/a/b, /a/b")
    assert of(image.judge(keys, not_proven="allow"), "verify.not-proven") == []


@pytest.mark.parametrize(
    ("waiver", "rule", "good"),
    [
        (None, "refuse", False),
        ({"number": 1}, "refuse", True),
        ({"number": 1, "expires": "2026-09-21"}, "refuse", True),
        ({"number": 1, "expires": "2026-09-20"}, "refuse", False),
        ({"number": 1, "expires": "2026-09-20"}, "warn", True),
        ({"number": 1, "expires": "some day"}, "refuse", False),
    ],
)
def test_waivers(image: Stored, signer: KeySigner, waiver: Any, rule: str, good: bool) -> None:
    say(image, RELEASE, {"waiver": waiver}, signer, top=True)
    checks = image.judge({"a": (signer, "x")}, waiver=WaiverRule(True, rule))
    assert passed(checks, "verify.waiver") == [good]


def test_the_newest_release_of_an_image_says_which_waiver_it_has(image: Stored, signer: KeySigner) -> None:
    """The older statement stays attached when the same image is released again with its waiver renewed."""

    def verdict(counter: int, expires: str) -> list[bool | None]:
        predicate = {"target": "t", "counter": counter, "waiver": {"number": 1, "expires": expires}}
        say(image, RELEASE, predicate, signer, top=True)
        return passed(image.judge({"a": (signer, "x")}, waiver=WaiverRule(True)), "verify.waiver")

    assert verdict(1, "2026-09-20") == [False]
    assert verdict(2, "2099-01-01") == [True]
    assert verdict(3, "2026-09-19") == [False]


def test_label_and_provenance_must_name_one_content(image: Stored, signer: KeySigner) -> None:
    say(image, PROVENANCE, provenance(), signer)
    for content, good in (("sha256:aa", True), ("sha256:bb", False)):
        labels = {"io.github.imagebuild.content-id": content}
        assert passed(image.judge({"a": (signer, "x")}, labels=labels), "verify.content-id") == [good, good]


def test_a_release_is_asked_of_the_index(image: Stored, signer: KeySigner) -> None:
    keys, need = {"a": (signer, "x")}, (Requirement("release"),)
    assert passed(image.judge(keys, require=need), "verify.evidence") == [False]
    say(image, RELEASE, {"target": "t"}, signer, top=True)
    assert passed(image.judge(keys, require=need), "verify.evidence") == [True]


def test_keys_of_a_policy_come_from_files_and_text(tmp_path: Path, signer: KeySigner, other: KeySigner) -> None:
    (tmp_path / "a.pub").write_bytes(signer.public_key.pem)
    listed = {
        "a": PolicyKey("a", "builder", file="a.pub"),
        "b": PolicyKey("b", "tester", pem=other.public_key.pem.decode()),
    }
    assert [key.key for key in keys_of_policy(listed, tmp_path)] == [signer.public_key, other.public_key]
    assert keys_named([str(tmp_path / "a.pub")])[0].key == signer.public_key
    with pytest.raises(InputError) as caught:
        keys_of_policy({"c": PolicyKey("c", "x", file="missing.pub")}, tmp_path)
    assert caught.value.code == "attest.no-key"


def test_roles_are_matched_to_keys_and_not_counted_twice(signer: KeySigner, other: KeySigner) -> None:
    def key(who: KeySigner, role: str) -> TrustedKey:
        return TrustedKey(role, who.public_key, role)

    both = [key(signer, "a"), key(signer, "b")]
    assert count_signers(both) == count_signers(both, distinct_roles=True) == 1
    assert count_signers([*both, key(other, "a")], distinct_roles=True) == 2
    assert count_signers([key(signer, "a"), key(other, "a")], distinct_roles=True) == 1


def test_a_revoked_digest_of_another_image_is_no_matter(image: Stored, signer: KeySigner) -> None:
    checks = image.judge({"a": (signer, "x")}, revoked={Digest.of(b"x"): "why"})
    assert passed(checks, "verify.revoked") == [True] * 3


def test_the_policy_of_the_how_to_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/verify-an-image.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0].replace("sha256:…", f"sha256:{'0' * 64}")
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    policy = load_policy(path)
    assert policy.minimum_release == {"b300-vllm": 7}
    assert policy.bases
    assert policy.builders
