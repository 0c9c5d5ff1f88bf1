"""Platforms in people's words and in documents."""

import pytest

from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("linux/amd64", AMD64),
        ("amd64", AMD64),
        ("x86_64", AMD64),
        ("x86-64", AMD64),
        ("LINUX/X86_64", AMD64),
        (" arm64 ", ARM64),
        ("aarch64", ARM64),
        ("linux/arm64/v8", ARM64),
        ("linux/amd64/v3", Platform("linux", "amd64", "v3")),
    ],
)
def test_parse(text: str, found: Platform) -> None:
    assert Platform.parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "linux",
        "linux/",
        "windows/amd64",
        "linux/riscv64",
        "linux/amd64/",
        "linux/amd64/v1/x",
        "linux/amd64/..\\",
        "unknown/unknown",
        "linux/amd64/" + "v" * 17,
        "linux/amd64/v 1",
        "darwin/arm64",
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Platform.parse(text)
    assert caught.value.code == "oci.bad-platform"


def test_from_json_takes_any_words() -> None:
    assert Platform.from_json({"os": "unknown", "architecture": "unknown"}) == Platform("unknown", "unknown")
    assert Platform.from_json({"os": None}) == Platform("", "")
    assert not Platform.from_json({"os": "unknown", "architecture": "unknown"}).known
    assert not Platform.from_json({"os": "linux"}).known
    assert Platform.from_json({"os": "linux", "architecture": "s390x"}).known


@pytest.mark.parametrize("key", ["os", "architecture", "variant"])
def test_from_json_refuses_words_that_are_no_text(key: str) -> None:
    with pytest.raises(InputError, match=key):
        Platform.from_json({"os": "linux", "architecture": "amd64", key: ["x"]})


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        (ARM64, Platform("linux", "arm64", "v8"), True),
        (Platform("linux", "arm", "v7"), Platform("linux", "arm"), True),
        (Platform("linux", "arm", "v7"), Platform("linux", "arm", "v6"), False),
        (Platform("linux", "arm", "v7"), Platform("linux", "arm", "v7"), True),
        (Platform("linux", "arm64", "v9"), Platform("linux", "arm64", "v9"), True),
        (AMD64, ARM64, False),
        (AMD64, Platform("windows", "amd64"), False),
    ],
)
def test_agrees(one: Platform, other: Platform, agrees: bool) -> None:
    assert one.agrees(other) is agrees
    assert other.agrees(one) is agrees


def test_only_arm64s_v8_is_no_variant() -> None:
    for kept in (Platform("linux", "arm64", "v9"), Platform("linux", "arm", "v8"), Platform("linux", "amd64", "v2")):
        assert kept.normalised() == kept
    assert Platform("linux", "arm64", "v8").normalised() == ARM64


def test_words_for_others() -> None:
    assert (AMD64.machine, ARM64.machine, Platform("linux", "s390x").machine) == ("x86_64", "aarch64", "s390x")
    assert str(Platform("linux", "arm", "v7")) == "linux/arm/v7"
    assert Platform("linux", "arm", "v7").to_json() == {"architecture": "arm", "os": "linux", "variant": "v7"}
    assert AMD64.to_json() == {"architecture": "amd64", "os": "linux"}
