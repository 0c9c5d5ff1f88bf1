"""Predicates made from the locks and overlays of this repository's own targets."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from imagebuild.attest.predicates.check_result import check_result
from imagebuild.attest.predicates.provenance import LOCAL_BUILDER, base_uri, build_provenance
from imagebuild.attest.predicates.release import ReleaseEvidence, ReleaseFacts, release_statement
from imagebuild.attest.predicates.sbom import cyclonedx, packages_of
from imagebuild.attest.predicates.types import BUILD_TYPE, RELEASE, stated_time, verdict_of
from imagebuild.attest.predicates.vex import openvex
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore
from imagebuild.errors import InputError
from imagebuild.overlay.document import Origin, Overlay
from imagebuild.target.lock import load_lock
from imagebuild.target.lock_types import LayerItem, Lock
from imagebuild.target.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
TARGETS = sorted(path.parent.name for path in ROOT.glob("manifests/*/target.lock.json"))


@dataclasses.dataclass
class Loaded:
    lock: Lock
    overlays: tuple[Overlay, ...]
    contents: CompressedStore

    def sbom(self, overlays: tuple[Overlay, ...] | None = None, dropped: tuple[str, ...] = ()) -> dict[str, Any]:
        inputs = self.lock.inputs
        series = self.overlays if overlays is None else overlays
        return cyclonedx(inputs, inputs.platforms[0], series, self.contents.get, dropped)


def load(name: str) -> Loaded:
    workspace = Workspace.find(ROOT)
    target = workspace.target(name)
    return Loaded(
        load_lock(workspace.lock_path(name)), workspace.series(target), CompressedStore(workspace.content_path(name))
    )


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return load("demo")


def test_there_are_targets() -> None:
    assert {"demo", "b300-vllm"} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_sbom_passes_the_standards_own_strict_schema(name: str) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    loaded = load(name)
    text = json.dumps(loaded.sbom(dropped=(f"sha256:{'a' * 64}",)))
    fault = validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text)
    assert fault is None, fault


@pytest.mark.parametrize("name", TARGETS)
def test_the_sboms_in_the_images_pass_it_too(name: str) -> None:
    """Each patched distribution of each target has one; a wheel that is brought whole is patched by nobody."""
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    loaded = load(name)
    for platform in loaded.lock.inputs.platforms:
        patched = {x.origin.partition(":")[2] for x in platform.changes if x.origin.startswith("provenance:")}
        found = {x.origin.partition(":")[2]: x for x in platform.changes if x.origin.startswith("sbom:")}
        assert set(found) == patched
        for item in found.values():
            text = (loaded.contents.get(item.postimage) or b"").decode()
            assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
            assert json.loads(text)["components"][0]["pedigree"]["patches"]


def test_the_strict_schema_is_strict() -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    text = json.dumps({**load("demo").sbom(), "unknown": 1})
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is not None


@pytest.mark.parametrize("name", TARGETS)
def test_documents_are_the_same_each_time(name: str) -> None:
    one, two = load(name), load(name)
    platform = one.lock.inputs.platforms[0]
    assert canonical_json(one.sbom()) == canonical_json(two.sbom())
    assert canonical_json(build_provenance(one.lock.inputs, platform)) == canonical_json(
        build_provenance(two.lock.inputs, two.lock.inputs.platforms[0])
    )


def test_the_pedigree_says_what_was_done_to_which_package(demo: Loaded) -> None:
    document = demo.sbom()
    (component,) = [c for c in document["components"] if c["name"] == "vllm"]
    assert component["purl"] == "pkg:pypi/vllm@0.33.0"
    assert component["pedigree"]["ancestors"][0]["purl"] == component["purl"]
    patches = component["pedigree"]["patches"]
    changes = [change for overlay in demo.overlays for change in overlay.changes]
    assert len(patches) == len(changes)
    assert {patch["type"] for patch in patches} == {"unofficial"}
    for patch in patches:
        assert patch["diff"]["text"]["content"].startswith(("--- ", "diff "))
    names = {p["name"].rpartition(":")[2] for p in component["properties"]}
    assert names <= {"changed-file", "added-file", "removed-file"}
    changed = {p["value"] for p in component["properties"]}
    for item in demo.lock.inputs.platforms[0].changes:
        if item.origin.startswith("change:vllm/"):
            assert item.path in changed
            assert item.path in component["pedigree"]["notes"]
    assert document["compositions"] == [{"aggregate": "incomplete", "assemblies": ["image:demo"]}]
    licences = [p["value"] for p in document["metadata"]["component"]["properties"] if p["name"].endswith(":license")]
    assert licences == [overlay.license for overlay in demo.overlays]


def test_the_serial_number_follows_the_content(demo: Loaded) -> None:
    (overlay, *rest) = demo.overlays
    other = (dataclasses.replace(overlay, license="MIT"), *rest)
    assert demo.sbom()["serialNumber"] != demo.sbom(other)["serialNumber"]
    assert demo.sbom()["serialNumber"].startswith("urn:uuid:")


@pytest.mark.parametrize(
    ("kind", "word"), [("backport", "backport"), ("upstream", "cherry-pick"), ("vendor", "unofficial")]
)
def test_origins_have_cyclonedx_words(demo: Loaded, kind: str, word: str) -> None:
    (overlay, *rest) = demo.overlays
    url = "https://github.com/example/engine/pull/1"
    other = dataclasses.replace(overlay, origin=Origin(kind, url), fixes=("CVE-2026-1",))
    patches = demo.sbom((other, *rest))["components"][0]["pedigree"]["patches"]
    assert patches[0]["type"] == word
    assert [issue["type"] for issue in patches[0]["resolves"]] == ["security", "enhancement"]
    assert patches[0]["resolves"][0]["source"]["url"] == url


@pytest.mark.parametrize("name", TARGETS)
def test_provenance_names_everything_that_went_in(name: str) -> None:
    loaded = load(name)
    inputs = loaded.lock.inputs
    for platform in inputs.platforms:
        predicate = build_provenance(inputs, platform, source="git+https://example.com/x", source_commit="a" * 40)
        definition = predicate["buildDefinition"]
        assert definition["buildType"] == BUILD_TYPE
        assert definition["internalParameters"]["contentId"] == str(inputs.content_id)
        assert definition["externalParameters"]["base"].endswith(f"@{inputs.base_digest}")
        assert predicate["runDetails"]["builder"]["id"] == LOCAL_BUILDER
        digests = {str(d["digest"].get("sha256")) for d in definition["resolvedDependencies"]}
        assert {inputs.base_digest.hex, platform.manifest.hex} <= digests
        for overlay in inputs.wanted["overlays"]:
            for change in overlay["changes"]:
                if change["kind"] == "patch":
                    assert change["digest"].removeprefix("sha256:") in digests
        assert definition["resolvedDependencies"][-1]["digest"] == {"gitCommit": "a" * 40}


def test_a_base_in_a_registry_is_a_package_url(demo: Loaded) -> None:
    inputs = dataclasses.replace(demo.lock.inputs, base="docker.io/vllm/vllm-openai:v1")
    expected = f"pkg:oci/vllm-openai@sha256%3A{inputs.base_digest.hex}?repository_url=docker.io/vllm/vllm-openai"
    assert base_uri(inputs) == expected
    assert base_uri(demo.lock.inputs).startswith("oci:")


def test_wheels_and_blobs_are_dependencies_of_their_platform_only(demo: Loaded) -> None:
    digests = {"linux/amd64": f"sha256:{'1' * 64}", "linux/arm64": f"sha256:{'2' * 64}"}
    changes = [
        {"kind": "wheel", "name": "ai-dynamo", "version": "1.6.1", "sha256": digests},
        {"kind": "blob", "path": "aiter/x.so", "sha256": f"sha256:{'3' * 64}", "platforms": ["linux/arm64"]},
        {"kind": "blob", "path": "aiter/y.so", "sha256": f"sha256:{'4' * 64}", "platforms": []},
    ]
    wanted = {**demo.lock.inputs.wanted, "overlays": [{"name": "o", "changes": changes}]}
    inputs = dataclasses.replace(demo.lock.inputs, wanted=wanted)
    found = build_provenance(inputs, inputs.platforms[0])["buildDefinition"]["resolvedDependencies"]
    assert [item["digest"]["sha256"][0] for item in found[2:]] == ["1", "4"]
    assert found[2]["annotations"] == {"name": "ai-dynamo", "version": "1.6.1"}
    document = cyclonedx(inputs, inputs.platforms[0], (), lambda digest: None)
    assert "pkg:pypi/ai-dynamo@1.6.1" in [c.get("purl") for c in document["components"]]


def test_vex_is_made_of_fixes_and_of_nothing_else(demo: Loaded) -> None:
    image = Digest.of(b"image")
    assert openvex(demo.lock.inputs, demo.overlays, image, "me") is None
    fixing = tuple(dataclasses.replace(overlay, fixes=("CVE-2026-2", "CVE-2026-1")) for overlay in demo.overlays)
    document = openvex(demo.lock.inputs, fixing, image, "me")
    assert document is not None
    assert document == openvex(demo.lock.inputs, fixing, image, "me")
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert [s["vulnerability"]["name"] for s in document["statements"]] == ["CVE-2026-1", "CVE-2026-2"]
    assert {s["status"] for s in document["statements"]} == {"fixed"}
    assert image.hex in document["statements"][0]["products"][0]["@id"]
    assert document["version"] == 1
    assert document["timestamp"]


@pytest.mark.parametrize(
    ("verdict", "result"),
    [("passed", "PASSED"), ("non-inferior", "PASSED"), ("failed", "FAILED"), ("inferior", "FAILED")],
)
def test_results_follow_the_table(verdict: str, result: str) -> None:
    made = check_result(
        "gsm8k", verdict, configuration={"lock": Digest.of(b"l")}, evidence={"e": Digest.of(b"e")}, finished=0
    )
    assert made["result"] == result
    assert verdict_of("gsm8k", made) == verdict
    assert verdict_of("smoke", made) is None
    assert stated_time("https://in-toto.io/attestation/test-result/v0.1", made) == 0
    assert made["evidence"] == [{"name": "e", "digest": {"sha256": Digest.of(b"e").hex}}]


@pytest.mark.parametrize("verdict", ["inconclusive", "invalid", "not-run", "not-proven", "infrastructure", "PASSED"])
def test_what_is_no_answer_is_not_attested(verdict: str) -> None:
    with pytest.raises(InputError) as caught:
        check_result("smoke", verdict, configuration={}, evidence={}, finished=0)
    assert caught.value.code == "attest.bad-predicate"


@pytest.mark.parametrize("name", TARGETS)
def test_a_release_passes_its_schema_and_names_index_and_platforms(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    loaded = load(name)
    facts = ReleaseFacts(
        3, 1_790_000_000, "docker.io/me/engine", (4878, date(2026, 12, 31)),
        [ReleaseEvidence("smoke", "passed", Digest.of(b"s"))], "b" * 40,
    )  # fmt: skip
    statement = release_statement(loaded.lock, loaded.overlays, facts)
    assert statement.predicate_type == RELEASE
    result = loaded.lock.result
    assert {s.digest for s in statement.subjects} == {result.digest, *(p.manifest for p in result.platforms)}
    schema = json.loads((ROOT / "docs/reference/release-predicate.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator.validate(statement.value)
    bare = release_statement(loaded.lock, loaded.overlays, ReleaseFacts(1, 0)).value
    validator.validate(bare)
    for key in schema["required"]:
        assert not validator.is_valid({k: v for k, v in bare.items() if k != key})


def test_packages_are_named_by_their_dist_info(demo: Loaded) -> None:
    assert [(p.root, p.name, p.version) for p in packages_of(demo.lock.inputs.platforms[0])] == [
        ("vllm", "vllm", "0.33.0")
    ]


def test_blobs_and_links_are_named_as_what_they_are(demo: Loaded) -> None:
    (platform, *_) = demo.lock.inputs.platforms
    folder = platform.roots[0].folder
    blob = LayerItem(f"{folder}/kernel.so", "file", "blob:vllm/kernel.so", 0o755, postimage=Digest.of(b"elf"))
    loose = LayerItem("/opt/table.bin", "file", "stage:files/table.bin", 0o644, postimage=Digest.of(b"table"))
    link = LayerItem(f"{folder}/l", "symlink", "change:vllm/l", 0o777, link="x", preimage=Digest.of(b"old"))
    more = dataclasses.replace(platform, artefacts=(blob, loose), changes=(*platform.changes, link))
    document = cyclonedx(demo.lock.inputs, more, demo.overlays, demo.contents.get)
    (component,) = [c for c in document["components"] if c["name"] == "vllm"]
    named = {p["value"]: p["name"].rpartition(":")[2] for p in component["properties"]}
    assert (named[blob.path], named[link.path]) == ("added-file", "changed-file")
    (file,) = [c for c in document["components"] if c["type"] == "file"]
    assert (file["name"], file["hashes"][0]["content"]) == (loose.path, Digest.of(b"table").hex)
