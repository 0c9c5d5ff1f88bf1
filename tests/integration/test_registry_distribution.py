"""The registry client against a registry that others wrote: Debian's docker-registry (distribution 2.8)."""

from __future__ import annotations

import io
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_registry import RealRegistry
from tools import program

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import Repository
from imagebuild.oci.source import Document, LocalBlob
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.referrers import referrers_tag
from imagebuild.registry.settings import Location
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.registry.transport import Body
from imagebuild.registry.uploads import LocalContent, Window, begin, push_blob
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, MadeImage, make_image, make_index
from imagebuild.testing.memory import MemorySource, as_image
from imagebuild.testing.recording_proxy import RecordingProxy
from imagebuild.testing.registry_client import client_for

pytestmark = pytest.mark.integration
LABELS = {"io.github.imagebuild.target": "t"}


def made_index(ours: str = "ours") -> MadeImage:
    def spec(architecture: str) -> ImageSpec:
        base = LayerSpec((File(f"base-{architecture}", random.Random(architecture).randbytes(5000)),))
        return ImageSpec(
            (base, LayerSpec((File("patched", ours.encode()),))),
            platform=Platform("linux", architecture),
            config={"Labels": LABELS},
        )

    return make_index(IndexSpec((spec("amd64"), spec("arm64"))))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RegistryClient]:
    made = client_for(tmp_path)
    yield made
    made.close()


def source(client: RegistryClient, host: str, path: str) -> RegistrySource:
    return RegistrySource(client, Repository(host, path))


def sink(client: RegistryClient, host: str, path: str) -> RegistrySink:
    return RegistrySink(client, Repository(host, path))


def test_push_with_mounts_and_read_back(registry: RealRegistry, client: RegistryClient, tmp_path: Path) -> None:
    index = made_index()
    registry.put_image("up/base", "v1", index)
    base = source(client, registry.host, "up/base")
    with RecordingProxy(registry.host) as proxy:
        result = sink(client, proxy.host, "me/engine").store(
            as_image(index, base=source(client, proxy.host, "up/base"), labels=LABELS), "v1"
        )
        lower = {str(image.layers[0].descriptor.digest) for image in index.images}
        assert not [p for p in proxy.passed if p.method == "GET" and any(digest in p.path for digest in lower)]
        assert proxy.uploaded_bytes < 10_000
    assert result.mounted_blobs == 2
    assert registry.incomplete() == []
    assert registry.tags()["me/engine:v1"] == str(index.digest)
    there = source(client, registry.host, "me/engine")
    assert there.resolve("v1").digest == index.digest
    assert there.tags() == ["v1"]
    for image in index.images:
        assert there.read_document(image.digest)[0] == image.raw
        for layer in image.layers:
            assert there.has_blob(layer.descriptor)
            with there.open_blob(layer.descriptor) as stream:
                assert read_verified(stream, layer.descriptor.digest, layer.descriptor.size) == layer.blob
    assert base.resolve("v1").digest == index.digest


def test_no_change_is_one_request(registry: RealRegistry, client: RegistryClient) -> None:
    index = made_index()
    registry.put_image("me/engine", "v1", index)
    with RecordingProxy(registry.host) as proxy:
        target = sink(client, proxy.host, "me/engine")
        assert target.current("v1") == index.digest
        target.store(as_image(index), "v1")
        assert [(p.method, p.path) for p in proxy.passed] == [("HEAD", "/v2/me/engine/manifests/v1")]


def test_a_tag_of_the_same_target_moves_and_another_stays(registry: RealRegistry, client: RegistryClient) -> None:
    old, new = made_index("old"), made_index("new")
    registry.put_image("me/engine", "v1", old)
    registry.put_image("me/engine", "other", make_image(ImageSpec(())))
    target = sink(client, registry.host, "me/engine")
    image = as_image(new, base=source(client, registry.host, "me/engine"), labels=LABELS)
    assert target.store(image, "v1").previous == old.digest
    with pytest.raises(RefusedError) as caught:
        target.store(image, "other")
    assert caught.value.code == "registry.tag-elsewhere"
    assert registry.incomplete() == []


def test_a_base_that_is_not_there_is_refused_or_passes_through(registry: RealRegistry, client: RegistryClient) -> None:
    index = made_index()
    image = as_image(index, base=MemorySource(index))
    with pytest.raises(RefusedError) as caught:
        sink(client, registry.host, "me/engine").store(image, "v1")
    assert caught.value.code == "registry.mount-refused"
    assert "me/engine:v1" not in registry.tags()
    allowed = RegistrySink(client, Repository(registry.host, "me/engine"), allow_base_transfer=True)
    allowed.store(image, "v1")
    assert registry.tags()["me/engine:v1"] == str(index.digest)
    assert registry.incomplete() == []


def test_chunks_and_a_session_that_others_wrote_to(registry: RealRegistry, client: RegistryClient) -> None:
    data = random.Random(4).randbytes(300_000)
    blob = LocalBlob(Descriptor("application/octet-stream", Digest.of(data), len(data)), lambda: io.BytesIO(data))
    view = client.repository(Location(Repository(registry.host, "me/engine")), client.statistics, "pull", "push")
    session = begin(view, blob.descriptor.digest)
    assert session is not None
    other = LocalContent(LocalBlob(blob.descriptor, lambda: io.BytesIO(data)))
    window = other.window(0, 1000)
    view.request("PATCH", session.url, body=_body(window), accept=(202,))
    content = LocalContent(blob)
    content.chunk = 100_000
    push_blob(view, content, session)
    assert registry.blob("me/engine", str(blob.descriptor.digest)) == data


def _body(window: Window) -> Body:
    return Body(window.open, window.length)


def test_the_rest_of_a_blob_is_read_by_range(registry: RealRegistry, client: RegistryClient) -> None:
    data = random.Random(5).randbytes(100_000)
    digest = Digest.of(data)
    registry.put_blob("me/engine", digest, data)
    stream = source(client, registry.host, "me/engine").open_blob(
        Descriptor("application/octet-stream", digest, len(data))
    )
    head = stream.read(10)
    stream._drop()
    assert head + stream.read() == data
    stream.close()


def referrer(subject: Descriptor, text: str) -> tuple[Document, list[LocalBlob]]:
    blobs = [
        LocalBlob(Descriptor(kind, Digest.of(raw), len(raw)), lambda raw=raw: io.BytesIO(raw))
        for kind, raw in ((mt.OCI_EMPTY, b"{}"), ("application/vnd.example.bundle+json", text.encode()))
    ]
    value = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        "artifactType": "application/vnd.example.bundle+json",
        "config": blobs[0].descriptor.to_json(),
        "layers": [blobs[1].descriptor.to_json()],
        "subject": {"mediaType": subject.media_type, "digest": str(subject.digest), "size": subject.size},
        "annotations": {"text": text},
    }
    raw = json.dumps(value).encode()
    return Document(Descriptor(mt.OCI_MANIFEST, Digest.of(raw), len(raw)), raw), blobs


def test_referrers_go_under_the_tag(registry: RealRegistry, client: RegistryClient) -> None:
    """Distribution 2.8 has no referrers API."""
    index = made_index()
    registry.put_image("me/engine", "v1", index)
    target, there = sink(client, registry.host, "me/engine"), source(client, registry.host, "me/engine")
    assert there.referrers(index.digest) == []
    for text in ("one", "two"):
        assert target.attach(*referrer(index.descriptor, text)) is False
    found = there.referrers(index.digest)
    assert [descriptor.annotations["text"] for descriptor in found] == ["one", "two"]
    assert {descriptor.artifact_type for descriptor in found} == {"application/vnd.example.bundle+json"}
    assert f"me/engine:{referrers_tag(index.digest)}" in registry.tags()
    assert registry.incomplete() == []


def test_skopeo_reads_what_was_pushed(registry: RealRegistry, client: RegistryClient, tmp_path: Path) -> None:
    skopeo = program("skopeo")
    index = made_index()
    image = as_image(index, base=MemorySource(index))
    RegistrySink(client, Repository(registry.host, "me/engine"), allow_base_transfer=True).store(image, "v1")
    copy = tmp_path / "copy"
    subprocess.run(
        [skopeo, "copy", "--all", "--src-tls-verify=false", f"docker://{registry.host}/me/engine:v1", f"oci:{copy}:v1"],
        check=True,
        capture_output=True,
    )
    listed = json.loads((copy / "index.json").read_bytes())["manifests"]
    assert [entry["digest"] for entry in listed] == [str(index.digest)]
