"""Evidence is keyed by digest; a test result may serve another image of the same content and platform, and that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from places import Stored, passed, stored

from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.check_result import check_result, content_of_result
from imagebuild.attest.predicates.types import BUILD_TYPE, PROVENANCE, SBOM, TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.content.digest import Digest
from imagebuild.target.policy import Requirement

CONTENT, OTHER = Digest.of(b"content"), Digest.of(b"another image")
SMOKE = (Requirement("smoke", ("passed",)),)


@pytest.fixture
def image(tmp_path: Path) -> Stored:
    return stored(tmp_path)


def result(verdict: str = "passed", platform: str | None = "linux/amd64", **configuration: Digest) -> dict[str, Any]:
    named = {"content-id": CONTENT, **configuration}
    return check_result("smoke", verdict, configuration=named, evidence={}, finished=0, platform=platform)


def provenance(content: Digest = CONTENT, build_type: str = BUILD_TYPE) -> dict[str, Any]:
    return {
        "buildDefinition": {
            "buildType": build_type,
            "externalParameters": {"platform": "linux/amd64"},
            "internalParameters": {"contentId": str(content), "notProven": []},
        }
    }


def say(
    image: Stored, signer: KeySigner, value: dict[str, Any], about: Digest = OTHER, kind: str = TEST_RESULT
) -> None:
    """Attaches a statement to the first platform's manifest, about whatever."""
    image.attach_raw(1, Statement.about(about, kind, value), signer)


def answers(image: Stored, signer: KeySigner, **more: Any) -> list[bool | None]:
    """The check of the first platform; the second has no result at all."""
    found = passed(image.judge({"k": (signer, "tester")}, require=SMOKE, **more), "verify.evidence")
    assert found[1] is False
    return found[:1]


def test_a_result_of_the_same_content_serves_and_that_is_said(image: Stored, signer: KeySigner) -> None:
    say(image, signer, result())
    assert answers(image, signer) == [False], "nothing proves this image's content"
    labels = {"io.github.imagebuild.content-id": str(CONTENT)}
    assert answers(image, signer, labels=labels) == [False], "a label is the image's own claim"
    say(image, signer, provenance(), image.subjects[1].digest, PROVENANCE)
    checks = image.judge({"k": (signer, "tester")}, require=SMOKE)
    (check,) = [c for c in checks if c.code == "verify.evidence" and c.passed]
    assert f"{OTHER}, another image with the same content id" in check.message


def test_a_result_of_this_very_image_says_nothing_of_another(image: Stored, signer: KeySigner) -> None:
    say(image, signer, result(), image.subjects[1].digest)
    say(image, signer, provenance(), image.subjects[1].digest, PROVENANCE)
    (check,) = [c for c in image.judge({"k": (signer, "t")}, require=SMOKE) if c.code == "verify.evidence" and c.passed]
    assert "another image" not in check.message


@pytest.mark.parametrize("value", [result(platform="linux/arm64"), result(platform=None), result("failed")])
def test_another_platform_none_and_another_verdict(image: Stored, signer: KeySigner, value: dict[str, Any]) -> None:
    """One content id is that of every platform, so the platform must be said and be the same."""
    say(image, signer, provenance(), image.subjects[1].digest, PROVENANCE)
    say(image, signer, value)
    assert answers(image, signer) == [False]


@pytest.mark.parametrize("value", [provenance(OTHER), provenance(build_type="https://example.com/other/v1")])
def test_another_content_id_or_builder_s_word(image: Stored, signer: KeySigner, value: dict[str, Any]) -> None:
    say(image, signer, value, image.subjects[1].digest, PROVENANCE)
    say(image, signer, result())
    assert answers(image, signer) == [False]


def test_a_strangers_provenance_proves_no_content(image: Stored, signer: KeySigner, stranger: KeySigner) -> None:
    say(image, stranger, provenance(), image.subjects[1].digest, PROVENANCE)
    say(image, signer, result())
    assert answers(image, signer) == [False]


def test_only_test_results_serve(image: Stored, signer: KeySigner) -> None:
    say(image, signer, provenance(), image.subjects[1].digest, PROVENANCE)
    say(image, signer, {**result(), "bomFormat": "CycloneDX"}, kind=SBOM)
    checks = image.judge({"k": (signer, "t")}, require=(Requirement("sbom"),))
    assert passed(checks, "verify.evidence") == [False, False]


@pytest.mark.parametrize(
    "change",
    [{"configuration": None}, {"configuration": ["x", {"name": "content-id"}]}, {"platform": 1},
     {"configuration": [{"name": "content-id", "digest": {"sha256": "a"}}] * 2}],
)  # fmt: skip
def test_what_does_not_say_its_content_clearly(change: dict[str, Any]) -> None:
    assert content_of_result(result()) == (str(CONTENT), "linux/amd64")
    assert content_of_result({**result(), **change}) is None
