"""Step 1 on images that somebody else made or changed: ELF machine, bytecode, platform, and that it is the image at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from smoke_bench import SITE, Bench

from imagebuild.check.images import checked_image
from imagebuild.check.smoke import SmokeRequest, run_smoke
from imagebuild.check.smoke.step_files import judge
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image, write_layout
from imagebuild.testing.smoke_engine import DECODE, DECODE_AFTER

AMD64 = Platform("linux", "amd64")
TIME = 1_700_000_000


def elf(machine: int) -> bytes:
    """The first bytes of a 64-bit little-endian shared object."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little") + bytes(60)


def pyc(flags: int, time: int, size: int) -> bytes:
    return (
        b"\xa7\r\r\n" + flags.to_bytes(4, "little") + time.to_bytes(4, "little") + size.to_bytes(4, "little") + b"code"
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("files"))


def with_layer(bench: Bench, folder: Path, *files: File) -> SmokeRequest:
    """A request for an image of as many layers whose upper one holds these files."""
    below = [LayerSpec((File("etc/base", b"base"),)), LayerSpec((File("etc/engine", b"engine"),))]
    made = make_image(ImageSpec((*below, LayerSpec(files)), AMD64))
    source = LayoutSource(write_layout(folder / "layout", {"v1": made}))
    return replace(bench.request(), image=checked_image(source, "v1", AMD64))


def parts(request: SmokeRequest) -> dict[str, tuple[str, str]]:
    return {one.name: (str(one.judgement.verdict), one.judgement.reason) for one in judge(request, {}).parts}


def test_a_shared_object_for_another_processor_is_named(bench: Bench, tmp_path: Path) -> None:
    found = parts(
        with_layer(bench, tmp_path, File("opt/a.so", elf(62)), File("opt/b.so", elf(183)), File("opt/c", b""))
    )
    assert found["elf"] == ("failed", "/opt/b.so is for aarch64, the image for x86_64")


def test_shared_objects_for_this_processor_and_for_accelerators_pass(bench: Bench, tmp_path: Path) -> None:
    found = parts(with_layer(bench, tmp_path, File("opt/a.so", elf(62)), File("opt/k.co", elf(224))))
    assert found["elf"] == ("passed", "2 ELF files")


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (pyc(0, TIME, len(DECODE_AFTER)), "failed"),
        (pyc(0, TIME, len(DECODE)), "passed"),
        (pyc(1, 0, 0), "failed"),
        (pyc(3, 0, 0), "passed"),
    ],
    ids=["time and size of the patched source", "of another source", "unchecked hash", "checked hash"],
)
def test_bytecode_that_would_run_instead_of_the_source_is_named(
    bench: Bench, tmp_path: Path, head: bytes, verdict: str
) -> None:
    source = File(f"{SITE}/engine/decode.py", DECODE_AFTER, mtime=TIME)
    cached = File(f"{SITE}/engine/__pycache__/decode.cpython-311.pyc", head)
    found = parts(with_layer(bench, tmp_path, source, cached))
    assert found["bytecode"][0] == verdict


def test_another_image_voids_the_run_whatever_else_it_is(bench: Bench, tmp_path: Path) -> None:
    found = parts(with_layer(bench, tmp_path, File("opt/x", b"x")))
    assert found["digest"][0] == "invalid"
    assert found["base-prefix"][0] == "failed"
    assert found["layer-content"][0] == "failed"


def test_an_image_for_other_machines_than_the_sku_s(bench: Bench) -> None:
    request = bench.request()
    assert parts(request)["platform"] == ("passed", "")
    gb200 = replace(request, target=replace(request.target, sku="gb200", platforms=(AMD64, Platform("linux", "arm64"))))
    assert parts(gb200)["platform"] == ("failed", "gb200 machines are linux/arm64, the image is linux/amd64")


def test_what_was_not_proven_when_locking_is_not_shown_as_passed(bench: Bench) -> None:
    assert bench.request().platform.not_proven
    assert "unproven" not in parts(bench.request())


def test_an_image_whose_layer_is_gone_is_not_run(bench: Bench, tmp_path: Path) -> None:
    request = with_layer(bench, tmp_path, File("opt/x", b"x"))
    for blob in (tmp_path / "layout" / "blobs" / "sha256").iterdir():
        blob.unlink()

    class Idle:
        name = "idle"

        def available(self) -> str | None:
            return "nothing is to be run"

    result = run_smoke(replace(request, steps=("files", "python")), Idle())  # type: ignore[arg-type]
    assert str(result.steps[0].verdict) == "not-run", result.steps[0].judgement
    assert str(result.steps[1].verdict) == "not-run"
