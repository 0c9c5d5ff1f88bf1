"""The base of h200-vllm: real wheels in one layer, members left out of another, and the machine's torch by a `.pth` file."""

from __future__ import annotations

from pathlib import Path

from tiny_wheel import make_wheel, pin_of

from imagebuild.testing.base_layers import FilesLayer, WheelLayer
from imagebuild.testing.base_tar import Item
from imagebuild.testing.h200_base import LEFT_OUT, TORCH, WheelSetLayer, h200_vllm, h200_wheels
from imagebuild.testing.target_bases import H200_DIGEST, names
from imagebuild.testing.wheel_fetch import AMD64, WheelPin

ROOT = Path(__file__).resolve().parents[3]
SITE = "usr/local/lib/python3.12/dist-packages"


def data_of(item: Item) -> str:
    assert item.open is not None
    return item.open().read().decode()


def test_the_committed_target_pins_it_and_it_is_made_only_when_named() -> None:
    text = (ROOT / "manifests/h200-vllm/target.yaml").read_text()
    assert f"base: oci:build/bases/h200-vllm:{h200_vllm().tag}@{H200_DIGEST}\n" in text
    assert "h200-vllm" not in names(())


def test_each_wheel_is_pinned_once_and_vllm_stands_first() -> None:
    pins = h200_wheels()
    assert (pins[0].distribution, pins[0].version) == ("vllm", "0.26.0")
    assert len({pin.distribution for pin in pins}) == len({pin.sha256 for pin in pins}) == len(pins)
    assert {tag for pin in pins for tag in pin.platform_tags if "aarch64" in tag} == set()


def test_packages_come_before_the_machines_torch() -> None:
    (machine,) = (layer for layer in h200_vllm().layers if isinstance(layer, FilesLayer))
    assert machine.files[f"{SITE}/machine-torch.pth"] == (f"{TORCH}\n".encode(), 0o644)
    (vllm,) = (layer for layer in h200_vllm().layers if isinstance(layer, WheelLayer))
    assert vllm.without == LEFT_OUT


def test_a_member_that_is_left_out_is_in_no_record_either(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)

    def items(*without: str) -> dict[str, Item]:
        layer = WheelLayer({AMD64: pin_of(path)}, installer="uv", without=without)
        return {item.path: item for item in layer.items(AMD64, 0, lambda pin: path)}

    whole, less = items(), items("tiny/__init__.py")
    assert set(whole) - set(less) == {f"{SITE}/tiny/__init__.py"}
    assert "tiny/__init__.py," in data_of(whole[f"{SITE}/tiny-1.2.dist-info/RECORD"])
    assert "tiny/__init__.py," not in data_of(less[f"{SITE}/tiny-1.2.dist-info/RECORD"])
    described = [WheelLayer({AMD64: pin_of(path)}, without=one).describe(AMD64) for one in ((), ("a",), ("b",))]
    assert "without" not in described[0]
    assert described[1] != described[2]


def test_a_set_of_wheels_is_one_layer_with_each_folder_once(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    asked: list[WheelPin] = []

    def get(pin: WheelPin) -> Path:
        asked.append(pin)
        return path

    layer = WheelSetLayer((pin_of(path),))
    paths = [item.path for item in layer.items(AMD64, 0, get)]
    assert asked == [pin_of(path)]
    assert len(paths) == len(set(paths))
    assert f"{SITE}/tiny-1.2.dist-info/RECORD" in paths
    assert layer.describe(AMD64)["sha256"] == [str(pin_of(path).sha256)]
