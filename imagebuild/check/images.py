"""The image that checks look at: found by reference, and readable whole even where only a sparse layout holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imagebuild.build.labels import BASE_DIGEST, BASE_NAME, CONTENT_ID
from imagebuild.build.opening import Opener
from imagebuild.check.runner import CheckedImage
from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable
from imagebuild.errors import ImagebuildError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import (
    DigestReference,
    PathReference,
    Reference,
    TagReference,
    parse_reference,
    parse_registry_reference,
)
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import ImageTree, read_image_tree


class WholeSource:
    """A source whose missing blobs come from the image's base, which is opened when the first one is asked for.

    A blob is a blob wherever it comes from: whoever reads it checks it by its digest.
    """

    def __init__(self, first: ImageSource, base: Callable[[], ImageSource]) -> None:
        self._first = first
        self._open_base = base
        self._base: ImageSource | None = None

    @property
    def location(self) -> str:
        return self._first.location

    def sources(self) -> tuple[ImageSource, ...]:
        """The sources that blobs come from, as far as they are open."""
        return (self._first,) if self._base is None else (self._first, self._base)

    def _other(self) -> ImageSource:
        if self._base is None:
            self._base = self._open_base()
        return self._base

    def resolve(self, name: str | None) -> Descriptor:
        return self._first.resolve(name)

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        return self._first.read_document(digest, media_type)

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> Readable:
        source = self._first if self._first.has_blob(descriptor) else self._other()
        return source.open_blob(descriptor, what)

    def has_blob(self, descriptor: Descriptor) -> bool:
        return self._first.has_blob(descriptor) or self._other().has_blob(descriptor)

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        return self._first.referrers(subject)


def checked_image(
    source: ImageSource,
    at: Descriptor | Digest | str | None,
    platform: Platform,
    *,
    reference: str | None = None,
    base: ImageSource | Callable[[], ImageSource] | None = None,
    content_id: Digest | None = None,
) -> CheckedImage:
    """One platform of the image that `at` names in `source` (None: its only image).

    `base` is where layers lie that a sparse layout leaves out: a source, or what opens it.  `content_id` is what a lock
    says; without it the label of the image is taken as its claim.  `reference` is how people call the image.

    Raises what read_image_tree raises.
    """
    return of_tree(
        source,
        read_image_tree(source, at, [platform]),
        platform,
        reference=reference,
        base=base,
        content_id=content_id,
    )


def of_tree(
    source: ImageSource,
    tree: ImageTree,
    platform: Platform,
    *,
    reference: str | None = None,
    base: ImageSource | Callable[[], ImageSource] | None = None,
    content_id: Digest | None = None,
) -> CheckedImage:
    """The same of a tree that was read already; the platform must be among its children."""
    child = next(child for found, child in tree.children.items() if found.agrees(platform))
    whole: ImageSource = source
    if base is not None:
        opened = base
        whole = WholeSource(source, opened if callable(opened) else lambda: opened)
    claimed = child.config.labels.get(CONTENT_ID)
    if content_id is None and claimed is not None:
        try:
            content_id = Digest.parse(claimed)
        except ImagebuildError:
            content_id = None  # a label that is no digest claims nothing
    return CheckedImage(
        reference if reference is not None else f"{source.location}@{tree.top.digest}",
        child.descriptor.digest,
        platform,
        whole,
        None if tree.index is None else tree.top.digest,
        content_id,
    )


def open_image(
    reference: Reference | str,
    platform: Platform,
    opener: Opener,
    *,
    base: Reference | None = None,
    content_id: Digest | None = None,
) -> CheckedImage:
    """The image that a reference names, opened.

    `base` is the pinned base of a lock (`target.base`); without it, layers that a sparse layout leaves out are looked for
    where the image's own labels say that its base lies.  Raises what opening and reading raise.
    """
    named = parse_reference(reference) if isinstance(reference, str) else reference
    source = opener.source(named)
    at: Digest | str | None = None
    if isinstance(named, DigestReference):
        at = named.digest
    elif isinstance(named, TagReference):
        at = named.tag
    elif isinstance(named, PathReference):
        at = named.digest if named.digest is not None else named.name
    tree = read_image_tree(source, at, [platform])
    where = base if base is not None else _labelled_base(tree)
    return of_tree(
        source,
        tree,
        platform,
        reference=str(named),
        base=None if where is None else lambda: opener.source(where),
        content_id=content_id,
    )


def _labelled_base(tree: ImageTree) -> Reference | None:
    """The base by the labels that images of ours carry; None where they name none that could be read."""
    child = next(iter(tree.children.values()))
    name, digest = child.config.labels.get(BASE_NAME), child.config.labels.get(BASE_DIGEST)
    if name is None:
        return None
    try:
        found = parse_reference(name)
        if isinstance(found, TagReference) and digest is not None:
            found = parse_registry_reference(f"{found.repository}@{digest}")
    except ImagebuildError:
        return None
    return found if isinstance(found, TagReference | DigestReference | PathReference) else None
