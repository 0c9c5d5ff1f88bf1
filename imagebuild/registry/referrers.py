"""What points at a manifest (distribution-spec: Listing Referrers, Pushing Manifests with Subject, and the referrers
tag schema for registries without the API)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import MANIFEST_LIMIT, Manifest
from imagebuild.oci.json_text import NumberText, dump, parse, plain
from imagebuild.registry.client import RepositoryClient
from imagebuild.registry.manifests import Manifests, next_page

PAGES = 1000
MERGES = 5
"""Times that the index of the tag scheme is read, merged, put and read again."""


def referrers_tag(subject: Digest) -> str:
    """The tag that stands for the referrers API: `sha256-HEX`."""
    return f"sha256-{subject.hex}"


def list_referrers(repository: RepositoryClient, subject: Digest) -> list[Descriptor]:
    """Everything that points at `subject`; [] where nothing does.

    Not filtered by type: indexes written by others name another type than the manifest's own.  The API is asked;
    where it answers 404 (and only then) the tag.  Raises UnavailableError `registry.referrers-unknown` for whatever
    else comes back: a failure is never an empty list.
    """
    try:
        found = _from_api(repository, subject)
        return _from_tag(repository, subject) if found is None else found
    except UnavailableError:
        raise
    except ImagebuildError as error:
        raise _unknown(repository, subject, error.message, error) from error


def _unknown(
    repository: RepositoryClient, subject: Digest, why: str, error: ImagebuildError | None = None
) -> UnavailableError:
    return UnavailableError(
        "registry.referrers-unknown",
        f"could not find out what refers to {repository.repository}@{subject}: {why}",
        hint=error.hint if error is not None else None,
        details=error.details if error is not None else None,
    )


def _from_api(repository: RepositoryClient, subject: Digest) -> list[Descriptor] | None:
    out: dict[Digest, Descriptor] = {}
    url = f"referrers/{subject}"
    for page in range(PAGES):
        response = repository.request(
            "GET",
            url,
            headers={"Accept": mt.OCI_INDEX},
            accept=(200, 404) if page == 0 else (200,),
            limit=MANIFEST_LIMIT,
            doing=f"listing referrers of {subject.short(12)}",
        )
        if response.status == 404:
            return None
        for descriptor in _entries(response.body, f"the referrers of {subject}"):
            out.setdefault(descriptor.digest, descriptor)
        following = next_page(response)
        if following is None:
            return list(out.values())
        url = following
    raise _unknown(repository, subject, "the list does not end")


def _from_tag(repository: RepositoryClient, subject: Digest) -> list[Descriptor]:
    found = Manifests(repository).find(referrers_tag(subject))
    if found is None:
        return []
    return list(_entries(found.raw, f"the index {referrers_tag(subject)}"))


def _value(raw: bytes, what: str) -> dict[str, Any]:
    value = parse(raw, what)
    if not isinstance(value, dict) or not isinstance(value.get("manifests"), list):
        raise RefusedError("registry.not-a-manifest", f"{what} is no index", expected=mt.OCI_INDEX)
    if plain(value.get("schemaVersion")) != 2:
        raise RefusedError("registry.not-a-manifest", f"{what} has no schemaVersion 2", expected=mt.OCI_INDEX)
    return value


def _entries(raw: bytes, what: str) -> list[Descriptor]:
    listed = _value(raw, what)["manifests"]
    return [Descriptor.from_json(item, f"{what}, entry {number}") for number, item in enumerate(listed)]


def push_referrer(repository: RepositoryClient, manifest: Manifest) -> bool:
    """Puts a manifest with a `subject` (its blobs must be there) and makes it findable; True where the registry keeps
    referrers itself, False where the tag's index was written.

    Our own referrers of one subject go one after another.  Raises UnavailableError `registry.referrers-contended`
    when other writers kept overwriting the index.
    """
    subject = manifest.subject
    if subject is None:
        raise ValueError("a referrer has a subject")
    with repository.client.ledger.alone("referrers", repository.repository, subject.digest):
        response = Manifests(repository).push(manifest.digest, manifest.raw, manifest.media_type)
        if response.headers.get("OCI-Subject", "").strip() == str(subject.digest):
            return True
        _merge(repository, subject.digest, _own_entry(manifest))
        return False


def _own_entry(manifest: Manifest) -> dict[str, Any]:
    """The entry of the index: artifactType (the config's type where the manifest has none) and annotations are the
    manifest's own, as the API would list them."""
    entry = Descriptor(
        manifest.media_type,
        manifest.digest,
        len(manifest.raw),
        annotations=manifest.annotations,
        artifact_type=manifest.artifact_type or manifest.config.media_type,
    ).to_json()
    entry["size"] = NumberText(str(len(manifest.raw)))
    return entry


def _merge(repository: RepositoryClient, subject: Digest, own: dict[str, Any]) -> None:
    manifests, tag = Manifests(repository), referrers_tag(subject)
    seen: dict[str, dict[str, Any]] = {}
    settling = repository.transport.settling()
    for turn in range(MERGES + 1):
        settling.reads()
        found = manifests.find(tag)
        value: dict[str, Any] = {}
        if found is not None:
            value = _value(found.raw, f"the index {tag}")
        listed = [item for item in value.get("manifests", []) if isinstance(item, dict)]
        present = {str(item.get("digest")): item for item in listed}
        seen.update({digest: item for digest, item in present.items() if digest not in seen})
        if present.get(own["digest"]) == own and all(digest in present for digest in seen):
            return
        if turn == MERGES:
            break
        merged = [own if item.get("digest") == own["digest"] else item for item in listed]
        known = {str(item.get("digest")) for item in merged}
        merged += [item for digest, item in seen.items() if digest not in known and digest != own["digest"]]
        if own["digest"] not in known:
            merged.append(own)
        document = {"schemaVersion": NumberText("2"), **value, "mediaType": mt.OCI_INDEX, "manifests": merged}
        manifests.push(tag, dump(document), mt.OCI_INDEX)
        settling.wrote()
    raise _contended(repository, tag)


def _contended(repository: RepositoryClient, tag: str) -> UnavailableError:
    return UnavailableError(
        "registry.referrers-contended",
        f"{repository.repository}:{tag} is being written by others at the same time; our entry did not stay",
        hint="run the same command again; nothing has to be undone",
    )


def own_referrers(found: Sequence[Descriptor], digests: set[Digest]) -> list[Descriptor]:
    """Those of `found` that have one of these digests: an entry is recognised by digest, whatever type it is given."""
    return [descriptor for descriptor in found if descriptor.digest in digests]
