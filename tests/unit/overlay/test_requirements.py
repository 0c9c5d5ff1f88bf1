"""Requirements of wheels against what an image has: what blocks, what is only said."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from imagebuild.oci.platform import Platform
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.requirements import Metadata, check_requirements, parse_metadata

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
BLOCKING, NOTE = Severity.BLOCKING, Severity.NOTE


def dist(name: str, version: str, *requires: str, python: str = "") -> Metadata:
    return Metadata(name, version, python, requires, f"site/{name}-{version}.dist-info")


def check(
    brought: list[Metadata],
    base: Collection[Metadata] = (),
    platform: Platform = AMD64,
    without: Collection[str] = (),
) -> list[tuple[Severity, str]]:
    before = {item.name: item for item in base}
    new = {item.name: item for item in brought}
    found: tuple[Finding, ...] = check_requirements(
        new, before, {**before, **new}, platform, "3.12", lambda name: without
    )
    return [(item.severity, item.message) for item in found]


def test_metadata_is_read() -> None:
    text = "Metadata-Version: 2.1\nName: My_Dist\nVersion: 1.0\nRequires-Python: >=3.9\nRequires-Dist: a\nRequires-Dist: b>1\n\nx"
    assert parse_metadata(text, "p") == Metadata("my-dist", "1.0", ">=3.9", ("a", "b>1"), "p")


def test_requirements_that_are_met_say_nothing() -> None:
    wheel = dist("w", "1", "helper>=2", "Other_Name", "never; python_version < '3'", "extra-only; extra == 'x'")
    assert check([wheel], [dist("helper", "2.0"), dist("other-name", "1")]) == []


def test_what_the_wheel_needs_and_the_image_lacks_blocks() -> None:
    ((severity, message),) = check([dist("w", "1", "helper>=2")])
    assert severity is BLOCKING
    assert message == "w 1 requires helper>=2: the image does not have it"


def test_another_version_blocks_and_is_named() -> None:
    ((severity, message),) = check([dist("w", "1", "helper>=2")], [dist("helper", "1.9")])
    assert (severity, message) == (BLOCKING, "w 1 requires helper>=2: the image has 1.9")


def test_wheels_of_one_series_meet_each_other_s_requirements() -> None:
    assert check([dist("w", "1", "runtime==1"), dist("runtime", "1")]) == []


def test_what_the_replaced_version_lacked_too_is_a_note() -> None:
    old = dist("w", "0.9", "helper>=1")
    ((severity, _),) = check([dist("w", "1", "helper>=2")], [old])
    assert severity is NOTE


def test_what_the_reviewer_accepted_is_a_note_and_an_idle_acceptance_is_said() -> None:
    found = check([dist("w", "1", "helper>=2")], without=["Helper", "idle"])
    assert [severity for severity, _ in found] == [NOTE, NOTE]
    assert "idle" in found[1][1]


def test_what_a_wheel_breaks_in_another_distribution_blocks() -> None:
    engine = dist("engine", "1.0", "w<1", "missing")
    ((severity, message),) = check([dist("w", "1")], [engine, dist("w", "0.9")])
    assert (severity, message) == (BLOCKING, "engine 1.0 requires w<1: the image has 1")


def test_what_was_broken_before_is_not_the_wheel_s_fault() -> None:
    assert (
        check([dist("w", "1")], [dist("engine", "1.0", "missing"), dist("other", "2", "w>=5"), dist("w", "0.9")]) == []
    )


def test_markers_are_evaluated_for_the_platform_and_the_image_s_python() -> None:
    wheel = dist(
        "w",
        "1",
        "only-arm; platform_machine == 'aarch64'",
        "old; python_version < '3.12'",
        "lin; sys_platform == 'win32'",
    )
    assert check([wheel]) == []
    ((_, message),) = check([wheel], platform=ARM64)
    assert "only-arm" in message


def test_extras_are_followed_into_the_distribution_that_has_them() -> None:
    helper = dist("helper", "2", "fast; extra == 'speed'", "plain", "deep[x]; extra == 'speed'", "no; extra == 'other'")
    found = check(
        [dist("w", "1", "helper[speed]")], [helper, dist("plain", "1"), dist("deep", "1", "far; extra == 'x'")]
    )
    assert [message.partition(": ")[0] for _, message in found] == [
        "w (through helper) 1 requires fast; extra == 'speed'",
        "w (through deep) 1 requires far; extra == 'x'",
    ]


def test_extras_that_lead_in_a_circle_end() -> None:
    a = dist("a", "1", "b[x]; extra == 'x'")
    b = dist("b", "1", "a[x]; extra == 'x'")
    assert check([dist("w", "1", "a[x]")], [a, b]) == []


def test_pre_releases_that_are_installed_count() -> None:
    assert check([dist("w", "1", "helper>=2")], [dist("helper", "2.1rc1")]) == []


@pytest.mark.parametrize("text", ["not a requirement !!", "helper>=>2"])
def test_a_line_that_is_none_blocks(text: str) -> None:
    ((severity, message),) = check([dist("w", "1", text)])
    assert severity is BLOCKING
    assert text in message


def test_a_version_that_is_none_does_not_meet_anything() -> None:
    ((severity, _),) = check([dist("w", "1", "helper>=2")], [dist("helper", "unknown")])
    assert severity is BLOCKING


@pytest.mark.parametrize(
    ("python", "fits"),
    [
        (">=3.9", True),
        ("<3.12", False),
        (">=3.12.3", True),
        ("==3.11.*", False),
        ("!=3.12.*", False),
        ("nonsense", False),
    ],
)
def test_requires_python(python: str, fits: bool) -> None:
    found = check([dist("w", "1", python=python)])
    assert [severity for severity, _ in found] == ([] if fits else [BLOCKING])
