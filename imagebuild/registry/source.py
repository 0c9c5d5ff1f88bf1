"""A repository that images are read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.reference import Repository
from imagebuild.registry.blobs import BlobStream, has_blob
from imagebuild.registry.client import RegistryClient, RepositoryClient
from imagebuild.registry.manifests import Manifests, not_found
from imagebuild.registry.referrers import list_referrers
from imagebuild.registry.statistics import Statistics

Answer = TypeVar("Answer")


class RegistrySource:
    """Implements ImageSource over one repository.

    Mirrors of registries.conf are asked first; where one fails, lies about a digest or lacks the thing, the next is
    asked, and the registry itself last.  `default` is the tag or digest that `resolve(None)` means.
    """

    def __init__(
        self,
        client: RegistryClient,
        repository: Repository,
        *,
        default: str | Digest | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.client = client
        self.repository = repository
        self.statistics = statistics or Statistics(client.statistics)
        self._default = default
        self._places = {
            by_digest: [
                client.repository(location, self.statistics, "pull")
                for location in client.settings.pull_locations(repository, by_digest)
            ]
            for by_digest in (True, False)
        }

    @property
    def location(self) -> str:
        return str(self.repository)

    @property
    def primary(self) -> RepositoryClient:
        """The registry itself, no mirror."""
        return self._places[True][-1]

    def _first(self, by_digest: bool, ask: Callable[[RepositoryClient], Answer | None]) -> Answer | None:
        """The first answer that is one; None where the last place has none; its error where it fails."""
        *mirrors, primary = self._places[by_digest]
        for place in mirrors:
            try:
                found = ask(place)
            except ImagebuildError:
                continue
            if found is not None:
                return found
        return ask(primary)

    def resolve(self, name: str | None) -> Descriptor:
        """The descriptor of a tag, of a digest (`sha256:…`), or of what the source was opened with.

        Raises RefusedError `registry.not-found`, `registry.denied`; UnavailableError `registry.unreachable` and the
        other faults of transport.
        """
        wanted: str | Digest | None = self._default if name is None else name
        if wanted is None:
            raise InputError("registry.no-tag", f"{self.location}: which tag or digest is meant is not said")
        if isinstance(wanted, str) and wanted.startswith("sha256:"):
            wanted = Digest.parse(wanted)
        reference = wanted
        found = self._first(isinstance(reference, Digest), lambda place: Manifests(place).resolve(reference))
        if found is None:
            joint = "@" if isinstance(reference, Digest) else ":"
            raise not_found(f"reading {self.location}{joint}{reference}")
        return found

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        """Raw bytes and media type of a manifest or index, verified; asked once a run."""
        known = self.client.document(digest)
        if known is not None:
            return known
        found = self._first(True, lambda place: Manifests(place).find(digest, media_type))
        if found is None:
            raise not_found(f"reading {self.location}@{digest}")
        return found.raw, found.descriptor.media_type

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> BlobStream:
        """An unverified stream that goes on by itself after breaks; close it, or read it to its end."""
        return BlobStream(self._places[True], descriptor, what)

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Whether the registry itself, not a mirror, holds the blob."""
        return has_blob(self.primary, descriptor.digest)

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        """What points at `subject`, from the registry itself; UnavailableError where that could not be found out."""
        return list_referrers(self.primary, subject)

    def tags(self) -> list[str]:
        return Manifests(self.primary).tags()
