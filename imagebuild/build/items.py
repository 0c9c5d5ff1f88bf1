"""From an applied series to the entries of its layers, with what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuild.build.contents import Contents
from imagebuild.build.derived import PROVENANCE, RECORD, SBOM, compile_patch
from imagebuild.build.layer_data import BytesData, image_path, inherited_xattrs
from imagebuild.build.live_base import LiveBase, NeedsDeeper
from imagebuild.build.parents import kept_parents, missing_parents
from imagebuild.build.patched_files import patched_files, sbom_of
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data, Entry, Found, Unknown
from imagebuild.layer.view import MergedView
from imagebuild.overlay.bytecode import Pyc, find_bytecode, find_jit_caches
from imagebuild.overlay.distributions import Distribution, Distributions
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.record import PROVENANCE_NAME, SBOM_NAME, RecordPlan, record_edits
from imagebuild.overlay.series import AppliedSeries
from imagebuild.overlay.times import entry_time
from imagebuild.target.lock_types import LayerItem


class ItemMaker:
    """Makes the items of one platform.  After `make`: `items` of the changes layer and `artefacts`, by path, of the one below
    that the series brings (no two of one path in each), `files` (bytes of changes by image path), `kept` (compiled patches and SBOMs),
    `neighbours` (bytecode that was found), `watched` (where none is), `not_proven`, `findings`."""

    def __init__(
        self,
        view: MergedView,
        live: LiveBase,
        distributions: Distributions,
        applied: AppliedSeries,
        created: int,
        contents: Contents,
        environment: Mapping[str, str],
        brought: Mapping[Digest, Data],
    ) -> None:
        self.brought = brought
        self.environment = environment
        self.view = view
        self.live = live
        self.distributions = distributions
        self.applied = applied
        self.created = created
        self.contents = contents
        self.items: list[LayerItem] = []
        self.artefacts: dict[str, LayerItem] = {}
        self.files: dict[str, bytes] = {}
        self.kept: list[bytes] = []
        self.neighbours: dict[str, Found] = {}
        self.watched: list[str] = []
        self.not_proven: list[str] = []
        self.findings: list[Finding] = []
        self._made: set[str] = set()
        self._sboms: dict[str, bytes] = {}

    def make(self, *, keep_record: bool) -> None:
        """Raises RefusedError `overlay.path-conflict` where a file stands where a folder would be, `overlay.record-…`."""
        self._brought()
        self._changes()
        self._links_and_deletions()
        self._refuse_overlapping()
        self._bytecode()
        self._records(keep_record)
        for item in kept_parents(self.view, [item.path for item in self.items]):
            self._add(item)
        for item in kept_parents(self.view, list(self.artefacts)):
            self.artefacts.setdefault(item.path, item)

    def _add(self, item: LayerItem) -> None:
        if item.path not in self._made:
            self._made.add(item.path)
            self.items.append(item)

    def _brought(self) -> None:
        for file in self.applied.brought:
            place = self._place(file.path)
            found = self.live.found.get(file.path)
            if found is None:
                folders, owner = missing_parents(self.view, place)
                for folder in folders:
                    self.artefacts.setdefault(image_path(folder), self._folder(folder, owner))
            else:
                owner = (found.data.uid, found.data.gid)
            self.artefacts[image_path(place)] = LayerItem(
                image_path(place),
                "file",
                f"{file.kind}:{file.path}",
                file.mode,
                *owner,
                self._time(found, ""),
                xattrs=inherited_xattrs(found.data) if found is not None else {},
                preimage=file.preimage,
                postimage=file.sha256,
            )

    def _place(self, path: str) -> str:
        place = self.live.places.get(path) or self.live.place(path)
        self.live.places[path] = place
        return place

    def _changes(self) -> None:
        for file in self.applied.written:
            place = self._place(file.path)
            found = self.live.found.get(file.path)
            uid, gid = (found.data.uid, found.data.gid) if found is not None else self._parents(place)
            self.files[image_path(place)] = file.data
            self._add(
                LayerItem(
                    image_path(place),
                    "file",
                    f"change:{file.path}",
                    file.mode,
                    uid,
                    gid,
                    self._time(found, place),
                    xattrs=inherited_xattrs(found.data) if found is not None else {},
                    preimage=file.preimage,
                    postimage=Digest.of(file.data),
                )
            )

    def _links_and_deletions(self) -> None:
        for link in self.applied.links:
            place = self.live.place(link.path)
            self.live.places[link.path] = place
            found = self.live.found.get(link.path)
            uid, gid = (found.data.uid, found.data.gid) if found is not None else self._parents(place)
            self._add(
                LayerItem(
                    image_path(place),
                    "symlink",
                    f"change:{link.path}",
                    0o777,
                    uid,
                    gid,
                    self._time(found, place),
                    link=link.to,
                    preimage=link.preimage,
                )
            )
        for gone in self.applied.deleted:
            place = self.live.place(gone.path)
            self.live.places[gone.path] = place
            self._add(
                LayerItem(
                    image_path(place), "whiteout", f"change:{gone.path}", mtime=self.created, preimage=gone.preimage
                )
            )

    def _refuse_overlapping(self) -> None:
        """Two changes that links of the base lead to one place, or one of them into what the other deletes."""
        owners: dict[str, str] = {}
        for path in self._changed:
            place = self.live.places[path]
            if place in owners:
                raise self._overlap(path, owners[place], f"both lead to {image_path(place)}")
            owners[place] = path
        gone = {self.live.places[path]: path for path in self.folders_gone}
        for place, path in owners.items():
            above = place.rpartition("/")[0]
            while above:
                if above in gone:
                    raise self._overlap(path, gone[above], f"{image_path(above)} is deleted whole")
                above = above.rpartition("/")[0]

    @staticmethod
    def _overlap(path: str, other: str, why: str) -> RefusedError:
        return RefusedError(
            "overlay.path-conflict",
            f"{path} and {other} cannot both be changed: {why}",
            hint="name the place itself, in one change",
            details={"path": path, "other": other},
        )

    @property
    def folders_gone(self) -> list[str]:
        """The folders that the series deletes whole, one that a link takes the place of too."""
        return list(dict.fromkeys(step.path for step in self.applied.steps if step.folder))

    @property
    def _changed(self) -> list[str]:
        written, links, deleted = self.applied.written, self.applied.links, self.applied.deleted
        return [*(x.path for x in written), *(x.path for x in links), *(x.path for x in deleted)]

    def _time(self, found: Found | None, place: str) -> int:
        """The time of an entry at `place`, over an artefact's file where one is there."""
        below = self.artefacts.get(image_path(place))
        if below is not None:
            return entry_time(self.created, below.mtime)
        return entry_time(self.created, None if found is None else found.data.mtime)

    def _folder(self, folder: str, owner: tuple[int, int]) -> LayerItem:
        return LayerItem(image_path(folder), "directory", "parent", 0o755, *owner, entry_time(self.created, None))

    def _parents(self, place: str) -> tuple[int, int]:
        """Entries for the folders above a new path that the base and the artefacts lack; owner of the nearest one."""
        folders, owner = missing_parents(self.view, place)
        for folder in folders:
            if image_path(folder) not in self.artefacts:
                self._add(self._folder(folder, owner))
        return owner

    def _bytecode(self) -> None:
        """Whites out the bytecode of every changed source (images.md, Writing 7); a new source counts too, since bytecode
        of an older copy may lie there.  Raises RefusedError where a compiled module would win over a changed source."""
        places = self.live.places
        sources = {places[file.path]: False for file in self.applied.brought}
        sources.update({places[file.path]: False for file in self.applied.written})
        sources.update({places[link.path]: False for link in self.applied.links})
        sources.update({places[gone.path]: True for gone in self.applied.deleted if not gone.folder})
        gone = {places[item.path] for item in self.applied.deleted}
        for source, deleted in sorted(sources.items()):
            known = find_bytecode(self.view, source, deleted=deleted, environment=self.environment, gone=gone)
            for pyc in known.pycs:
                self._stale(source, pyc)
            self.watched += known.watched
            self.not_proven += known.not_proven
            self._refuse_inert(known.findings)
            self.findings += known.findings
        for folder in sorted(set(self.live.folders.values())):
            if folder:
                self.findings += find_jit_caches(self.view, folder, set(sources), gone)

    def _stale(self, source: str, pyc: Pyc) -> None:
        self.neighbours[pyc.path] = pyc.found
        self._add(
            LayerItem(
                image_path(pyc.path),
                "whiteout",
                f"bytecode:{image_path(source)}",
                mtime=self.created,
                preimage=pyc.found.data.sha256,
            )
        )

    @staticmethod
    def _refuse_inert(findings: Sequence[Finding]) -> None:
        for finding in findings:
            if finding.severity is Severity.BLOCKING:
                raise RefusedError(
                    finding.code,
                    f"{image_path(finding.path)}: {finding.message}; the changed source would never run",
                    hint="delete the compiled form in the overlay: `- delete: {path: ROOT/…}`",
                    details={"path": image_path(finding.path)},
                )

    def _records(self, keep: bool) -> None:
        written: dict[str, Data | None] = {}
        added: dict[str, Data | None] = {}
        removed: set[str] = {self.live.places[path] for path in self.folders_gone}
        for item in (*self.artefacts.values(), *self.items):
            path = item.path.lstrip("/")
            if item.kind == "whiteout":
                removed.add(path)
            elif item.kind in ("file", "symlink"):
                data = self._data(item) if item.kind == "file" else None
                replaces = isinstance(self.view.lookup(path), Found) and path not in removed
                (written if replaces else added)[path] = data
        plan = record_edits(
            self.distributions, written=written, removed=removed, added=added, keep=keep, describe=self._describe
        )
        self.findings += plan.findings
        self.not_proven += plan.not_proven
        for change in plan.changes:
            found = self._found(change.path)
            assert found.data.sha256 is not None
            before = self.contents.get(found.data.sha256)
            assert before is not None
            after = change.apply(before)
            if after == before:
                continue
            path = image_path(change.path)
            patch = compile_patch(path, before, after)
            self.kept.append(patch)
            self.files[path] = after
            self._add(self._kept_item(path, RECORD + path, found.data, found.data.sha256, after, Digest.of(patch)))
        self._provenance(plan)

    def _describe(self, item: Distribution, touched: frozenset[str]) -> Mapping[str, Data | None]:
        """Our files in the dist-info of a patched distribution."""
        if not item.dist_info:
            return {}
        document = self._sboms.get(item.info)
        if document is None:
            files = patched_files(self.applied, self.live.places, touched, self.live.whole)
            document = self._sboms[item.info] = sbom_of(item.info, files, self.created)
        return {PROVENANCE_NAME: None, SBOM_NAME: BytesData(document)}

    def _data(self, item: LayerItem) -> Data:
        """The new data of a file item; an artefact's is looked up by its digest."""
        if item.path in self.files:
            return BytesData(self.files[item.path])
        assert item.postimage is not None
        return self.brought[item.postimage]

    def _found(self, path: str) -> Found:
        found = self.view.lookup(path)
        if not isinstance(found, Found):
            raise NeedsDeeper(path)
        return found

    def _kept_item(
        self, path: str, origin: str, entry: Entry, before: Digest, after: bytes, patch: Digest | None
    ) -> LayerItem:
        return LayerItem(
            path,
            "file",
            origin,
            entry.mode,
            entry.uid,
            entry.gid,
            entry_time(self.created, entry.mtime),
            xattrs=inherited_xattrs(entry),
            preimage=before,
            postimage=Digest.of(after),
            patch=patch,
        )

    def _provenance(self, plan: RecordPlan) -> None:
        """SBOM and provenance file in the dist-info of each patched distribution; the latter's bytes come when the content id is
        known."""
        for item in plan.patched:
            if not item.dist_info:
                continue
            self._describe(item, plan.touched[item.info])
            document = self._sboms[item.info]
            folder = self._found(item.info).entry
            path = f"{item.info}/{SBOM_NAME}"
            # no layer below that of the dist-info is read for this folder: an entry too many changes nothing
            if not isinstance(self.view.lookup(path.rpartition("/")[0]), Unknown):
                self._parents(path)
            else:
                self._add(self._folder(path.rpartition("/")[0], (folder.uid, folder.gid)))
            if image_path(path) not in self._made:
                self.kept.append(document)
                self.files[image_path(path)] = document
                self._add(self._note(path, folder, SBOM + image_path(item.info), Digest.of(document)))
            path = f"{item.info}/{PROVENANCE_NAME}"
            self._add(self._note(path, folder, PROVENANCE + image_path(item.info), None))

    def _note(self, path: str, folder: Entry, origin: str, postimage: Digest | None) -> LayerItem:
        """A file of our own with the owner of `folder`, over an older one where a base that we built has it."""
        existing = self.view.lookup(path)
        old = existing.data if isinstance(existing, Found) else None
        return LayerItem(
            image_path(path),
            "file",
            origin,
            0o644,
            folder.uid,
            folder.gid,
            entry_time(self.created, None if old is None else old.mtime),
            preimage=None if old is None else old.sha256,
            postimage=postimage,
        )
