"""What stops a push, and what a refused mount leads to."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.source import Image, LocalBlob
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import File, ImageSpec, LayerSpec, MadeImage, make_image
from imagebuild.testing.memory import MemorySource, as_image
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.registry_state import Tokens

LABELS = {"io.github.imagebuild.target": "b300-vllm"}


def made_image(ours: str = "ours", labels: dict[str, str] | None = None) -> MadeImage:
    lower = tuple(LayerSpec((File(f"base{number}", b"x" * 100),)) for number in range(2))
    return make_image(
        ImageSpec((*lower, LayerSpec((File("patched", ours.encode()),))), config={"Labels": labels or {}})
    )


def put_base(double: RegistryDouble, made: MadeImage) -> None:
    for layer in made.layers[:-1]:
        double.put_blob("up/base", layer.blob)


def based(
    double: RegistryDouble, client: RegistryClient, made: MadeImage, labels: dict[str, str] | None = None
) -> Image:
    put_base(double, made)
    return as_image(made, base=RegistrySource(client, repository_at(double, "up/base")), labels=labels)


@pytest.fixture
def sink(double: RegistryDouble, client: RegistryClient) -> RegistrySink:
    return RegistrySink(client, repository_at(double, "me/engine"))


REFUSALS = [{"status": status} for status in (400, 401, 403, 404, 405)]


@pytest.mark.parametrize("refusal", [*REFUSALS, {}], ids=lambda refusal: str(refusal.get("status", 202)))
def test_a_refused_mount_of_a_base_layer_stops_the_push(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink, refusal: dict[str, int]
) -> None:
    double.mounts = "never"
    if refusal:
        double.fault("mount=.*from", times=99, **refusal)
    made = made_image()
    with pytest.raises(RefusedError) as caught:
        sink.store(based(double, client, made), "v1")
    assert caught.value.code == "registry.mount-refused"
    for layer in made.layers[:-1]:
        assert f"{layer.descriptor.digest} ({layer.descriptor.size} bytes)" in caught.value.message
        assert f"HEAD /v2/me/engine/blobs/{layer.descriptor.digest}" in double.lines()
    assert "--allow-base-transfer" in (caught.value.hint or "")
    assert caught.value.details["bytes"] == sum(layer.descriptor.size for layer in made.layers[:-1])
    assert double.repository("me/engine").tags == {}
    assert double.requests("^PUT .*manifests") == []
    assert double.uploads == {}


def test_a_refused_mount_of_a_layer_that_is_there_is_no_fault(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    made = made_image()
    double.mounts = "never"
    for layer in made.layers[:-1]:
        double.put_blob("me/engine", layer.blob)
    sink.store(based(double, client, made), "v1")
    assert double.tag("me/engine", "v1") == made.digest
    assert double.uploads == {}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405])
def test_our_own_layers_are_uploaded_where_a_mount_is_refused(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink, status: int
) -> None:
    """containerd/containerd#14086, goharbor/harbor#22078"""
    made = made_image()
    own = str(made.layers[-1].descriptor.digest).replace(":", "%3A")
    double.fault(f"POST .*mount={own}$", status=status)
    sink.store(based(double, client, made), "v1")
    assert double.tag("me/engine", "v1") == made.digest


def test_base_layers_pass_through_where_that_is_allowed(double: RegistryDouble, client: RegistryClient) -> None:
    double.mounts = "never"
    made = made_image()
    image = based(double, client, made)
    result = RegistrySink(client, repository_at(double, "me/engine"), allow_base_transfer=True).store(image, "v1")
    assert double.tag("me/engine", "v1") == made.digest
    assert double.incomplete_tags() == []
    assert result.mounted_blobs == 0
    assert len(double.requests("GET .*up/base/blobs")) == 2


def test_a_transfer_is_made_once_for_two_targets(double: RegistryDouble, client: RegistryClient) -> None:
    made = made_image()
    base = MemorySource(made)
    for path in ("me/first", "me/second"):
        sink = RegistrySink(client, repository_at(double, path), allow_base_transfer=True)
        sink.store(as_image(made, base=base), "v1")
    layers = [layer.descriptor.digest for layer in made.layers[:-1]]
    assert sorted(d for d in base.reads if d in layers) == sorted(layers)
    assert double.incomplete_tags() == []


def test_a_damaged_base_layer_does_not_pass_through(double: RegistryDouble, client: RegistryClient) -> None:
    made = made_image()
    base = MemorySource(made)
    digest = made.layers[0].descriptor.digest
    base.blobs[digest] = base.blobs[digest][:-1] + b"?"
    sink = RegistrySink(client, repository_at(double, "me/engine"), allow_base_transfer=True)
    with pytest.raises(RefusedError) as caught:
        sink.store(as_image(made, base=base), "v1")
    assert caught.value.code == "content.digest-mismatch"
    assert double.repository("me/engine").tags == {}
    assert digest not in double.repository("me/engine").blobs


def test_a_tag_on_another_image_stays(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    other = double.put_image("me/engine", made_image("other"), "v1")
    made = made_image()
    with pytest.raises(RefusedError) as caught:
        sink.store(based(double, client, made, LABELS), "v1")
    assert caught.value.code == "registry.tag-elsewhere"
    assert caught.value.found == str(other)
    assert "--force" in (caught.value.hint or "")
    assert double.tag("me/engine", "v1") == other
    assert double.requests("^PUT .*manifests") == []


def test_force_moves_the_tag_and_names_what_was_there(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    other = double.put_image("me/engine", made_image("other"), "v1")
    made = made_image()
    result = sink.store(based(double, client, made), "v1", force=True)
    assert double.tag("me/engine", "v1") == made.digest
    assert result.previous == other
    assert double.requests("GET .*manifests") == []


def test_a_tag_of_the_same_target_moves_without_force(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    other = double.put_image("me/engine", made_image("other", LABELS), "v1")
    made = made_image("new", LABELS)
    result = sink.store(based(double, client, made, LABELS), "v1")
    assert double.tag("me/engine", "v1") == made.digest
    assert result.previous == other


def test_a_tag_of_another_target_stays(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    double.put_image("me/engine", made_image("other", {"io.github.imagebuild.target": "h200"}), "v1")
    with pytest.raises(RefusedError, match="another image"):
        sink.store(based(double, client, made_image(), LABELS), "v1")


def test_whether_a_tag_may_move_is_not_guessed(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    double.put_image("me/engine", made_image("other", LABELS), "v1")
    double.fault("GET .*manifests", status=503, times=99)
    with pytest.raises(UnavailableError):
        sink.store(based(double, client, made_image("new", LABELS), LABELS), "v1")


def test_large_layers_wait_for_the_answer_about_the_tag(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagebuild.registry.sink.EARLY_CHECK", 1)
    double.put_image("me/engine", made_image("other"), "v1")
    with pytest.raises(RefusedError, match="another image"):
        sink.store(based(double, client, made_image(), LABELS), "v1")
    assert double.requests("^PUT") == []
    assert double.uploads == {}


def test_an_immutable_tag_is_respected(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    double.immutable = True
    other = double.put_image("me/engine", made_image("other"), "v1")
    with pytest.raises(RefusedError) as caught:
        sink.store(based(double, client, made_image()), "v1", force=True)
    assert caught.value.code == "registry.tag-immutable"
    assert double.tag("me/engine", "v1") == other


def test_a_repository_that_must_exist_first_gets_a_hint(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    double.creates = False
    with pytest.raises(RefusedError) as caught:
        sink.store(based(double, client, made_image()), "v1")
    assert caught.value.code == "registry.repository-missing"
    assert "create the repository me/engine" in (caught.value.hint or "")
    assert "NAME_UNKNOWN" in caught.value.message


def test_a_base_that_is_nowhere_is_said(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    with pytest.raises(RefusedError) as caught:
        sink.store(as_image(made_image(), base=None), "v1")
    assert caught.value.code == "registry.mount-refused"
    assert "--allow-base-transfer" not in (caught.value.hint or "")


def test_a_mount_without_the_right_to_pull_the_base_is_refused(
    start: Callable[..., RegistryDouble], connect: Callable[..., RegistryClient]
) -> None:
    """Some token servers refuse the whole set where one scope of it is not ours; the push goes on with its own."""
    tokens = Tokens(grants=lambda resource, action: resource != "repository:up/base", refuses_foreign=True)
    double = start(tokens=tokens)
    client = connect(time=FakeTime(double))
    with pytest.raises(RefusedError) as caught:
        RegistrySink(client, repository_at(double, "me/engine")).store(based(double, client, made_image()), "v1")
    assert caught.value.code == "registry.mount-refused"


@pytest.mark.parametrize("broken", ["^PUT .*blobs", "^PUT .*manifests/v1", "^POST", "^HEAD .*manifests"])
def test_a_push_that_fails_leaves_no_tag(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink, broken: str
) -> None:
    double.fault(broken, status=500, times=999)
    with pytest.raises(ImagebuildError):
        sink.store(based(double, client, made_image()), "v1")
    assert double.repository("me/engine").tags == {}
    double.script.faults.clear()
    sink.store(based(double, client, made_image()), "v1")
    assert double.incomplete_tags() == []


def test_our_own_blob_with_other_bytes_is_not_stored(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    image = based(double, client, made_image())
    lying = LocalBlob(image.own[0].descriptor, lambda: io.BytesIO(b"?" * image.own[0].descriptor.size))
    with pytest.raises(RefusedError):
        sink.store(Image(image.top, (), image.configs, (lying,), image.base_layers, image.base), "v1")
    assert double.repository("me/engine").tags == {}
    assert double.damaged_blobs() == []


def test_a_registry_that_stored_something_else_is_not_believed(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    double.fault("^PUT .*manifests/v1", headers={"Docker-Content-Digest": str(Digest.of(b"other"))})
    with pytest.raises(RefusedError) as caught:
        sink.store(based(double, client, made_image()), "v1")
    assert caught.value.code == "registry.digest-mismatch"
