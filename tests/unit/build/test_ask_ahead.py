"""The first question of a push: asked at once, answered once, its failure told by the wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuild.build.ahead import ask_ahead
from imagebuild.build.opening import Opener
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.reference import PathReference, Reference, parse_reference
from imagebuild.registry.sink import RegistrySink
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.registry_double import RegistryDouble


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RegistryDouble]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))
    with RegistryDouble() as made:
        yield made


def tag_at(double: RegistryDouble, tag: str) -> Reference:
    return parse_reference(f"{double.host}/team/engine:{tag}")


def heads(double: RegistryDouble) -> list[str]:
    return [request.path for request in double.log if request.method == "HEAD"]


BASE = PathReference("oci", "base")


def test_the_answer_is_there_for_whoever_asks_next(double: RegistryDouble, tmp_path: Path) -> None:
    image = make_image(ImageSpec((LayerSpec((File("a", b"a"),)),)))
    double.put_image("team/engine", image, "held")
    opener = Opener(tmp_path)
    wait = ask_ahead(opener, [tag_at(double, "held"), BASE, tag_at(double, "free")], BASE)
    wait()
    asked = heads(double)
    assert sorted(asked) == ["/v2/team/engine/manifests/free", "/v2/team/engine/manifests/held"]
    for tag, digest in (("held", image.descriptor.digest), ("free", None)):
        sink, name = opener.sink(tag_at(double, tag))
        assert isinstance(sink, RegistrySink)
        assert name is not None
        assert sink.current(name) == digest
    assert heads(double) == asked


def test_both_questions_are_under_way_at_the_same_time(double: RegistryDouble, tmp_path: Path) -> None:
    together = double.gather(r"^HEAD /v2/team/engine/manifests/", 2)
    ask_ahead(Opener(tmp_path), [tag_at(double, "a"), tag_at(double, "b")], BASE)()
    assert not together.broken


def test_waiting_raises_what_went_wrong(double: RegistryDouble, tmp_path: Path) -> None:
    double.fault(r"HEAD .*/manifests/", status=403, times=99)
    wait = ask_ahead(Opener(tmp_path), [tag_at(double, "a")], BASE)
    with pytest.raises((RefusedError, UnavailableError)):
        wait()


def test_layouts_are_asked_nothing(tmp_path: Path) -> None:
    ask_ahead(Opener(tmp_path), [BASE], BASE)()
    assert list(tmp_path.iterdir()) == []
