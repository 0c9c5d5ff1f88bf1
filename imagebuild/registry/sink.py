"""A repository that images are pushed to.

Four sequential rounds at most: (1) HEAD of the tag, mounts of the base's layers and upload POSTs of our own blobs, all
at once; (2) PUTs of our blobs; (3) child manifests; (4) the top, by its tag.  Nothing of a later round is sent before
all of the earlier one is stored, so no tag ever points at something incomplete.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import Manifest
from imagebuild.oci.reference import Repository
from imagebuild.oci.source import Document, Image, ImageSource, LocalBlob, StoreResult
from imagebuild.registry.blobs import has_blob
from imagebuild.registry.client import RegistryClient, RepositoryClient
from imagebuild.registry.connections import CONNECTIONS
from imagebuild.registry.manifests import Manifests
from imagebuild.registry.referrers import push_referrer
from imagebuild.registry.source import RegistrySource
from imagebuild.registry.statistics import Statistics
from imagebuild.registry.tag_guard import check_tag
from imagebuild.registry.uploads import LocalContent, PassingContent, begin, cancel, mount_or_find, push_blob

Value = TypeVar("Value")

TRANSFERS = 4
"""Base layers that pass through this machine at one time, at most: each holds a chunk in memory."""
EARLY_CHECK = 8 << 20
"""Bytes of our own from which the question whether the tag may be moved is waited for before they are sent."""


class RegistrySink:
    """Implements ImageSink over one repository.

    `allow_base_transfer` lets base layers that the registry does not mount pass through this machine.
    """

    def __init__(
        self,
        client: RegistryClient,
        repository: Repository,
        *,
        allow_base_transfer: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        self.client = client
        self.repository = repository
        self.statistics = statistics or Statistics(client.statistics)
        self._place = client.settings.push_location(repository)
        self._allow_base_transfer = allow_base_transfer
        self.transfers = max(1, min(client.settings.options.jobs, TRANSFERS))

    @property
    def location(self) -> str:
        return str(self.repository)

    def _view(self, base: ImageSource | None = None) -> RepositoryClient:
        """The target with tokens for pushing, and for pulling from a base on the same host."""
        source = mount_source(base, self._place.repository)
        return self.client.repository(
            self._place, self.statistics, "pull", "push", also_pull=[source] if source else []
        )

    def current(self, name: str, base: ImageSource | None = None) -> Digest | None:
        """The digest that a tag points at now, None where there is no such tag: one HEAD, asked once a run.

        Give `base` as in the image that may be stored afterwards, so that one token serves both.
        """
        ledger = self.client.ledger
        known = ledger.tag(self._place.repository, name)
        if known is None:
            found = Manifests(self._view(base)).resolve(name)
            known = (None if found is None else found.digest,)
            ledger.set_tag(self._place.repository, name, known[0])
        return known[0]

    def store(self, image: Image, name: str | None, *, complete: bool = False, force: bool = False) -> StoreResult:
        """Pushes the image, by tag `name` or (None) by digest.  An equal digest under the tag is success at once.

        `complete` changes nothing: a repository always gets every layer.  Raises RefusedError
        `registry.mount-refused`, `registry.tag-elsewhere`, `registry.tag-immutable`, `registry.repository-missing`;
        the faults of transport; whatever opening our own blobs raises.
        """
        return _Push(self, self._view(image.base), image, name, force, self._allow_base_transfer).run()

    def tag(
        self, document: Document, name: str, *, labels: Mapping[str, str] | None = None, force: bool = False
    ) -> Digest | None:
        """Points a tag at a manifest or index that the repository holds whole; the digest that it pointed at before, where
        that was another.  An equal digest under the tag is success at once.

        Raises RefusedError `registry.tag-elsewhere` unless `force` or what is there carries the same `labels`;
        `registry.tag-immutable`; the faults of transport.
        """
        there, digest, view = self.current(name), document.descriptor.digest, self._view()
        if there == digest:
            return None
        if there is not None and not force:
            check_tag(view, name, there, digest, labels or {})
        Manifests(view).push(name, document.raw, document.descriptor.media_type)
        self.client.ledger.set_tag(self._place.repository, name, digest)
        return there

    def holds(self, digest: Digest) -> bool:
        """Whether the repository has a manifest or index: one HEAD."""
        return Manifests(self._view()).resolve(digest) is not None

    def attach(self, manifest: Document, blobs: Sequence[LocalBlob]) -> bool:
        """Pushes an artifact that has a `subject`, its blobs first; True where the registry keeps referrers itself,
        False where the referrers tag was written.  Raises as `store`, and UnavailableError
        `registry.referrers-contended`."""
        view = self._view()
        parsed = Manifest.parse(manifest.raw, manifest.descriptor.media_type, "the referrer's manifest")
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            _all(pool.submit(_push_own, view, blob) for blob in _distinct(blobs, lambda blob: blob.descriptor.digest))
        return push_referrer(view, parsed)


def mount_source(base: ImageSource | None, target: Repository) -> str | None:
    """The repository that base layers are mounted from: the base's own, where it is on the target's host."""
    if isinstance(base, RegistrySource) and base.primary.repository.host == target.host:
        return base.primary.repository.path
    return None


def _distinct(items: Iterable[Value], key: Callable[[Value], Digest]) -> list[Value]:
    return list({key(item): item for item in items}.values())


def _all(futures: Iterable[Future[Value]]) -> list[Value]:
    """The results in order; the first error where one fails, the rest not begun being given up."""
    listed = list(futures)
    wait(listed, return_when=FIRST_EXCEPTION)
    failed = next((f for f in listed if f.done() and not f.cancelled() and f.exception() is not None), None)
    if failed is not None:
        for future in listed:
            future.cancel()
    return [future.result() for future in ([failed] if failed is not None else listed)]


def _push_own(
    view: RepositoryClient,
    blob: LocalBlob,
    proceed: Callable[[], bool] = lambda: True,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Puts one of our own blobs: HEAD and upload POST (which may mount) at once, then the bytes; False where `proceed`
    said, after the POST, that they are not needed."""
    digest, ledger = blob.descriptor.digest, view.client.ledger
    with ledger.alone(view.repository.host, digest):
        if ledger.holds(view.repository, digest):
            return True
        there: list[bool] = []
        asking = threading.Thread(target=lambda: _quietly(there, lambda: has_blob(view, digest)), daemon=True)
        asking.start()
        holder = ledger.holder(view.repository.host, digest)
        try:
            session = begin(view, digest, mount=True, source=holder)
        finally:
            asking.join()
        if session is None:
            return True
        try:
            wanted = there != [True] and proceed()
        except BaseException:
            cancel(view, session)
            raise
        if not wanted:
            cancel(view, session)
            return there == [True]
        push_blob(view, LocalContent(blob), session, stopped)
        return True


def _quietly(out: list[bool], ask: Callable[[], bool]) -> None:
    """A question whose failure only costs an upload."""
    try:
        out.append(ask())
    except ImagebuildError:
        out.append(False)


class _Push:
    def __init__(
        self,
        sink: RegistrySink,
        view: RepositoryClient,
        image: Image,
        name: str | None,
        force: bool,
        allow_base_transfer: bool,
    ) -> None:
        self._sink = sink
        self._view = view
        self._image = image
        self._name = name
        self._force = force
        self._allow = allow_base_transfer
        self._digest = image.top.descriptor.digest
        self._stop = threading.Event()
        self._before = sink.statistics.snapshot()
        own = {blob.descriptor.digest for blob in image.own}
        self._base = _distinct((d for d in image.base_layers if d.digest not in own), lambda d: d.digest)
        configs = [LocalBlob(c.descriptor, _opener(c.raw)) for c in image.configs]
        self._own = _distinct([*image.own, *configs], lambda blob: blob.descriptor.digest)

    def run(self) -> StoreResult:
        with ThreadPoolExecutor(CONNECTIONS, "imagebuild-push") as pool:
            try:
                return self._rounds(pool)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _rounds(self, pool: ThreadPoolExecutor) -> StoreResult:
        name, sink = self._name, self._sink
        target, ledger = self._view.repository, self._view.client.ledger
        if name is not None and ledger.tag(target, name) == (self._digest,):
            return self._result(None)
        head = None if name is None else pool.submit(sink.current, name, self._image.base)
        allowed = None if head is None else pool.submit(self._check_tag, head)
        early = sum(blob.descriptor.size for blob in self._own) >= EARLY_CHECK

        def proceed() -> bool:
            if head is not None and head.result() == self._digest:
                return False
            if early and allowed is not None:
                allowed.result()
            return not self._stop.is_set()

        uploads = [pool.submit(_push_own, self._view, blob, proceed, self._stop.is_set) for blob in self._own]
        mounts = [pool.submit(self._place_base, layer) for layer in self._base]
        if head is not None and head.result() == self._digest:
            return self._result(None)
        absent = [layer for layer, there in zip(self._base, _all(mounts), strict=True) if not there]
        if absent and not self._allow:
            self._stop.set()
            raise self._repository_missing(uploads) or self._mount_refused(absent)
        transfers = ThreadPoolExecutor(self._sink.transfers, "imagebuild-transfer") if absent else None
        try:
            moved = [transfers.submit(self._transfer, layer) for layer in absent] if transfers else []
            _all(moved)
            _all(uploads)
        finally:
            if transfers is not None:
                transfers.shutdown(cancel_futures=True)
        previous = allowed.result() if allowed is not None else None
        manifests = Manifests(self._view)
        children = _distinct(self._image.manifests, lambda document: document.descriptor.digest)
        _all(
            pool.submit(manifests.push, child.descriptor.digest, child.raw, child.descriptor.media_type)
            for child in children
            if child.descriptor.digest != self._digest
        )
        top = self._image.top
        manifests.push(self._digest if name is None else name, top.raw, top.descriptor.media_type)
        if name is not None:
            ledger.set_tag(target, name, self._digest)
        return self._result(previous)

    def _check_tag(self, head: Future[Digest | None]) -> Digest | None:
        """The digest that is replaced, or None; raises where that is not to be."""
        there = head.result()
        if there is None or there == self._digest:
            return None
        if not self._force and self._name is not None:
            check_tag(self._view, self._name, there, self._digest, self._image.labels)
        return there

    def _place_base(self, layer: Descriptor) -> bool:
        """Mounts a base layer, or finds it in the target; False where neither.

        Where the base lies in the target's own repository there is nothing to mount: one HEAD, in the same round,
        makes sure that the layer is really there.
        """
        view, ledger = self._view, self._view.client.ledger
        with ledger.alone(view.repository.host, layer.digest):
            if ledger.holds(view.repository, layer.digest):
                return True
            source = mount_source(self._image.base, view.repository)
            source = ledger.holder(view.repository.host, layer.digest) or source
            if source == view.repository.path:
                return has_blob(view, layer.digest)
            return mount_or_find(view, layer.digest, source)

    def _transfer(self, layer: Descriptor) -> None:
        """One streaming pass from the base to the target, verified while it passes, nothing on disk."""
        view, ledger, base = self._view, self._view.client.ledger, self._image.base
        if base is None:
            raise self._mount_refused([layer])
        with ledger.alone(view.repository.host, layer.digest):
            holder = ledger.holder(view.repository.host, layer.digest)
            if holder == view.repository.path or (holder is not None and mount_or_find(view, layer.digest, holder)):
                return
            content = PassingContent(layer, lambda: base.open_blob(layer, "base layer"), "base layer")
            try:
                push_blob(view, content, stopped=self._stop.is_set)
            finally:
                content.close()

    def _repository_missing(self, uploads: Sequence[Future[bool]]) -> ImagebuildError | None:
        """What explains a refused mount better, where it is that: the repository does not exist yet."""
        wait(uploads)
        for upload in uploads:
            error = upload.exception()
            if isinstance(error, ImagebuildError) and error.code == "registry.repository-missing":
                return error
        return None

    def _mount_refused(self, layers: Sequence[Descriptor]) -> RefusedError:
        total = sum(layer.size for layer in layers)
        shown = ", ".join(f"{layer.digest} ({layer.size} bytes)" for layer in layers[:5])
        more = f" and {len(layers) - 5} more" if len(layers) > 5 else ""
        base = self._image.base
        hint = "put the base into the same registry"
        if base is not None:
            hint += f", or let {total} bytes pass through this machine with --allow-base-transfer"
        return RefusedError(
            "registry.mount-refused",
            f"{self._view.repository} neither holds nor mounts {len(layers)} layer(s) of the base: {shown}{more}",
            expected="the base's layers in the target, or mounted from " + (base.location if base else "the base"),
            found=f"{total} bytes missing",
            hint=hint,
            details={"layers": [{"digest": str(d.digest), "size": d.size} for d in layers], "bytes": total},
        )

    def _result(self, previous: Digest | None) -> StoreResult:
        moved = self._sink.statistics.snapshot() - self._before
        tag = f":{self._name}" if self._name else ""
        return StoreResult(
            f"{self._sink.location}{tag}@{self._digest}",
            self._digest,
            uploaded_bytes=moved.uploaded_bytes,
            mounted_blobs=moved.mounted_blobs,
            requests=moved.requests,
            previous=previous,
        )


def _opener(raw: bytes) -> Callable[[], io.BytesIO]:
    return lambda: io.BytesIO(raw)
