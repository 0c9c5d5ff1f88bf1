"""Where bundles live: as referrers of what they speak about (evidence.md, Storage; distribution-spec, Referrers)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from imagebuild.attest.bundle import BUNDLE_TYPE, Bundle
from imagebuild.attest.dsse import ENVELOPE_LIMIT, PAYLOAD_TYPE, sign_payload, verify_envelope
from imagebuild.attest.keys import Signer
from imagebuild.attest.statement import Statement, read_statement
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.host.clock import rfc3339
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import Manifest
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.layout_attach import attach_to_layout
from imagebuild.oci.reference import Repository
from imagebuild.oci.source import Document, ImageSource, LocalBlob
from imagebuild.oci.tree import fetch_blob, fetch_document

REFERRERS_LIMIT = 1000
"""Referrers of one image that are looked at; with more of them nothing is concluded."""
EMPTY = b"{}"
CONTENT = "dev.sigstore.bundle.content"
PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"
CREATED = "org.opencontainers.image.created"


@dataclass(frozen=True, slots=True)
class EvidencePlace:
    """Where bundles are read from and written to: the image's own place, or another repository."""

    source: ImageSource
    attach: Callable[[Document, Sequence[LocalBlob]], object]

    @property
    def location(self) -> str:
        return self.source.location


def layout_place(path: Path) -> EvidencePlace:
    """A layout on disk."""
    return EvidencePlace(LayoutSource(path), partial(attach_to_layout, path))


def registry_place(client: Any, repository: Repository) -> EvidencePlace:
    """A repository, through a RegistryClient."""
    from imagebuild.registry.sink import RegistrySink
    from imagebuild.registry.source import RegistrySource

    return EvidencePlace(RegistrySource(client, repository), RegistrySink(client, repository).attach)


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A referrer that holds a bundle, by its manifest's digest; `fault` says why it could not be read, instead.  `certified` is
    the text of one under a certificate, which nothing but a trust root can judge."""

    digest: Digest
    bundle: Bundle | None
    fault: ImagebuildError | None = None
    certified: bytes | None = field(default=None, repr=False)


def fetch_bundles(source: ImageSource, subject: Digest) -> list[FoundBundle]:
    """The bundles attached to a manifest or index, nothing of them verified.

    A referrer counts by its own manifest: whatever a list says of its type and annotations is not looked at.  One that
    is damaged is a fault among the others, since anybody who may push can attach it.  Raises UnavailableError where it
    could not be found out what is attached.
    """
    listed = source.referrers(subject)
    if len(listed) > REFERRERS_LIMIT:
        raise UnavailableError(
            "attest.too-many-referrers",
            f"{source.location} lists more about {subject} than is looked at",
            expected=f"at most {REFERRERS_LIMIT} referrers",
            found=str(len(listed)),
        )
    out = []
    for descriptor in listed:
        if descriptor.media_type not in mt.MANIFESTS:
            continue
        what = f"the referrer {descriptor.digest} in {source.location}"
        raw: bytes | None = None
        try:
            raw = _fetch_bundle(source, descriptor, subject, what)
            if raw is not None:
                out.append(FoundBundle(descriptor.digest, Bundle.parse(raw, what)))
        except UnavailableError as error:
            if error.code != "oci.blob-missing":
                raise
            out.append(FoundBundle(descriptor.digest, None, error))
        except ImagebuildError as error:
            certified = raw if error.code == "attest.no-trust-root" else None
            out.append(FoundBundle(descriptor.digest, None, error, certified))
    return out


def _fetch_bundle(source: ImageSource, descriptor: Descriptor, subject: Digest, what: str) -> bytes | None:
    """The text of the bundle in a referrer; None where it is another kind of artifact."""
    manifest = Manifest.parse(fetch_document(source, descriptor, what), descriptor.media_type, what)
    if not any(layer.media_type == BUNDLE_TYPE for layer in manifest.layers):
        return None
    if manifest.subject is None or manifest.subject.digest != subject:
        raise RefusedError(
            "attest.bad-bundle",
            f"{what} is listed for another image than it names",
            expected=str(subject),
            found=str(manifest.subject.digest) if manifest.subject else "no subject",
        )
    if len(manifest.layers) != 1:
        raise RefusedError("attest.bad-bundle", f"{what} holds more than the bundle", expected="one layer")
    return fetch_blob(source, manifest.layers[0], f"the bundle of {what}", ENVELOPE_LIMIT)


def bundle_artifact(
    bundle: Bundle | bytes, subject: Descriptor, predicate_type: str, created: int
) -> tuple[Document, list[LocalBlob]]:
    """The referrer's manifest and its blobs; `bundle` may be its text, `created` is in seconds since 1970."""
    raw = bundle if isinstance(bundle, bytes) else bundle.format()
    blobs = [_blob(mt.OCI_EMPTY, EMPTY), _blob(BUNDLE_TYPE, raw)]
    value = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        "artifactType": BUNDLE_TYPE,
        "config": blobs[0].descriptor.to_json(),
        "layers": [blobs[1].descriptor.to_json()],
        "subject": Descriptor(subject.media_type, subject.digest, subject.size).to_json(),
        "annotations": {
            CONTENT: "dsse-envelope",
            PREDICATE_TYPE: predicate_type,
            CREATED: rfc3339(created),
        },
    }
    document = dump(value)
    return Document(Descriptor(mt.OCI_MANIFEST, Digest.of(document), len(document)), document), blobs


def _blob(media_type: str, data: bytes) -> LocalBlob:
    return LocalBlob(Descriptor(media_type, Digest.of(data), len(data)), lambda: io.BytesIO(data))


@dataclass(frozen=True, slots=True)
class Attached:
    """A referrer of `subject`; `added` is False where an equal statement of the same key was there already."""

    subject: Digest
    referrer: Digest
    predicate_type: str
    added: bool


def find_equal(found: Iterable[FoundBundle], statement: Statement, signer: Signer) -> FoundBundle | None:
    """A valid bundle of the same key that says the same (signatures of ECDSA differ each time, so they are not
    compared)."""
    for item in found:
        if item.bundle is None:
            continue
        try:
            there = read_statement(verify_envelope(item.bundle.envelope, [signer.public_key]))
        except RefusedError:
            continue
        if (
            there.predicate_type == statement.predicate_type
            and set(there.subjects) == set(statement.subjects)
            and there.value == statement.value
        ):
            return item
    return None


def attach_statement(
    place: EvidencePlace, subject: Descriptor, statement: Statement, signer: Signer, created: int
) -> Attached:
    """Signs a statement and stores the bundle as a referrer of `subject`, unless it is there.

    Raises what reading referrers and pushing raise, and what the signer raises.
    """
    if not statement.names(subject.digest):
        raise ValueError("a statement is attached to what it speaks about")
    kind = statement.predicate_type
    there = find_equal(fetch_bundles(place.source, subject.digest), statement, signer)
    if there is not None:
        return Attached(subject.digest, there.digest, kind, False)
    bundle = Bundle(sign_payload(statement.format(), signer.sign), signer.public_key.hint)
    assert bundle.envelope.payload_type == PAYLOAD_TYPE
    document, blobs = bundle_artifact(bundle, subject, kind, created)
    place.attach(document, blobs)
    return Attached(subject.digest, document.descriptor.digest, kind, True)


def attach_bundle(
    place: EvidencePlace, subject: Descriptor, statement: Statement, bundle: bytes, created: int
) -> Attached:
    """Stores a bundle that others made (a keyless one, which is another each time)."""
    if not statement.names(subject.digest):
        raise ValueError("a statement is attached to what it speaks about")
    document, blobs = bundle_artifact(bundle, subject, statement.predicate_type, created)
    place.attach(document, blobs)
    return Attached(subject.digest, document.descriptor.digest, statement.predicate_type, True)
