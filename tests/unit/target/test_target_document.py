"""target.yaml: its value, its contradictions, and the tags that it gives."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, PathReference, Repository
from imagebuild.target.document import RootSpec, TagValues, Target, load_target, parse_base, render_tag
from imagebuild.target.sku import SKUS

BASE = "sha256:f81998764e8594d71b40788c5285ae112acf9230129d5d0d238b5df83da5acf6"
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
CONTENT = Digest("c0ffee0" + "0" * 57)

SMALL = f"""\
schema: 1
name: b300-vllm
base: docker.io/vllm/vllm-openai:kimi-k31-mc@{BASE}
platforms: [linux/amd64]
"""
WHOLE = (
    SMALL
    + """\
sku: b300
overlays: [kimi-k3-tep-shared-tp, other]
roots: {vllm: {python: vllm}, opt: {path: /opt/x}, site: {purelib: true}}
derived: {record: keep}
content: cache
env: {A: "1"}
requires: {env: {HSA_NO_SCRATCH_RECLAIM: "1"}, host: {mec_firmware: ">=38"}}
identity: {vllm: "0.33.0", ai-dynamo: 1.6.1}
expect_applied: [other]
publish:
  repository: docker.io/example/engine
  tag: "{base.tag}-{base.short}-tep-shared-tp"
  arch_tag: "{base.tag}-{base.short}-tep-shared-tp-{arch}"
attestations: {repository: ghcr.io/example/att}
serve:
  engine: vllm
  args: [--tensor-parallel-size, "8"]
  model: {id: m/n, revision: abc, path: /models/n}
  tool_parser: kimi_k3
  reasoning_parser: kimi_k3
  speculative: {method: dspark, draft: d, revision: 6a2ef20a, tokens: 4, acceptance: real}
  ready_deadline: 30m
checks: {smoke: {deadline: 90s}, gsm8k: {threshold: 0.90, margin: 1.0, arms: [base, off, on], concurrency: [70]}}
waiver: 4878
"""
)


def write(folder: Path, text: str, name: str = "b300-vllm") -> Path:
    path = folder / name / "target.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def faults(path: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(ImagebuildError) as caught:
        load_target(path)
    every = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    return [(error.code, error.details["line"], error.details["key"]) for error in every]


def test_a_whole_target_becomes_a_value(tmp_path: Path) -> None:
    target = load_target(write(tmp_path, WHOLE))
    assert target.name == "b300-vllm"
    assert target.folder == tmp_path / "b300-vllm"
    assert target.base == DigestReference(
        Repository("docker.io", "vllm/vllm-openai"), Digest.parse(BASE), "kimi-k31-mc"
    )
    assert target.platforms == (AMD64,)
    assert target.hardware is SKUS["b300"]
    assert target.hardware.architecture == "sm_103"
    assert target.overlays == ("kimi-k3-tep-shared-tp", "other")
    assert target.roots == {
        "vllm": RootSpec(python="vllm"),
        "opt": RootSpec(path="/opt/x"),
        "site": RootSpec(purelib=True),
    }
    assert {name: root.to_json() for name, root in target.roots.items()} == {
        "vllm": {"python": "vllm"},
        "opt": {"path": "/opt/x"},
        "site": {"purelib": True},
    }
    assert (target.derived_record, target.content, target.waiver) == ("keep", "cache", 4878)
    assert target.env == {"A": "1"}
    assert target.requires_env == {"HSA_NO_SCRATCH_RECLAIM": "1"}
    assert target.requires_host == {"mec_firmware": ">=38"}
    assert target.identity == {"vllm": "0.33.0", "ai-dynamo": "1.6.1"}
    assert target.expect_applied == ("other",)
    assert target.attestations_repository == Repository("ghcr.io", "example/att")
    assert target.serve is not None
    assert target.serve.args == ("--tensor-parallel-size", "8")
    assert target.serve.ready_deadline == 1800
    assert target.serve.speculative is not None
    assert target.serve.speculative.revision == "6a2ef20a"
    assert target.checks is not None
    assert target.checks.smoke is not None
    assert target.checks.smoke.deadline == 90
    assert target.checks.gsm8k is not None
    assert target.checks.gsm8k.threshold == Decimal("0.90")
    assert target.checks.gsm8k.concurrency == (70,)


def test_the_least_target_has_the_documented_defaults(tmp_path: Path) -> None:
    target = load_target(write(tmp_path, SMALL))
    assert (target.derived_record, target.content, target.sku, target.hardware) == ("update", "commit", None, None)
    assert (target.overlays, target.roots, target.publish, target.serve, target.checks) == ((), {}, None, None, None)
    assert target.index_tag(CONTENT) is None
    assert target.arch_tag(CONTENT, AMD64) is None


def test_a_target_may_be_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, SMALL)
    monkeypatch.chdir(path.parent)
    assert load_target(Path("target.yaml")).folder == path.parent


def test_a_target_without_overlays_needs_no_image(tmp_path: Path) -> None:
    assert not load_target(write(tmp_path, SMALL + 'env: {A: "1"}\n')).needs_image
    assert load_target(write(tmp_path, WHOLE)).needs_image


def test_tags_are_rendered_for_the_index_and_each_platform(tmp_path: Path) -> None:
    target = load_target(write(tmp_path, WHOLE))
    assert target.index_tag(CONTENT) == "kimi-k31-mc-f819987-tep-shared-tp"
    assert target.arch_tag(CONTENT, AMD64) == "kimi-k31-mc-f819987-tep-shared-tp-x86_64"
    assert target.arch_tag(CONTENT, ARM64) == "kimi-k31-mc-f819987-tep-shared-tp-aarch64"


PUBLISH = "publish: {repository: x.org/y, tag: T, arch_tag: A}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SMALL.replace(f"@{BASE}", ""), [("target.base-unpinned", 3, "base")]),
        (SMALL.replace(f"docker.io/vllm/vllm-openai:kimi-k31-mc@{BASE}", "oci:bases/vllm"), [("target.base-unpinned", 3, "base")]),
        (SMALL.replace(f"docker.io/vllm/vllm-openai:kimi-k31-mc@{BASE}", "docker-daemon:x"), [("target.base-transport", 3, "base")]),
        (SMALL.replace(f"docker.io/vllm/vllm-openai:kimi-k31-mc@{BASE}", "dir:/rootfs"), [("target.base-transport", 3, "base")]),
        (SMALL.replace("name: b300-vllm", "name: b200"), [("target.name-mismatch", 2, "name")]),
        (SMALL + "sku: gb200\n", [("target.sku-platform", 4, "platforms")]),
        (SMALL.replace("amd64", "arm64") + "sku: h200\n", [("target.sku-platform", 4, "platforms")]),
        (SMALL + "sku: mi35x\n", [("schema.bad-value", 5, "sku")]),
        (SMALL + "overlays: [a]\nexpect_applied: [b]\n", [("target.unknown-overlay", 6, "expect_applied[0]")]),
        (SMALL + "overlays: [B]\nexpect_applied: [b]\n", [("schema.bad-value", 5, "overlays[0]")]),
        (SMALL + 'requires: {env: {A: "1"}}\nenv: {A: "2"}\n', [("target.env-contradicts", 6, "env.A")]),
        (SMALL + "checks: {gsm8k: {arms: [off, on]}}\n", [("target.no-base-arm", 5, "checks.gsm8k.arms")]),
        (SMALL + "checks: {gsm8k: {concurrency: [1, 64]}}\n", [("target.several-concurrencies", 5, "checks.gsm8k.concurrency")]),
        (SMALL + PUBLISH.replace("T,", '"{base.tga}",'), [("target.bad-template", 5, "publish.tag")]),
        (SMALL + PUBLISH.replace("T,", '"{base.tag}-{arch}",'), [("target.bad-template", 5, "publish.tag")]),
        (SMALL + PUBLISH.replace("T,", '"-x",'), [("target.bad-template", 5, "publish.tag")]),
        (SMALL + PUBLISH.replace("T,", f'"{"x" * 129}",'), [("target.bad-template", 5, "publish.tag")]),
        (SMALL + PUBLISH.replace("A}", "T}"), [("target.bad-template", 5, "publish.arch_tag")]),
        (SMALL.replace("[linux/amd64]", "[linux/amd64, linux/arm64]") + PUBLISH, [("target.bad-template", 5, "publish.arch_tag")]),
        (SMALL.replace(":kimi-k31-mc", "") + PUBLISH.replace("T,", '"{base.tag}",'), [("target.bad-template", 5, "publish.tag")]),
        (SMALL + "identity: {vllm: 0.33}\n", [("schema.wrong-type", 5, "identity.vllm")]),
        (SMALL + "platfroms: []\n", [("schema.unknown-key", 5, "platfroms")]),
        (SMALL + "publish:\n  repository: docker.io/x/Y\n  tag: a\n", [("oci.bad-reference", 6, "publish.repository")]),
    ],
)  # fmt: skip
def test_each_fault_has_its_line_and_key(tmp_path: Path, text: str, expected: list[tuple[str, int, str]]) -> None:
    assert faults(write(tmp_path, text)) == expected


def test_contradictions_and_misspelt_keys_are_told_in_one_pass(tmp_path: Path) -> None:
    text = (
        SMALL.replace("b300-vllm", "b300")
        + 'sku: gb300\nenv: {A: "2"}\nrequires: {env: {A: "1"}}\n'
        + PUBLISH.replace("T,", '"{arch}",')
        + "wavier: 3\n"
    )
    assert [code for code, _, _ in faults(write(tmp_path, text))] == [
        "target.name-mismatch",
        "target.sku-platform",
        "target.env-contradicts",
        "target.bad-template",
        "schema.unknown-key",
    ]


def test_an_unpinned_base_is_refused_with_the_command_that_pins_it() -> None:
    with pytest.raises(InputError) as caught:
        parse_base("vllm/vllm-openai:v1")
    assert caught.value.exit_code == 2
    assert caught.value.hint is not None
    assert "imagebuild init --base vllm/vllm-openai:v1" in caught.value.hint


def test_bases_of_three_kinds_are_pinned() -> None:
    assert isinstance(parse_base(f"vllm/vllm-openai@{BASE}"), DigestReference)
    layout = parse_base(f"oci:bases/vllm@{BASE}")
    assert layout == PathReference("oci", "bases/vllm", None, Digest.parse(BASE))
    assert isinstance(parse_base(f"oci-archive:b.tar@{BASE}"), PathReference)


def test_a_gb_sku_accepts_an_index_that_also_holds_amd64(tmp_path: Path) -> None:
    target = load_target(write(tmp_path, SMALL.replace("[linux/amd64]", "[linux/amd64, linux/arm64]") + "sku: gb200\n"))
    assert target.hardware is not None
    assert target.hardware.platform == ARM64


@pytest.mark.parametrize(
    ("name", "architecture", "capability", "platform"),
    [
        ("h200", "sm_90", "9.0", AMD64),
        ("b200", "sm_100", "10.0", AMD64),
        ("gb200", "sm_100", "10.0", ARM64),
        ("b300", "sm_103", "10.3", AMD64),
        ("gb300", "sm_103", "10.3", ARM64),
        ("mi300x", "gfx942", None, AMD64),
        ("mi325x", "gfx942", None, AMD64),
        ("mi355x", "gfx950", None, AMD64),
    ],
)
def test_the_table_of_accelerators(name: str, architecture: str, capability: str | None, platform: Platform) -> None:
    sku = SKUS[name]
    assert (sku.architecture, sku.capability, sku.platform) == (architecture, capability, platform)


VALUES = TagValues("v1", "abcdef0", "1234567", "x86_64")


@pytest.mark.parametrize(
    ("template", "tag"),
    [
        ("{base.tag}-{base.short}-{content.short}-{arch}", "v1-abcdef0-1234567-x86_64"),
        ("plain", "plain"),
        ("_{arch}", "_x86_64"),
        ("{base.tag}{base.tag}", "v1v1"),
    ],
)
def test_a_template_gives_a_tag(template: str, tag: str) -> None:
    assert render_tag(template, VALUES) == tag


@pytest.mark.parametrize(
    "template", ["", ".x", "-x", "{}", "{base}", "{tag}", "a b", "a/b", "{base.tag", "x}", "a" * 129, "{{arch}}"]
)
def test_a_template_that_gives_no_tag_is_refused(template: str) -> None:
    with pytest.raises(InputError) as caught:
        render_tag(template, VALUES)
    assert caught.value.code == "target.bad-template"


def test_a_name_without_a_value_is_refused_and_never_rendered_empty() -> None:
    for template in ("{base.tag}-x", "{arch}-x"):
        with pytest.raises(InputError) as caught:
            render_tag(template, TagValues(None, "abcdef0", "1234567"))
        assert caught.value.code == "target.bad-template"


def test_values_made_by_programs_are_validated_too() -> None:
    base = parse_base(f"x/y@{BASE}")
    with pytest.raises(InputError):
        Target("Upper", base, (AMD64,), Path("/w/Upper"))
    with pytest.raises(InputError):
        Target("a", base, (AMD64,), Path("/w/a"), sku="gb200")
    with pytest.raises(InputError):
        RootSpec(python="a", path="/b")
