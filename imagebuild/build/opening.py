"""From a reference to what reads or takes images there.  The registry client is imported only when one is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.errors import InputError
from imagebuild.oci.reference import (
    DaemonReference,
    DigestReference,
    PathReference,
    Reference,
    TagReference,
)
from imagebuild.oci.source import ImageSink, ImageSource


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How registries are spoken to (cli.md, Common)."""

    plain_http: frozenset[str] = frozenset()
    insecure: frozenset[str] = frozenset()
    ca_bundle: str | None = None
    allow_base_transfer: bool = False


@dataclass(slots=True)
class Opener:
    """Opens references; relative paths are below `folder`.  One registry client, made when first needed, serves a whole
    run (this opener and those that `at` gives), so that tokens, connections, statistics and what is known are shared.
    Mutable for that reason alone."""

    folder: Path
    access: RegistryAccess = field(default_factory=RegistryAccess)
    _options: list[Any] = field(default_factory=list)

    def at(self, folder: Path) -> Opener:
        """The same, for relative paths below another folder."""
        return Opener(folder, self.access, self._options)

    def registry_options(self) -> Any:
        if not self._options:
            from imagebuild.registry.settings import RegistryOptions

            made = RegistryOptions(
                plain_http=self.access.plain_http,
                insecure=self.access.insecure,
                ca_bundle=None if self.access.ca_bundle is None else Path(self.access.ca_bundle),
                allow_base_transfer=self.access.allow_base_transfer,
            )
            self._options.append(made)
        return self._options[0]

    def traffic(self) -> dict[str, int]:
        """Requests and bytes on the wire of the run so far: `requests`, `downloaded_bytes`, `uploaded_bytes`."""
        if not self._options:
            return {"requests": 0, "downloaded_bytes": 0, "uploaded_bytes": 0}
        from imagebuild.registry.open import open_client

        moved = open_client(self._options[0]).statistics.snapshot()
        return {
            "requests": moved.requests,
            "downloaded_bytes": moved.downloaded_bytes,
            "uploaded_bytes": moved.uploaded_bytes,
        }

    def path(self, reference: PathReference) -> Path:
        return self.folder / reference.path

    def source(self, reference: Reference) -> ImageSource:
        """What reads `reference`.  Raises InputError `build.not-a-source` for transports that are sinks only."""
        if isinstance(reference, TagReference | DigestReference):
            from imagebuild.registry.open import open_source

            return open_source(reference, self.registry_options())
        if isinstance(reference, PathReference) and reference.transport == "oci":
            from imagebuild.oci.layout import LayoutSource

            return LayoutSource(self.path(reference))
        if isinstance(reference, PathReference) and reference.transport == "oci-archive":
            from imagebuild.oci.oci_archive import OciArchiveSource

            return OciArchiveSource(self.path(reference))
        raise InputError(
            "build.not-a-source",
            f"{reference} cannot be read as an image",
            expected="a registry reference, oci:DIR or oci-archive:FILE",
            found=str(reference),
            hint="docker-archive and docker-daemon are outputs only: they have no digest to pin",
        )

    def sink(self, reference: Reference) -> tuple[ImageSink, str | None]:
        """What takes an image at `reference`, and the name to store it under.

        Raises InputError `build.not-a-sink` for references with a digest and for transports that only read.
        """
        if isinstance(reference, TagReference):
            from imagebuild.registry.open import open_sink

            return open_sink(reference, self.registry_options()), reference.tag
        if isinstance(reference, PathReference) and reference.digest is None:
            if reference.transport == "oci":
                from imagebuild.oci.layout import LayoutSink

                return LayoutSink(self.path(reference)), reference.name
            if reference.transport == "oci-archive":
                from imagebuild.oci.oci_archive import OciArchiveSink

                return OciArchiveSink(self.path(reference)), reference.name
            if reference.transport == "docker-archive":
                from imagebuild.oci.docker_archive import DockerArchiveSink

                return DockerArchiveSink(self.path(reference)), reference.name
        if isinstance(reference, DaemonReference) and not reference.pinned:
            from imagebuild.oci.docker_daemon import DaemonSink

            return DaemonSink(), reference.name
        raise InputError(
            "build.not-a-sink",
            f"{reference} cannot take an image",
            expected="HOST/REPO:TAG, oci:DIR[:NAME], oci-archive:FILE[:NAME], docker-archive:FILE[:NAME] or docker-daemon:NAME",
            found=str(reference),
        )
