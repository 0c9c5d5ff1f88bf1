"""A push: its rounds, its order, and what it asks and does not ask."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Image
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, MadeImage, make_image, make_index
from imagebuild.testing.memory import as_image
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.registry_state import Tokens


def spec(architecture: str = "amd64", ours: str = "ours") -> ImageSpec:
    lower = tuple(LayerSpec((File(f"base{number}-{architecture}", b"x" * 100),)) for number in range(3))
    return ImageSpec((*lower, LayerSpec((File("patched", ours.encode()),))), platform=Platform("linux", architecture))


def two_platforms() -> MadeImage:
    return make_index(IndexSpec((spec("amd64"), spec("arm64"))))


def put_base(double: RegistryDouble, made: MadeImage, path: str = "up/base") -> None:
    """The base's layers of a made image: all but the topmost of each platform."""
    for image in made.images or (made,):
        for layer in image.layers[:-1]:
            double.put_blob(path, layer.blob)


def base_digests(made: MadeImage) -> set[Digest]:
    return {layer.descriptor.digest for image in made.images or (made,) for layer in image.layers[:-1]}


def ready(double: RegistryDouble, client: RegistryClient, made: MadeImage, path: str = "up/base") -> Image:
    put_base(double, made, path)
    return as_image(made, base=RegistrySource(client, repository_at(double, path)))


@pytest.fixture
def sink(double: RegistryDouble, client: RegistryClient) -> RegistrySink:
    return RegistrySink(client, repository_at(double, "me/engine"))


def test_a_push_ends_with_everything_there(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    made = two_platforms()
    result = sink.store(ready(double, client, made), "v1")
    assert double.tag("me/engine", "v1") == made.digest == result.digest
    assert double.incomplete_tags() == []
    assert result.reference == f"{double.host}/me/engine:v1@{made.digest}"
    assert result.mounted_blobs == 6
    assert result.previous is None
    documents = {image.digest: len(image.raw) for image in (made, *made.images)}
    blobs = {d: len(b) for image in made.images for d, b in image.blobs.items() if d not in base_digests(made)}
    assert result.uploaded_bytes == sum({**documents, **blobs}.values())
    assert double.uploads == {}


def test_the_first_round_goes_out_at_once(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    """The tag's HEAD, the mounts of all base layers, HEAD and POST of each own blob: all in flight together."""
    image = ready(double, client, two_platforms())
    own = len({blob.descriptor.digest for blob in image.own}) + len(image.configs)
    first = double.gather("^HEAD|^POST", 1 + len(image.base_layers) + 2 * own)
    second = double.gather("^PUT .*blobs", own)
    third = double.gather("^PUT .*manifests/sha256:", 2)
    sink.store(image, "v1")
    assert not first.broken
    assert not second.broken
    assert not third.broken


def test_no_round_begins_before_the_earlier_one_is_stored(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    sink.store(ready(double, client, two_platforms()), "v1")
    kinds = [re.sub(r"(sha256:|session-|sha256%3A)[0-9a-f]+", r"\1", line.split("?")[0]) for line in double.lines()]
    children = [n for n, kind in enumerate(kinds) if kind == "PUT /v2/me/engine/manifests/sha256:"]
    blobs = [n for n, kind in enumerate(kinds) if "/blobs/" in kind]
    assert len(children) == 2
    assert max(blobs) < min(children)
    assert max(children) < len(kinds) - 1
    assert kinds[-1] == "PUT /v2/me/engine/manifests/v1"
    assert sum("manifests/v1" in kind and kind.startswith("PUT") for kind in kinds) == 1


def test_nothing_of_the_base_goes_by(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    image = ready(double, client, two_platforms())
    sink.store(image, "v1")
    assert double.requests("GET .*blobs/sha256") == []
    base = {str(layer.digest) for layer in image.base_layers}
    puts = double.requests("^PUT .*blobs")
    assert not any(digest.replace(":", "%3A") in request.query for digest in base for request in puts)


def test_no_change_is_one_request(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    made = make_image(spec())
    double.put_image("me/engine", made, "v1")
    assert sink.current("v1") == made.digest
    result = sink.store(as_image(made), "v1")
    assert (result.digest, result.previous) == (made.digest, None)
    assert double.lines() == ["HEAD /v2/me/engine/manifests/v1"]
    assert client.statistics.requests == 1


def test_an_equal_image_that_was_not_asked_for_before_is_success(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    made = make_image(spec())
    image = ready(double, client, made)
    double.put_image("me/engine", made, "v1")
    result = sink.store(image, "v1")
    assert result.digest == made.digest
    assert double.requests("^PUT") == []
    assert double.uploads == {}


def test_without_a_tag_the_push_is_by_digest(
    double: RegistryDouble, client: RegistryClient, sink: RegistrySink
) -> None:
    made = two_platforms()
    result = sink.store(ready(double, client, made), None)
    assert double.repository("me/engine").tags == {}
    assert double.lines()[-1] == f"PUT /v2/me/engine/manifests/{made.digest}"
    assert result.reference == f"{double.host}/me/engine@{made.digest}"


def test_a_base_in_the_target_repository_is_made_sure_of_with_heads(
    double: RegistryDouble, client: RegistryClient
) -> None:
    made = make_image(spec())
    sink = RegistrySink(client, repository_at(double, "up/base"))
    sink.store(ready(double, client, made), "v1")
    layers = {f"HEAD /v2/up/base/blobs/{layer.descriptor.digest}" for layer in made.layers[:-1]}
    assert layers <= set(double.lines("^HEAD"))
    assert double.requests("mount=.*from") == []


def test_a_repeated_push_sends_no_blob_again(
    double: RegistryDouble, connect: Callable[..., RegistryClient], client: RegistryClient, sink: RegistrySink
) -> None:
    made = make_image(spec())
    sink.store(ready(double, client, made), "v1")
    double.log.clear()
    other = connect(time=FakeTime(double))
    RegistrySink(other, repository_at(double, "me/engine")).store(
        as_image(made, base=RegistrySource(other, repository_at(double, "up/base"))), "v2"
    )
    assert double.requests("^(PUT|PATCH) .*blobs") == []
    assert double.uploads == {}
    assert double.tag("me/engine", "v2") == made.digest


def test_two_targets_on_one_base_send_each_blob_once(double: RegistryDouble, client: RegistryClient) -> None:
    made = make_image(spec())
    image = ready(double, client, made)
    for path in ("me/first", "me/second"):
        RegistrySink(client, repository_at(double, path)).store(image, "v1")
    assert len(double.requests("^PUT .*blobs")) == 2
    assert double.tag("me/second", "v1") == made.digest
    assert double.incomplete_tags() == []


def test_one_token_serves_pull_on_the_base_and_push_on_the_target(
    start: Callable[..., RegistryDouble], connect: Callable[..., RegistryClient]
) -> None:
    """bazel-contrib/rules_img#751, oras-project/rust-oci-client#235"""
    double = start(tokens=Tokens(users={"me": "pass-word-1"}))
    client = connect(
        time=FakeTime(double), docker_config={"auths": {double.host: {"username": "me", "password": "pass-word-1"}}}
    )
    made = two_platforms()
    result = RegistrySink(client, repository_at(double, "me/engine")).store(ready(double, client, made), "v1")
    assert result.mounted_blobs == 6
    assert double.tokens is not None
    assert double.tokens.asked == [["repository:me/engine:pull,push", "repository:up/base:pull"]]
    assert 401 not in {request.status for request in double.requests("^PUT")}


def test_a_parallel_push_with_tokens_that_serve_once(
    start: Callable[..., RegistryDouble], connect: Callable[..., RegistryClient]
) -> None:
    """moby/moby#33558, with many threads that could use up each other's token."""
    double = start(tokens=Tokens(uses=1))
    client = connect(time=FakeTime(double))
    made = two_platforms()
    RegistrySink(client, repository_at(double, "me/engine")).store(ready(double, client, made), "v1")
    assert double.tag("me/engine", "v1") == made.digest


def test_more_layers_than_connections(double: RegistryDouble, client: RegistryClient, sink: RegistrySink) -> None:
    lower = tuple(LayerSpec((File(f"base{number}", b"x"),)) for number in range(80))
    made = make_image(ImageSpec((*lower, LayerSpec((File("patched", b"ours"),)))))
    assert sink.store(ready(double, client, made), "v1").mounted_blobs == 80
    assert double.incomplete_tags() == []
