"""The steps that other people can see: push, tags, the release manifest.

The image and what is signed of it go first, under digests alone; tags come when all of it is there; the manifest that
says so is written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuild.attest.attaching import SignedStatement, attach_signed
from imagebuild.attest.dsse import Envelope
from imagebuild.attest.release_file import store_release
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import EvidencePlace, fetch_bundles
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.oci.reference import Repository, TagReference
from imagebuild.oci.source import Document
from imagebuild.oci.tree import fetch_document
from imagebuild.registry.open import open_sink
from imagebuild.registry.sink import RegistrySink
from imagebuild.release.state import Release
from imagebuild.release.statement import created_of, existing_release, planned_release, release_path
from imagebuild.release.step import Action, Decision, step_id
from imagebuild.release.steps_image import made_image
from imagebuild.release.steps_sign import signed_bundles

NOT_PUSHED = Decision(Action.NOT_ASKED, "--push publishes; without it the release stays in the layout")


def _sink(release: Release, repository: Repository) -> RegistrySink:
    options = release.tools.opener.registry_options()
    return open_sink(TagReference(repository, "latest"), options)


def _place(release: Release) -> EvidencePlace:
    place = release.published_place
    assert place is not None  # only asked for where there is a push
    return place


def _repository(release: Release) -> Repository:
    repository = release.request.repository
    assert repository is not None  # the request refuses a push without one
    return repository


class PushStep:
    """The image by digest, and every signature and statement that the sign step left."""

    name = "push"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        release, request = self._release, self._release.request
        if not request.push:
            return NOT_PUSHED
        signed = release.journal.finished("sign and attest")
        if not release.built() or signed is None:
            return Decision(Action.WAITS, "pushes what is built and signed first")
        bundles = signed_bundles(release)
        id = step_id(
            self.name,
            {
                "repository": str(request.repository),
                "attestations": str(request.attestations),
                "digest": str(request.digest),
                "statements": sorted(
                    [str(subject), str(Digest.of(item.envelope.format()))]
                    for subject, items in bundles.items()
                    for item in items
                ),
            },
        )
        known = release.journal.finished(self.name)
        if known is None:
            return Decision(Action.RUN, "never ran", id)
        if known.id != id:
            return Decision(Action.RUN, "another image, repository or signature than the last time", id)
        if not _sink(release, _repository(release)).holds(request.digest):
            return Decision(Action.RUN, f"{request.repository} no longer holds it", id)
        return Decision(Action.DONE, f"{request.repository} holds it", id)

    def run(self) -> Mapping[str, Any]:
        release, request = self._release, self._release.request
        repository = _repository(release)
        with made_image(release, with_base=True) as image:
            stored = _sink(release, repository).store(image, None)
        place = _place(release)
        attached = []
        bundles = signed_bundles(release)
        for subject in request.subjects:
            signed = bundles.get(subject.digest, [])
            attached += attach_signed(place, subject.descriptor, signed, request.now)
        release.tools.emitter.emit(
            "image.stored", reference=f"{repository}@{request.digest}", digest=str(request.digest)
        )
        return {
            "reference": f"{repository}@{stored.digest}",
            "attestations": place.location,
            "attached": len(attached),
        }


class TagStep:
    """The tags of target.yaml: each platform's, then the index's."""

    name = "tag"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        release, request = self._release, self._release.request
        if not request.push:
            return NOT_PUSHED
        id = step_id(self.name, {"tags": [[str(reference), str(digest)] for reference, digest, _ in request.tags]})
        sink = _sink(release, _repository(release))
        elsewhere = [ref for ref, digest, _ in request.tags if sink.current(ref.tag) != digest]
        if elsewhere:
            return Decision(Action.RUN, "not there yet: " + ", ".join(map(str, elsewhere)), id)
        return Decision(Action.DONE, "all tags name the image", id)

    def run(self) -> Mapping[str, Any]:
        release, request = self._release, self._release.request
        sink = _sink(release, _repository(release))
        source = release.place.source
        descriptors = {subject.digest: subject.descriptor for subject in request.subjects}
        previous = {}
        for reference, digest, _ in request.tags:
            descriptor = descriptors[digest]
            document = Document(descriptor, fetch_document(source, descriptor, "the manifest"))
            before = sink.tag(document, reference.tag, labels=release.labels, force=request.force)
            if before is not None:
                previous[str(reference)] = str(before)
                release.warnings.append(f"{reference} named {before} before")
        return {"tags": {str(reference): str(digest) for reference, digest, _ in request.tags}, "previous": previous}


class ManifestStep:
    """manifests/TARGET/release.dsse.json, and the same envelope as a referrer of the image."""

    name = "release manifest"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        release, request = self._release, self._release.request
        if release.good_evidence() is None:
            return Decision(Action.WAITS, "says what the checks found")
        if request.signer is None:
            return Decision(Action.RUN, "no key was named, so it is not known which release is on record")
        statement = planned_release(release)
        id = step_id(
            self.name,
            {
                "payload": str(Digest.of(statement.format())),
                "key": request.signer.public_key.fingerprint,
                "pushed": str(request.attestations or request.repository) if request.push else None,
            },
        )
        there = existing_release(release)
        counter = statement.value["counter"]
        if there is None or there.statement.format() != statement.format():
            before = (
                "there is none yet" if there is None else f"the one on record is release {counter - 1}, another one"
            )
            return Decision(Action.RUN, f"release {counter}: {before}", id)
        known = release.journal.finished(self.name)
        if request.signer.public_key not in there.keys:
            return Decision(Action.RUN, f"release {counter} is on record, signed by another key", id)
        if known is None or known.id != id or not self._beside(there.statement):
            return Decision(Action.RUN, f"release {counter} is on record; it is not known to be beside the image", id)
        return Decision(Action.DONE, f"release {counter} is on record", id)

    def _beside(self, statement: Statement) -> bool:
        """Whether the layout holds it too."""
        try:
            found = fetch_bundles(self._release.place.source, self._release.request.digest)
        except ImagebuildError:
            return False
        payload = statement.format()
        return any(item.bundle is not None and item.bundle.envelope.payload == payload for item in found)

    def run(self) -> Mapping[str, Any]:
        release, request = self._release, self._release.request
        statement, signer = planned_release(release), release.signer()
        path = release_path(release)
        store_release(path, statement, signer)
        signed = SignedStatement.read(Envelope.parse(path.read_bytes(), str(path)), signer.public_key)
        top, created = request.subjects[0].descriptor, created_of(statement)
        attach_signed(release.place, top, [signed], created)
        if request.push:
            attach_signed(_place(release), top, [signed], created)
        return {
            "file": release.tools.workspace.shown(path),
            "counter": statement.value["counter"],
            "created": statement.value["created"],
            "payload": str(Digest.of(statement.format())),
        }
