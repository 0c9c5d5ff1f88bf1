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

    Children that speak about images (BuildKit's attestations) are none.
    """
    children = [ImageSubject(str(platform), child.descriptor) for platform, child in tree.children.items()]
    if tree.index is None:
        return tuple(children)
    others = [ImageSubject(str(d.platform or "no platform"), d) for d in tree.others]
    nested = [
        ImageSubject("nested index", Descriptor(index.media_type, digest, len(index.raw)))
        for digest, index in tree.nested.items()
    ]
    return (ImageSubject("index", tree.top), *children, *others, *nested)


def describe(error: ImagebuildError) -> str:
    """One line of an error, for a check's `found`."""
    found = f" ({error.found})" if error.found else ""
    return f"{error.message}{found}"
