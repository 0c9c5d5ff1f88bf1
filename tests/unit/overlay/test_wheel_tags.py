"""Which wheels an image's interpreter would install."""

from __future__ import annotations

import io

import pytest

from imagebuild.errors import RefusedError
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.view import MergedView
from imagebuild.oci.platform import Platform
from imagebuild.overlay.wheel_tags import check_tags, expand_tags, filename_tags, platform_tags, read_glibc
from imagebuild.testing.images import File, Folder, Item, LayerSpec, Link, make_layer

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        "py312-none-any",
        "py2.py3-none-any",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp38-abi3-manylinux_2_28_x86_64",
        "cp38-abi3-linux_x86_64",
        "cp312-abi3-manylinux2014_x86_64",
        "py3-none-manylinux1_x86_64",
        "cp312-none-any",
    ],
)
def test_tags_that_fit(tag: str) -> None:
    assert check_tags("w", [tag], AMD64, "3.12", (2, 34)) is None


@pytest.mark.parametrize(
    "tag",
    [
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp313-abi3-manylinux_2_28_x86_64",
        "cp312-cp312t-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux_2_28_aarch64",
        "cp312-cp312-musllinux_1_2_x86_64",
        "cp312-cp312-macosx_11_0_arm64",
        "cp312-cp312-win_amd64",
        "py2-none-any",
        "pp310-pypy310_pp73-manylinux_2_28_x86_64",
        "nonsense",
    ],
)
def test_tags_that_do_not(tag: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_tags("the wheel x 1", [tag], AMD64, "3.12", (2, 34))
    assert caught.value.code == "overlay.wheel-platform"
    assert "linux/amd64" in caught.value.message


def test_the_other_platform_takes_its_own() -> None:
    assert check_tags("w", ["cp310-abi3-manylinux_2_28_aarch64"], ARM64, "3.12", (2, 28)) is None
    with pytest.raises(RefusedError):
        check_tags("w", ["cp310-abi3-manylinux_2_28_x86_64"], ARM64, "3.12", (2, 28))


def test_a_newer_glibc_than_the_base_s_is_refused_and_an_unknown_one_said() -> None:
    tag = ["cp312-cp312-manylinux_2_35_x86_64"]
    with pytest.raises(RefusedError) as caught:
        check_tags("w", tag, AMD64, "3.12", (2, 31))
    assert (caught.value.expected, caught.value.found) == ("glibc 2.35 or newer", "glibc 2.31")
    assert check_tags("w", tag, AMD64, "3.12", (2, 35)) is None
    assert "2.35" in (check_tags("w", tag, AMD64, "3.12", None) or "")
    assert check_tags("w", [*tag, "py3-none-any"], AMD64, "3.12", None) is None
    both = ["cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_35_x86_64"]
    assert check_tags("w", both, AMD64, "3.12", (2, 17)) is None


def test_compressed_sets_and_file_names() -> None:
    assert expand_tags(["py2.py3-none-any"]) == {"py2-none-any", "py3-none-any"}
    name = "triton-3.8.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    assert filename_tags(name) == {
        "cp312-cp312-manylinux_2_27_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
    }
    assert filename_tags("x-1-2-py3-none-any.whl") == {"py3-none-any"}
    for odd in ("x.whl", "x-1.tar.gz", "download"):
        assert filename_tags(odd) == frozenset()


def test_platform_tags_are_bounded_by_glibc() -> None:
    tags = platform_tags(AMD64, (2, 17))
    assert tags[0] == "manylinux_2_17_x86_64"
    assert "manylinux2014_x86_64" in tags
    assert "manylinux_2_18_x86_64" not in tags
    assert platform_tags(ARM64, (2, 12))[-1] == "linux_aarch64"


def view(*items: Item) -> MergedView:
    made = make_layer(LayerSpec(items))
    return MergedView([read_layer(io.BytesIO(made.blob), made.descriptor)])


def test_glibc_is_read_off_the_names_of_its_files() -> None:
    lib = "usr/lib/x86_64-linux-gnu"
    old = view(File(f"{lib}/libc-2.31.so"), Link(f"{lib}/libc.so.6", "libc-2.31.so"), Link("lib", "usr/lib"))
    assert read_glibc(old, AMD64) == (2, 31)
    assert read_glibc(old, ARM64) is None
    assert read_glibc(view(File(f"{lib}/libc.so.6")), AMD64) == (2, 34)
    assert read_glibc(view(File("usr/lib64/libc.so.6"), Folder("lib64")), AMD64) == (2, 34)
    assert read_glibc(view(File("etc/hostname")), AMD64) is None
