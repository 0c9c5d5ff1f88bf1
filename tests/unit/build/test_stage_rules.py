"""What a stage's Dockerfile must keep to."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuild.build.dockerfile import parse_dockerfile
from imagebuild.build.stage_rules import check_stage
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import StageChange

PIN = str(Digest.of(b"a base"))
GOOD = f"FROM debian:12@{PIN} AS build\nRUN make\nFROM scratch\nCOPY --from=build /x /x\n"
AMD64 = Platform.parse("linux/amd64")


def bases(text: str, platform: Platform = AMD64, **change: Any) -> list[tuple[int, str]]:
    wanted = StageChange("d/x.Dockerfile", {"/x": "root/x"}, **{"reproducible": True, **change})
    found = check_stage(parse_dockerfile(text.encode(), wanted.dockerfile), wanted, platform)
    return [(base.line, str(base.reference)) for base in found]


def fault(text: str, **change: Any) -> ImagebuildError:
    with pytest.raises(ImagebuildError) as caught:
        bases(text, **change)
    return caught.value


def test_a_pinned_base_and_scratch() -> None:
    assert bases(GOOD) == [(1, f"docker.io/library/debian:12@{PIN}")]


@pytest.mark.parametrize("image", ["debian", "debian:12", "$BASE", "${BASE:-debian:12}", "scratchy", "Not An Image"])
def test_an_unpinned_base_is_refused_with_its_line(image: str) -> None:
    error = fault(f"# one\nFROM {image.replace(' ', '_')} AS b\nFROM scratch\n")
    assert error.code == "stage.unpinned"
    assert error.exit_code == 1
    assert error.message.startswith("d/x.Dockerfile:2: FROM")


def test_arguments_before_from_count_with_their_defaults_and_the_overlays_values() -> None:
    text = f"ARG NAME=debian\nARG BASE=${{NAME}}@{PIN}\nFROM ${{BASE}}\nFROM scratch\n"
    assert bases(text) == [(3, f"docker.io/library/debian:latest@{PIN}".replace(":latest", ""))]
    assert fault(text, args={"BASE": "debian:12"}).code == "stage.unpinned"
    assert bases("ARG BASE\nFROM $BASE\nFROM scratch\n", args={"BASE": f"host.example/b@{PIN}"}) == [
        (2, f"host.example/b@{PIN}")
    ]


def test_an_argument_behind_from_is_not_from_s() -> None:
    """BuildKit gives FROM the arguments above the first FROM only."""
    assert fault(f"FROM scratch AS a\nARG BASE=debian@{PIN}\nFROM $BASE\nFROM scratch\n").code == "stage.unpinned"


def test_the_platform_s_own_arguments() -> None:
    text = (
        f"FROM scratch AS base-arm64\nFROM debian@{PIN} AS base-amd64\nFROM base-${{TARGETARCH}} AS b\nFROM scratch\n"
    )
    assert len(bases(text)) == 1
    assert len(bases(text, Platform.parse("linux/arm64"))) == 1
    assert fault(text.replace("base-arm64", "base-riscv").replace("base-amd64", "base-mips")).code == "stage.unpinned"


def test_stages_are_named_without_regard_to_case_and_by_number() -> None:
    text = f"FROM debian@{PIN} AS Build\nFROM build AS two\nFROM scratch\nCOPY --from=TWO a a\nCOPY --from=1 b b\n"
    assert len(bases(text)) == 1
    assert fault(text.replace("--from=1", "--from=7")).code == "stage.unpinned"


@pytest.mark.parametrize(
    "line",
    [
        "COPY --from=busybox /bin/x /x",
        "COPY --chown=1 --from=busybox:1 /bin/x /x",
        "COPY --from=$IMAGE /bin/x /x",
        "RUN --mount=type=bind,from=busybox,target=/x make",
        "RUN --mount=type=bind,target=/x,From=busybox make",
        "ADD https://host.example/x.tar /",
        "ADD a.txt https://host.example/x.tar /",
        'ADD ["https://host.example/x.tar", "/"]',
        "ADD git@host.example:x.git /",
        "ADD $URL /",
    ],
)
def test_other_ways_in_are_pinned_too(line: str) -> None:
    error = fault(f"FROM debian@{PIN} AS b\n{line}\nFROM scratch\n")
    assert error.code == "stage.unpinned"
    assert error.message.startswith("d/x.Dockerfile:2: ")


@pytest.mark.parametrize(
    "line",
    [
        f"COPY --from=busybox@{PIN} /bin/x /x",
        f"RUN --mount=type=bind,from=busybox@{PIN},target=/x make",
        f"ADD --checksum={PIN} https://host.example/x.tar /",
        "ADD https.txt /",
        "COPY http://x /",
        "RUN --network=none make",
        "RUN --mount=type=tmpfs,target=/t make",
    ],
)
def test_what_is_pinned_may_come_in(line: str) -> None:
    assert bases(f"FROM debian@{PIN} AS b\n{line}\nFROM scratch\n")


def test_the_frontend_is_an_image_too() -> None:
    assert fault("# syntax=docker/dockerfile:1\n" + GOOD).message.startswith("d/x.Dockerfile:1: the frontend")
    assert len(bases(f"# syntax=docker/dockerfile:1@{PIN}\n" + GOOD)) == 2


@pytest.mark.parametrize(
    "text", [f"FROM debian@{PIN}\n", f"FROM scratch AS s\nFROM debian@{PIN} AS b\n", "FROM scratch AS a\nFROM a\n"]
)
def test_the_last_stage_is_from_scratch(text: str) -> None:
    assert fault(text).code == "stage.not-scratch"


def test_a_network_of_its_own() -> None:
    text = GOOD.replace("RUN make", "RUN --network=default make")
    assert fault(text).code == "stage.network"
    assert bases(text, network="default")


def test_hidden_state() -> None:
    cache = GOOD.replace("RUN make", "RUN --mount=type=cache,target=/c make")
    assert fault(cache).code == "stage.hidden-state"
    assert bases(cache, reproducible=False)
    assert (
        fault(GOOD.replace("RUN make", "RUN --security=insecure make"), reproducible=False).code == "stage.hidden-state"
    )


def test_a_misspelt_argument_is_not_dropped() -> None:
    text = "ARG GPU_ARCHS=gfx942\n" + GOOD
    error = fault(text, args={"GPU_ARCH": "gfx950"})
    assert error.code == "stage.unknown-argument"
    assert error.hint == "did you mean GPU_ARCHS?"
    assert bases(text, args={"GPU_ARCHS": "gfx950", "SOURCE_DATE_EPOCH": "1"})
    assert bases(GOOD.replace("RUN make", "ARG INNER=1\nRUN make"), args={"INNER": "2"})


def test_every_fault_is_told_at_once() -> None:
    error = fault("FROM debian AS b\nCOPY --from=busybox a a\nFROM debian:12\n", args={"X": "1"})
    assert isinstance(error, SeveralErrors)
    assert [one.code for one in error.errors] == [
        "stage.unpinned",
        "stage.unpinned",
        "stage.unpinned",
        "stage.not-scratch",
        "stage.unknown-argument",
    ]
    assert error.exit_code == 2


def test_from_with_other_words() -> None:
    assert fault(f"FROM debian@{PIN} IN b\nFROM scratch\n").code == "stage.bad-dockerfile"
