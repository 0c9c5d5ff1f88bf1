"""cosign and oras agree with us: they verify and list what we attach, we verify what cosign attaches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_registry import RealRegistry
from sid_programs import SidPrograms

from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.attest.public_key import ALGORITHMS
from imagebuild.cli.main import main
from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, MadeImage, make_index, write_layout
from imagebuild.testing.registry_double import RegistryDouble

pytestmark = [pytest.mark.integration, pytest.mark.slow(70)]

OFFLINE = ("--insecure-ignore-tlog=true", "--allow-http-registry", "--allow-insecure-registry")
SIGNING = ("--yes", "--tlog-upload=false", "--use-signing-config=false", "--allow-http-registry")
PASSWORD = {"COSIGN_PASSWORD": "secret"}
REVIEW = "https://example.com/review/v1"


def two_platforms() -> MadeImage:
    def spec(architecture: str) -> ImageSpec:
        layer = LayerSpec((File("engine", architecture.encode()),))
        return ImageSpec((layer,), platform=Platform("linux", architecture))

    return make_index(IndexSpec((spec("amd64"), spec("arm64"))))


@dataclass(frozen=True)
class Place:
    """An image in a registry with (`api`) or without the referrers API."""

    name: str
    index: MadeImage
    api: bool
    tags: Callable[[], list[str]]

    def at(self, digest: Digest | None = None) -> str:
        return f"{self.name}@{digest or self.index.digest}"

    @property
    def digests(self) -> list[Digest]:
        return [self.index.digest, *(image.digest for image in self.index.images)]


@pytest.fixture(params=["api", "tag"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    index = two_platforms()
    if request.param == "tag":
        registry: RealRegistry = request.getfixturevalue("registry")
        registry.put_image("me/engine", "v1", index)
        yield Place(
            f"{registry.host}/me/engine", index, False, lambda: [name.rpartition(":")[2] for name in registry.tags()]
        )
        return
    with RegistryDouble() as double:
        double.put_image("me/engine", index, "v1")
        yield Place(f"{double.host}/me/engine", index, True, lambda: list(double.repository("me/engine").tags))


def keys(sid: SidPrograms, algorithm: str = ALGORITHMS[0]) -> tuple[Path, Path]:
    return store_key_pair(KeySigner.make(algorithm), sid.folder / f"ours-{algorithm}", None)


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    found = main(["--json", *words])
    captured = capsys.readouterr()
    assert found == code, captured.out + captured.err
    value: dict[str, Any] = json.loads(captured.out)
    return value


def checks(document: dict[str, Any], code: str) -> list[dict[str, Any]]:
    return [check for check in document["checks"] if check["code"] == code]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cosign_verifies_our_signatures(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    private, public = keys(sid, algorithm)
    signed = answer(capsys, "sign", f"{place.name}:v1", "--key", str(private))
    assert [item["subject"] for item in signed["attached"]] == [str(digest) for digest in place.digests]
    for digest in place.digests:
        done = sid.run("cosign", "verify", "--key", sid.inside(public), *OFFLINE, place.at(digest))
        (claim,) = json.loads(done.stdout)
        assert claim["critical"]["image"]["docker-manifest-digest"] == str(digest)
    _, strange = store_key_pair(KeySigner.make(), sid.folder / "strange", None)
    done = sid.run("cosign", "verify", "--key", sid.inside(strange), *OFFLINE, place.at(), check=False)
    assert done.returncode != 0
    assert any(tag.startswith("sha256-") for tag in place.tags()) != place.api


def test_cosign_verifies_our_attestations(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    private, public = keys(sid)
    predicate = tmp_path / "review.json"
    predicate.write_text('{"good": true, "score": 1.50}')
    answer(capsys, "attest", f"{place.name}:v1", "--type", REVIEW, "--predicate", str(predicate), "--key", str(private))
    for digest in place.digests:
        command = ["cosign", "verify-attestation", "--key", sid.inside(public), *OFFLINE, place.at(digest)]
        done = sid.run(*command, "--type", REVIEW)
        assert b"payload" in done.stdout
        assert sid.run(*command, "--type", "https://example.com/another", check=False).returncode != 0


def test_we_verify_what_cosign_made(sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    sid.run("sh", "-c", "cd /mnt && cosign generate-key-pair", environment=PASSWORD)
    public = sid.folder / "cosign.pub"
    key = ("--key", "/mnt/cosign.key", *SIGNING)
    document = answer(capsys, "verify", place.at(), "--key", str(public), code=1)
    assert [check["passed"] for check in checks(document, "verify.signature")] == [False] * 3
    sid.run("cosign", "sign", *key, place.at(), environment=PASSWORD)
    document = answer(capsys, "verify", place.at(), "--key", str(public), code=1)
    assert [check["passed"] for check in checks(document, "verify.signature")] == [True, False, False]
    sid.run("cosign", "sign", "-r", *key, place.at(), environment=PASSWORD)
    document = answer(capsys, "verify", place.at(), "--key", str(public))
    assert [check["passed"] for check in checks(document, "verify.signature")] == [True] * 3
    _, strange = store_key_pair(KeySigner.make(), sid.folder / "strange", None)
    answer(capsys, "verify", place.at(), "--key", str(strange), code=1)


def test_we_sign_with_cosigns_key_and_add_nothing_to_what_it_signed(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nacl")
    sid.run("sh", "-c", "cd /mnt && cosign generate-key-pair", environment=PASSWORD)
    sid.run("cosign", "sign", "--key", "/mnt/cosign.key", *SIGNING, place.at(), environment=PASSWORD)
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")
    signed = answer(capsys, "sign", place.at(), "--key", str(sid.folder / "cosign.key"))
    assert [item["added"] for item in signed["attached"]] == [False, True, True]
    again = answer(capsys, "sign", place.at(), "--key", str(sid.folder / "cosign.key"))
    assert [item["added"] for item in again["attached"]] == [False] * 3
    done = sid.run("cosign", "verify", "--key", "/mnt/cosign.pub", *OFFLINE, place.at(place.digests[1]))
    assert len(json.loads(done.stdout)) == 1


def test_an_attestation_of_cosign_meets_a_policy(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    sid.run("sh", "-c", "cd /mnt && cosign generate-key-pair", environment=PASSWORD)
    (sid.folder / "review.json").write_text('{"good": true}')
    policy = sid.folder / "policy.yaml"
    policy.write_text(
        "schema: 1\nkeys: {cosign: {file: cosign.pub, role: tester}}\n"
        f"require: [{{predicate: '{REVIEW}', roles: [tester]}}]\nrepositories: ['127.0.0.1:*/me/*']\n"
    )
    for digest in place.digests[1:]:
        answer(capsys, "verify", place.at(), "--policy", str(policy), code=1)
        sid.run(
            "cosign", "attest", "--key", "/mnt/cosign.key", *SIGNING, "--type", REVIEW, "--predicate",
            "/mnt/review.json", place.at(digest), environment=PASSWORD,
        )  # fmt: skip
    document = answer(capsys, "verify", place.at(), "--policy", str(policy))
    assert len(checks(document, "verify.evidence")) == 2


def test_oras_lists_ours(sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    private, _ = keys(sid)
    signed = answer(capsys, "sign", place.at(), "--key", str(private))
    for item in signed["attached"]:
        found = sid.run("oras", "discover", "--plain-http", "--format", "json", f"{place.name}@{item['subject']}")
        (listed,) = _listed(json.loads(found.stdout))
        assert listed["digest"] == item["referrer"]
        assert listed["artifactType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
        assert listed["annotations"]["dev.sigstore.bundle.predicateType"] == "https://sigstore.dev/cosign/sign/v1"


def _listed(value: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = value.get("manifests") or value.get("referrers") or []
    return found


def test_the_older_tag_verifies_too(sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys(sid)
    signed = answer(capsys, "sign", place.at(), "--key", str(private), "--legacy")
    assert len(signed["legacy"]) == 3
    for digest in place.digests:
        assert f"sha256-{digest.hex}.sig" in place.tags()
        done = sid.run(
            "cosign", "verify", "--key", sid.inside(public), "--new-bundle-format=false", *OFFLINE, place.at(digest)
        )
        (claim,) = json.loads(done.stdout)
        assert claim["critical"]["type"] == "cosign container image signature"


def test_we_verify_the_older_form_that_cosign_makes(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    sid.run("sh", "-c", "cd /mnt && cosign generate-key-pair", environment=PASSWORD)
    public = sid.folder / "cosign.pub"
    older = ("--new-bundle-format=false", "-r", "--key", "/mnt/cosign.key", *SIGNING)
    sid.run("cosign", "sign", *older, place.at(), environment=PASSWORD)
    assert {f"sha256-{digest.hex}.sig" for digest in place.digests} <= set(place.tags())
    found = checks(answer(capsys, "verify", place.at(), "--key", str(public)), "verify.signature")
    assert [check["passed"] for check in found] == [True] * 3
    assert all("in the older form" in check["found"] for check in found)
    _, strange = store_key_pair(KeySigner.make(), sid.folder / "strange", None)
    answer(capsys, "verify", place.at(), "--key", str(strange), code=1)


def test_another_repository_holds_them(sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys(sid)
    elsewhere = place.name.replace("me/engine", "us/evidence")
    answer(capsys, "sign", place.at(), "--key", str(private), "--attestations", elsewhere)
    assert not [tag for tag in place.tags() if tag.startswith("sha256-") and place.api]
    answer(capsys, "verify", place.at(), "--key", str(public), code=1)
    document = answer(capsys, "verify", place.at(), "--key", str(public), "--attestations", elsewhere)
    assert document["passed"]


def test_the_how_to_s_commands_work(sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys(sid)
    predicate = sid.folder / "p.json"
    predicate.write_text(
        '{"buildDefinition": {"buildType": "x", "externalParameters": {}}, "runDetails": {"builder": {"id": "x"}}}'
    )
    answer(capsys, "sign", place.at(), "--key", str(private))
    answer(capsys, "attest", place.at(), "--type", "provenance", "--predicate", str(predicate), "--key", str(private))
    page = (Path(__file__).resolve().parents[2] / "docs/how-to/verify-an-image.md").read_text().replace("\\\n", " ")
    commands = [line.split() for line in page.splitlines() if line.startswith("cosign verify")]
    assert len(commands) == 2
    for command in commands:
        words = [sid.inside(public) if word == "release.pub" else word for word in command]
        assert words[-1].startswith("docker.io/example/engine@")
        sid.run(*words[:-1], "--allow-http-registry", place.at())


@pytest.mark.parametrize(
    ("word", "theirs", "predicate"),
    [
        ("sbom", "cyclonedx", {"bomFormat": "CycloneDX", "specVersion": "1.6"}),
        ("release", "https://github.com/imagebuild/imagebuild/release/v1", None),
    ],
)
def test_cosign_knows_our_types(
    sid: SidPrograms, place: Place, capsys: pytest.CaptureFixture[str], word: str, theirs: str, predicate: Any
) -> None:
    private, public = keys(sid)
    path = sid.folder / "p.json"
    release = {"target": "t", "counter": 1, "contentId": "x", "base": {"reference": "y"}}
    path.write_text(json.dumps(predicate or release))
    answer(capsys, "attest", place.at(), "--type", word, "--predicate", str(path), "--key", str(private))
    command = ("cosign", "verify-attestation", "--key", sid.inside(public), *OFFLINE, "--type", theirs)
    sid.run(*command, place.at())


def test_oras_lists_ours_in_a_layout(sid: SidPrograms, capsys: pytest.CaptureFixture[str]) -> None:
    """oras takes a digest for a manifest where index.json lists it, which an index's children are not."""
    index = two_platforms()
    layout = write_layout(sid.folder / "layout", index)
    private, _ = keys(sid)
    signed = answer(capsys, "sign", f"oci:{layout}", "--key", str(private))
    found = sid.run("oras", "discover", "--oci-layout", "--format", "json", f"{sid.inside(layout)}@{index.digest}")
    assert [listed["digest"] for listed in _listed(json.loads(found.stdout))] == [signed["attached"][0]["referrer"]]


def test_a_layout_copied_by_oras_keeps_its_signatures(
    sid: SidPrograms, registry: RealRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    index = two_platforms()
    layout = write_layout(sid.folder / "layout", {"v1": index})
    private, public = keys(sid)
    answer(capsys, "sign", f"oci:{layout}", "--key", str(private))
    name = f"{registry.host}/me/engine"
    sid.run("oras", "cp", "-r", "--from-oci-layout", "--to-plain-http", f"{sid.inside(layout)}:v1", f"{name}:v1")
    document = answer(capsys, "verify", f"{name}:v1", "--key", str(public))
    assert [check["passed"] for check in checks(document, "verify.signature")] == [True] * 3
    sid.run("cosign", "verify", "--key", sid.inside(public), *OFFLINE, f"{name}@{index.digest}")
