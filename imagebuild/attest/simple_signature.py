"""The older form of image signatures as values, and reading them: a manifest under the tag `sha256-HEX.sig` whose layers are
payloads (containers/image, container-signature: simple signing) and whose annotations hold the signatures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from imagebuild.attest.dsse import decode_base64
from imagebuild.attest.public_key import PublicKey
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import Manifest
from imagebuild.oci.json_text import parse
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import fetch_blob, fetch_document

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
CLAIM = "cosign container image signature"
PAYLOAD_LIMIT = 1 << 20
"""Bytes of one payload at most."""
SIGNATURES_LIMIT = 1000


def signature_tag(subject: Digest) -> str:
    return f"sha256-{subject.hex}.sig"


def simple_payload(subject: Digest, name: str) -> bytes:
    """What is signed; `name` is the repository as the signer calls it."""
    return canonical_json(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": str(subject)},
                "type": CLAIM,
            },
            "optional": None,
        }
    )


@dataclass(frozen=True, slots=True)
class FoundSignature:
    """A signature of the older form, nothing of it verified.  `digest` is its payload's; `fault` says why it could not be
    read, instead."""

    digest: Digest
    payload: bytes = field(default=b"", repr=False)
    signature: bytes = field(default=b"", repr=False)
    fault: ImagebuildError | None = None


def fetch_signatures(source: ImageSource, subject: Digest) -> list[FoundSignature]:
    """The signatures under the older tag of a manifest or index; [] where there is no such tag.

    Raises UnavailableError where it could not be found out.  What is damaged is a fault among the others.
    """
    tag = signature_tag(subject)
    what = f"the signatures {tag} in {source.location}"
    try:
        descriptor = source.resolve(tag)
    except UnavailableError:
        raise
    except ImagebuildError as error:
        if error.code in ("registry.not-found", "oci.not-found"):
            return []
        raise UnavailableError(
            "attest.older-tag-unread",
            f"could not find out whether there are {what}: {error.message}",
            found=error.found,
        ) from error
    if descriptor.media_type not in mt.MANIFESTS:
        return [FoundSignature(descriptor.digest, fault=_bad(f"{what} are no manifest", descriptor.media_type))]
    try:
        manifest = Manifest.parse(fetch_document(source, descriptor, what), descriptor.media_type, what)
    except UnavailableError:
        raise
    except ImagebuildError as error:
        return [FoundSignature(descriptor.digest, fault=error)]
    listed = [layer for layer in manifest.layers if layer.media_type == SIMPLE_SIGNING]
    if len(listed) > SIGNATURES_LIMIT:
        raise UnavailableError(
            "attest.too-many-referrers",
            f"{what} are more than are looked at",
            expected=f"at most {SIGNATURES_LIMIT}",
            found=str(len(listed)),
        )
    return [_fetch(source, layer, what) for layer in listed]


def _fetch(source: ImageSource, layer: Descriptor, what: str) -> FoundSignature:
    try:
        signature = decode_base64(layer.annotations.get(SIGNATURE), f"a signature of {what}")
        payload = fetch_blob(source, layer, f"a payload of {what}", PAYLOAD_LIMIT)
    except UnavailableError as error:
        if error.code != "oci.blob-missing":
            raise
        return FoundSignature(layer.digest, fault=error)
    except ImagebuildError as error:
        return FoundSignature(layer.digest, fault=error)
    return FoundSignature(layer.digest, payload, signature)


def verify_signature(found: FoundSignature, subject: Digest, keys: Iterable[PublicKey]) -> frozenset[PublicKey]:
    """The keys that signed that this image is what is meant; nothing is parsed before one of them fits.

    The name in the payload and its `optional` part decide nothing: a signature binds a digest.  Raises RefusedError
    `attest.bad-signature`, `attest.bad-statement`, `attest.other-digest`, or the fault of reading.
    """
    if found.fault is not None:
        raise found.fault
    signed = frozenset(key for key in keys if key.verifies(found.signature, found.payload))
    if not signed:
        raise RefusedError("attest.bad-signature", "no trusted key made this signature of the older form")
    named = _named(found.payload)
    if named != str(subject):
        raise RefusedError(
            "attest.other-digest",
            "a trusted key signed, in the older form, something else",
            expected=str(subject),
            found=str(named)[:100],
        )
    return signed


def _named(payload: bytes) -> Any:
    """The digest that a payload names."""
    try:
        value = parse(payload, "the payload")
    except InputError as error:
        raise _bad("a signed payload of the older form is not JSON that all readers read alike") from error
    critical = value.get("critical") if isinstance(value, dict) else None
    image = critical.get("image") if isinstance(critical, dict) else None
    if not isinstance(critical, dict) or not isinstance(image, dict):
        raise _bad("a signed payload of the older form names no image")
    if critical.get("type") != CLAIM:
        raise _bad("a signed payload of the older form is of another type", str(critical.get("type"))[:100])
    return image.get("docker-manifest-digest")


def _bad(why: str, found: str | None = None) -> RefusedError:
    return RefusedError("attest.bad-statement", why, found=found)
