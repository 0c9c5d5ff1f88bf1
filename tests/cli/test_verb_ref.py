"""`ref`: the line by which each consumer names an image."""

from __future__ import annotations

from typing import Any

import pytest

HEX = "f81998764e8594d71b40788c5285ae112acf9230129d5d0d238b5df83da5acf6"
HUB = f"docker.io/vllm/vllm-openai:kimi-k31-mc@sha256:{HEX}"
OTHER = f"registry.example.org:5000/team/engine:v1@sha256:{HEX}"

LINES = {
    ("image", HUB): f"docker.io/vllm/vllm-openai@sha256:{HEX}",
    ("docker", HUB): HUB,
    ("recipe", HUB): HUB,
    ("podman", HUB): f"docker.io/vllm/vllm-openai@sha256:{HEX}",
    ("enroot3", HUB): f"docker://vllm/vllm-openai:sha256:{HEX}",
    ("enroot4", HUB): f"docker://vllm/vllm-openai@sha256:{HEX}",
    ("pyxis", HUB): f"vllm/vllm-openai:sha256:{HEX}",
    ("squash-name", HUB): f"vllm-openai-sha256-{HEX}.sqsh",
    ("image", OTHER): f"registry.example.org:5000/team/engine@sha256:{HEX}",
    ("docker", OTHER): OTHER,
    ("podman", OTHER): f"registry.example.org:5000/team/engine@sha256:{HEX}",
    ("enroot3", OTHER): f"docker://registry.example.org:5000#team/engine:sha256:{HEX}",
    ("enroot4", OTHER): f"docker://registry.example.org:5000#team/engine@sha256:{HEX}",
    ("pyxis", OTHER): f"registry.example.org:5000#team/engine:sha256:{HEX}",
    ("squash-name", OTHER): f"engine-sha256-{HEX}.sqsh",
}


@pytest.mark.parametrize(("form", "reference"), LINES)
def test_each_form(verb: Any, form: str, reference: str) -> None:
    ran = verb("ref", reference, "--as", form)
    assert (ran.code, ran.out) == (0, LINES[form, reference] + "\n")


@pytest.mark.parametrize(
    "written",
    [
        f"vllm/vllm-openai:kimi-k31-mc@sha256:{HEX}",
        f"docker://docker.io/vllm/vllm-openai:kimi-k31-mc@sha256:{HEX}",
        f"vllm/vllm-openai:sha256:{HEX}",
        f"docker.io#vllm/vllm-openai:sha256:{HEX}",
    ],
)
def test_other_spellings_are_read(verb: Any, written: str) -> None:
    assert verb("ref", written).out == f"docker.io/vllm/vllm-openai@sha256:{HEX}\n"


def test_what_has_no_line(verb: Any) -> None:
    for subject, form, code in (
        ("docker.io/vllm/vllm-openai:v1", "docker", "ref.unpinned"),
        ("oci:build/x:v1", "enroot3", "ref.form"),
        (f"oci:build/x@sha256:{HEX}", "docker", "ref.form"),
    ):
        ran = verb("ref", subject, "--as", form, "--json")
        assert (ran.code, ran.document["code"]) == (2, code), ran.out
    assert verb("ref", HUB, "--platform", "arm64").code == 2


def test_of_a_target_without_publish_the_layout(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    assert verb("ref", "tuned", "--json").document["code"] == "lock.missing"
    verb("lock", "tuned")
    assert verb("ref", "tuned").out == f"oci:build/tuned@{space.digest()}\n"


def test_of_a_target_the_published_index_and_each_platform(in_workspace: Any, verb: Any) -> None:
    space = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    space.write_target(
        publish={
            "repository": "docker.io/example/engine",
            "tag": "{base.tag}-{base.short}-tuned",
            "arch_tag": "{base.tag}-{base.short}-tuned-{arch}",
        }
    )
    verb("lock", "tuned")
    short = space.base.digest.hex[:7]
    result = space.lock()["result"]
    assert (
        verb("ref", "tuned", "--as", "docker").out == f"docker.io/example/engine:v1-{short}-tuned@{result['digest']}\n"
    )
    arm = result["platforms"]["linux/arm64"]["manifest"]
    document = verb("ref", "tuned", "--platform", "arm64", "--as", "recipe", "--json").document
    assert document == {
        "kind": "reference",
        "schemaVersion": 1,
        "subject": "tuned",
        "as": "recipe",
        "line": f"docker.io/example/engine:v1-{short}-tuned-aarch64@{arm}",
    }
