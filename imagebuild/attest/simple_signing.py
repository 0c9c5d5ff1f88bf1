"""Writing the older form of image signatures, which many verifiers still read, to a registry."""

from __future__ import annotations

import base64
import io
from typing import Any

from imagebuild.attest.keys import Signer
from imagebuild.attest.simple_signature import SIGNATURE, SIMPLE_SIGNING, signature_tag, simple_payload
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import Manifest
from imagebuild.oci.json_text import dump
from imagebuild.oci.reference import Repository
from imagebuild.oci.source import LocalBlob
from imagebuild.registry.blobs import has_blob
from imagebuild.registry.client import RegistryClient, RepositoryClient
from imagebuild.registry.manifests import Manifests
from imagebuild.registry.statistics import Statistics
from imagebuild.registry.uploads import LocalContent, push_blob

WRITES = 5


def push_simple_signature(client: RegistryClient, repository: Repository, subject: Digest, signer: Signer) -> bool:
    """Adds our signature to the tag; False where it is there already.  Signatures of others stay.

    The tag is read again after it was written, up to five times, since writers at the same time overwrite each other.
    Raises UnavailableError `registry.referrers-contended`, and what the registry raises.
    """
    view = client.repository(client.settings.push_location(repository), Statistics(client.statistics), "pull", "push")
    manifests, tag = Manifests(view), signature_tag(subject)
    payload = simple_payload(subject, str(repository))
    layer = Descriptor(SIMPLE_SIGNING, Digest.of(payload), len(payload))
    ours: dict[str, Any] | None = None
    seen: dict[str, dict[str, Any]] = {}
    settling = view.transport.settling()
    for turn in range(WRITES + 1):
        settling.reads()
        listed = _layers(manifests, tag)
        if any(_is_ours(entry, layer.digest, payload, signer) for entry in listed):
            return ours is not None
        if turn == WRITES:
            break
        if ours is None:
            _push(view, LocalBlob(layer, lambda: io.BytesIO(payload)))
            text = base64.b64encode(signer.sign(payload)).decode("ascii")
            ours = {**layer.to_json(), "annotations": {SIGNATURE: text}}
        seen.update({dump(entry).decode(): entry for entry in listed})
        document = _document(view, [*seen.values(), ours])
        manifests.push(tag, document, mt.OCI_MANIFEST)
        settling.wrote()
    raise UnavailableError(
        "registry.referrers-contended",
        f"{repository}:{tag} is being written by others at the same time; our signature did not stay",
        hint="run the same command again; nothing has to be undone",
    )


def _layers(manifests: Manifests, tag: str) -> list[dict[str, Any]]:
    found = manifests.find(tag)
    if found is None:
        return []
    parsed = Manifest.parse(found.raw, found.descriptor.media_type, f"the signatures {tag}")
    return [layer.to_json() for layer in parsed.layers]


def _is_ours(entry: dict[str, Any], digest: Digest, payload: bytes, signer: Signer) -> bool:
    if entry.get("digest") != str(digest):
        return False
    try:
        signature = base64.b64decode((entry.get("annotations") or {}).get(SIGNATURE, ""), validate=True)
    except (ValueError, AttributeError, TypeError, ImagebuildError):
        return False
    return signer.public_key.verifies(signature, payload)


def _document(view: RepositoryClient, layers: list[dict[str, Any]]) -> bytes:
    config = dump(
        {
            "architecture": "",
            "os": "",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        }
    )
    descriptor = Descriptor(mt.OCI_CONFIG, Digest.of(config), len(config))
    _push(view, LocalBlob(descriptor, lambda: io.BytesIO(config)))
    return dump({"schemaVersion": 2, "mediaType": mt.OCI_MANIFEST, "config": descriptor.to_json(), "layers": layers})


def _push(view: RepositoryClient, blob: LocalBlob) -> None:
    if not has_blob(view, blob.descriptor.digest):
        push_blob(view, LocalContent(blob))
