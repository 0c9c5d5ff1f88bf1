"""What of an image is signed: its index and every platform's manifest, since clients pull the one or the other."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.tree import ImageTree


@dataclass(frozen=True, slots=True)
class ImageSubject:
    """One manifest or index of an image; `name` is `index` or the platform."""

    name: str
    descriptor: Descriptor

    @property
    def digest(self) -> Digest:
        return self.descriptor.digest


def image_subjects(tree: ImageTree) -> tuple[ImageSubject, ...]:
    """The index (or the only manifest) first, then each platform's manifest, those of no named platform and indexes inside it too.

    Children that speak about images are none, where no client runs them: those of the platform `unknown` (BuildKit's
    attestations).  One of another platform, or of none, is run whatever its annotations say of it.
    """
    children = [ImageSubject(str(platform), child.descriptor) for platform, child in tree.children.items()]
    if tree.index is None:
        return tuple(children)
    runnable = [
        d for d in tree.attestations if d.platform is None or "unknown" not in (d.platform.os, d.platform.architecture)
    ]
    others = [ImageSubject(str(d.platform or "no platform"), d) for d in (*tree.others, *runnable)]
    nested = [
        ImageSubject("nested index", Descriptor(index.media_type, digest, len(index.raw)))
        for digest, index in tree.nested.items()
    ]
    return (ImageSubject("index", tree.top), *children, *others, *nested)


def describe(error: ImagebuildError) -> str:
    """One line of an error, for a check's `found`."""
    found = f" ({error.found})" if error.found else ""
    return f"{error.message}{found}"
