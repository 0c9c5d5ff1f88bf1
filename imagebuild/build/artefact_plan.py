"""Wheels on a base: which entries they become, what they take out, and the layer that this makes (images.md, the
artefacts layer)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from imagebuild.build.artefact_store import ArtefactFile, ArtefactStore
from imagebuild.build.asked import asked_paths
from imagebuild.build.contents import Contents
from imagebuild.build.layer_data import image_path
from imagebuild.build.live_base import LiveBase, NeedsDeeper
from imagebuild.build.origins import REMOVED, WHEEL
from imagebuild.build.parents import kept_parents, missing_parents
from imagebuild.build.survey import Survey
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, SeveralErrors
from imagebuild.layer.entry import Data, Entry, Found, Kind, LayerFacts
from imagebuild.oci.platform import Platform
from imagebuild.overlay.blob_checks import DEVICE_MACHINES
from imagebuild.overlay.bytecode import find_bytecode
from imagebuild.overlay.changes import WheelChange
from imagebuild.overlay.contents import is_below, wanted_name
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.elf import HEADER_SIZE, read_elf_header
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.install_scheme import install_scheme, wheel_interpreter
from imagebuild.overlay.requirements import Metadata, check_requirements, parse_metadata
from imagebuild.overlay.times import entry_time
from imagebuild.overlay.wheel_archive import WheelArchive, open_wheel
from imagebuild.overlay.wheel_install import InstalledFile, install_wheel
from imagebuild.overlay.wheel_removal import Removal, installed_versions, remove_distribution
from imagebuild.overlay.wheel_tags import check_tags, read_glibc
from imagebuild.target.lock_types import ArtefactSource, LayerItem


@dataclass(frozen=True, slots=True)
class ArtefactPlan:
    """What the wheels of a series make of one platform's base.

    `items` are the entries of the artefacts layer, `files` the data of its files by image path, `facts` that layer as
    if it had been read (None without wheels), `sources` what a locked build makes the files from.
    """

    items: tuple[LayerItem, ...] = ()
    files: Mapping[str, Data] = field(default_factory=dict)
    facts: LayerFacts | None = None
    sources: tuple[ArtefactSource, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_proven: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wheel:
    change: WheelChange
    file: ArtefactFile
    archive: WheelArchive
    installed: tuple[InstalledFile, ...]


def wheel_changes(overlays: Sequence[Overlay]) -> list[WheelChange]:
    """Every wheel of a series, in order.  Raises RefusedError `overlay.wheel-twice` where two are of one distribution."""
    out: list[tuple[Overlay, WheelChange]] = []
    for overlay in overlays:
        for change in overlay.changes:
            if not isinstance(change, WheelChange):
                continue
            for other, earlier in out:
                if normalise_name(earlier.name) == normalise_name(change.name):
                    raise RefusedError(
                        "overlay.wheel-twice",
                        f"the series brings {change.name} twice: {earlier.version} by {other.name}, {change.version} by {overlay.name}",
                        hint="keep one of the two",
                    )
            out.append((overlay, change))
    return [change for _, change in out]


def plan_wheels(
    wheels: Sequence[WheelChange],
    base: Survey,
    store: ArtefactStore,
    platform: Platform,
    created: int,
    contents: Contents,
    *,
    strict: bool = True,
) -> ArtefactPlan:
    """Installs the wheels on paper.

    Raises NeedsDeeper while layers are unread: only all of them tell whether another version is installed and which
    files would be replaced.  Raises what fetching and reading wheels raise, and RefusedError `overlay.wheel-…`,
    `overlay.requirement-unmet` (not without `strict`: then blocking findings stand among the others).
    """
    if not wheels:
        return ArtefactPlan()
    if not base.complete:
        raise NeedsDeeper(f"the wheel {wheels[0].name}")
    return _Planner(wheels, base, store, platform, created, contents, strict).plan()


class _Planner:
    def __init__(
        self,
        wheels: Sequence[WheelChange],
        base: Survey,
        store: ArtefactStore,
        platform: Platform,
        created: int,
        contents: Contents,
        strict: bool,
    ) -> None:
        self.strict = strict
        self.changes = list(wheels)
        self.base = base
        self.view = base.view
        self.store = store
        self.platform = platform
        self.created = created
        self.contents = contents
        self.interpreter = wheel_interpreter(base.layout)
        self.scheme = install_scheme(self.view, self.interpreter)
        self.order = base.layout.import_order()
        self.findings: list[Finding] = []
        self.not_proven: list[str] = []
        self.items: dict[str, LayerItem] = {}
        self.files: dict[str, Data] = {}
        self._folders: dict[str, str] = {}

    def plan(self) -> ArtefactPlan:
        opened = [self._open(change) for change in self.changes]
        removals = self._removals()
        self._requirements(opened, removals)
        gone = frozenset().union(*(removal.files for removal in removals))
        emptied = frozenset().union(*(removal.emptied for removal in removals))
        for wheel in opened:
            for file in wheel.installed:
                self._file(wheel, file, gone, emptied)
        self._whiteouts(removals, emptied)
        self._bytecode()
        for item in kept_parents(self.view, list(self.items)):
            self.items.setdefault(item.path, item)
        items = tuple(self.items[path] for path in sorted(self.items, key=str.encode))
        return ArtefactPlan(
            items,
            self.files,
            layer_facts(items, self.files),
            tuple(self._source(wheel) for wheel in opened),
            tuple(self.findings),
            tuple(self.not_proven),
        )

    def _open(self, change: WheelChange) -> _Wheel:
        file = self.store.wheel(change, self.platform, self.interpreter.version)
        archive = open_wheel(file.path, change.name, change.version)
        glibc = read_glibc(self.view, self.platform)
        self._machines(archive)
        open_question = check_tags(archive.where, archive.tags, self.platform, self.interpreter.version, glibc)
        if open_question is not None:
            self.not_proven.append(open_question)
        return _Wheel(change, file, archive, install_wheel(archive, self.scheme))

    def _machines(self, archive: WheelArchive) -> None:
        """The ELF machines of its shared objects: some for others are said, none for this platform is refused."""
        found: dict[str, str] = {}
        for name in archive.members:
            if name.endswith(".so") or ".so." in name.rpartition("/")[2]:
                with archive.open(name) as stream:
                    header = read_elf_header(stream.read(HEADER_SIZE))
                if header is not None and header.machine_name not in DEVICE_MACHINES:
                    found[name] = header.machine_name
        foreign = sorted(name for name, machine in found.items() if machine != self.platform.machine)
        if not foreign:
            return
        machine = found[foreign[0]]
        if len(foreign) == len(found):
            raise RefusedError(
                "overlay.wheel-platform",
                f"{archive.where} is not for {self.platform}: the ELF machine of {foreign[0]} is {machine}",
                expected=self.platform.machine,
                found=machine,
                hint="give the digest of this platform's wheel",
            )
        message = (
            f"{len(foreign)} shared objects of {archive.where} are for another machine: {foreign[0]} for {machine}"
        )
        self.findings.append(Finding("overlay.wheel-other-machine", Severity.WARNING, foreign[0], message))

    def _removals(self) -> list[Removal]:
        out = []
        errors = []
        for change in self.changes:
            try:
                found, stays = installed_versions(change.name, self.base.distributions, self.order, self.scheme)
                self.findings += stays
                for item in found:
                    removal = remove_distribution(self.view, self.base.distributions, item, self.scheme)
                    self.findings += removal.findings
                    out.append(removal)
            except RefusedError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
        return out

    def _requirements(self, wheels: Sequence[_Wheel], removals: Sequence[Removal]) -> None:
        before = dict(self.base.metadata(self.interpreter))
        brought: dict[str, Metadata] = {}
        without: dict[str, tuple[str, ...]] = {}
        for wheel in wheels:
            name = normalise_name(wheel.change.name)
            site = self.scheme.purelib if wheel.archive.purelib else self.scheme.platlib
            brought[name] = parse_metadata(wheel.archive.metadata, f"{site}/{wheel.archive.info}")
            without[name] = wheel.change.without
        found = check_requirements(
            brought, before, {**before, **brought}, self.platform, self.interpreter.version, without.__getitem__
        )
        blocking = [finding for finding in found if finding.severity is Severity.BLOCKING]
        if blocking and self.strict:
            raise RefusedError(
                "overlay.requirement-unmet",
                f"the wheels do not fit what the image for {self.platform} has: "
                + "; ".join(finding.message for finding in blocking),
                expected="every requirement of the wheels met, and none of another distribution broken",
                found=f"{len(blocking)} unmet",
                hint="add wheels of what is missing, take other versions, or accept what is missing by `without: [NAME, …]` "
                "in the wheel",
                details={"requirements": [finding.document() for finding in blocking]},
            )
        self.findings += found

    def _place(self, path: str) -> str:
        """The image path with links in its folders followed, as an installer writes through them."""
        folder, _, name = path.rpartition("/")
        real = self._folders.get(folder)
        if real is None:
            resolved = self.view.resolve(folder)
            assert isinstance(resolved, str)
            real = self._folders[folder] = resolved
        return f"{real}/{name}" if real else name

    def _file(self, wheel: _Wheel, file: InstalledFile, gone: frozenset[str], emptied: frozenset[str]) -> None:
        place = self._place(file.path)
        path = image_path(place)
        found = self.view.lookup(place)
        existing = found if isinstance(found, Found) else None
        if path in self.items:
            same = self.items[path].postimage == file.data.sha256 and self.items[path].kind == "file"
            if same:
                return
            raise _conflict(wheel, place, "another wheel of the series brings another file there")
        if existing is not None and place not in gone and place not in emptied:
            self._replaces(wheel, file, place, existing)
        missing, owner = missing_parents(self.view, place, gone)
        for folder in missing:
            self.items.setdefault(
                image_path(folder),
                LayerItem(image_path(folder), "directory", "parent", 0o755, *owner, entry_time(self.created, None)),
            )
        kept = existing is not None and existing.data.kind is Kind.FILE
        time = entry_time(self.created, existing.data.mtime if existing is not None else None)
        self.items[path] = LayerItem(
            path,
            "file",
            WHEEL + normalise_name(wheel.change.name),
            file.mode,
            *owner,
            time,
            preimage=existing.data.sha256 if kept and existing is not None else None,
            postimage=file.data.sha256,
        )
        self.files[path] = file.data
        if wanted_name(place, file.data.size):
            with file.data.open() as stream:
                self.contents.put(stream.read())

    def _replaces(self, wheel: _Wheel, file: InstalledFile, place: str, existing: Found) -> None:
        """A file of the base that goes with no removed distribution is in the way."""
        if existing.entry.kind is Kind.DIRECTORY:
            raise _conflict(wheel, place, "the base has a folder there")
        owners = [item.name for item in self.base.distributions.owners(place)]
        if existing.data.sha256 == file.data.sha256:
            return
        if owners:
            raise _conflict(wheel, place, f"it belongs to {', '.join(owners)}, and the wheel's is another file")
        message = f"of no distribution is replaced by the file of {wheel.change.name}"
        self.findings.append(Finding("overlay.wheel-overwrites", Severity.WARNING, place, message))

    def _whiteouts(self, removals: Sequence[Removal], emptied: frozenset[str]) -> None:
        """Deletions of what is not replaced: one for a folder in which nothing is left and nothing new comes, one
        for each other file."""
        filled = set()
        for path in self.items:
            folder = path.lstrip("/").rpartition("/")[0]
            while folder and folder not in filled:
                filled.add(folder)
                folder = folder.rpartition("/")[0]
        # A file in the place of a folder hides what was in it.
        whole = {folder for folder in emptied if folder not in filled}
        for removal in removals:
            origin = f"{REMOVED}{image_path(removal.distribution.info)}"
            for path in (*removal.emptied & whole, *removal.files):
                above = path.rpartition("/")[0]
                if is_below(above, whole):
                    continue
                self._whiteout(path, origin)

    def _whiteout(self, path: str, origin: str) -> None:
        found = self.view.lookup(path)
        digest = found.data.sha256 if isinstance(found, Found) else None
        shown = image_path(path)
        if isinstance(found, Found):
            self.items.setdefault(shown, LayerItem(shown, "whiteout", origin, mtime=self.created, preimage=digest))

    def _bytecode(self) -> None:
        """Bytecode that the base has for files which the wheels bring (images.md, Writing 7)."""
        hidden = {path.lstrip("/") for path, item in self.items.items() if item.kind == "whiteout"}
        variables = self.base.config.variables
        for path, item in list(self.items.items()):
            if item.kind != "file" or not path.endswith(".py"):
                continue
            source = path.lstrip("/")
            for stale in find_bytecode(self.view, source, environment=variables).whiteouts:
                if not is_below(stale, hidden):
                    self._whiteout(stale, f"bytecode:{path}")

    def _source(self, wheel: _Wheel) -> ArtefactSource:
        moved = {folder: real for folder, real in sorted(self._folders.items()) if folder != real}
        details: dict[str, object] = {"python": self.interpreter.version, "scheme": self.scheme.to_json()}
        if moved:
            details["links"] = moved
        return ArtefactSource(
            "wheel", wheel.change.name, wheel.file.sha256, wheel.file.size, wheel.change.version, details
        )


def _conflict(wheel: _Wheel, place: str, why: str) -> RefusedError:
    return RefusedError(
        "overlay.wheel-conflict",
        f"{wheel.archive.where} cannot put {image_path(place)}: {why}",
        expected="a path that is free, or a file that goes with the version that is replaced",
        hint="take a version that does not bring that file, or replace that distribution by a wheel too",
        details={"path": image_path(place)},
    )


def refuse_early_changes(overlays: Sequence[Overlay], platform: Platform, plan: ArtefactPlan, live: LiveBase) -> None:
    """Raises RefusedError `overlay.artefact-order` where the series names a path in a change that stands before the
    wheel which brings that path: the wheel lies below every change."""
    owned = {item.path: item.origin.removeprefix(WHEEL) for item in plan.items if item.origin.startswith(WHEEL)}
    for number, overlay in enumerate(overlays):
        for at, change in enumerate(overlay.changes):
            if not isinstance(change, WheelChange) or not (number or at):
                continue
            before = [*overlays[:number], replace(overlay, changes=overlay.changes[:at], guards={})]
            for path in sorted(asked_paths(before, platform).named):
                if path.partition("/")[0] not in live.folders:
                    continue
                place = image_path(live.place(path))
                if owned.get(place) == normalise_name(change.name):
                    raise RefusedError(
                        "overlay.artefact-order",
                        f"{path} is changed by the series before the wheel {change.name} that brings it",
                        hint="move the wheel before the changes to its files: artefacts lie below all changes",
                        details={"path": path},
                    )


def layer_facts(items: Sequence[LayerItem], files: Mapping[str, Data]) -> LayerFacts:
    """The layer of these items as if it had been read from its tar."""
    entries = {}
    for item in items:
        path = item.path.lstrip("/")
        if item.kind == "file":
            data = files[item.path]
            entries[path] = Entry(path, Kind.FILE, item.mode, item.uid, item.gid, item.mtime, data.size, data.sha256)
        elif item.kind == "directory":
            entries[path] = Entry(path, Kind.DIRECTORY, item.mode, item.uid, item.gid, item.mtime)
    hidden = frozenset(item.path.lstrip("/") for item in items if item.kind == "whiteout")
    nothing = Digest.of(b"")
    return LayerFacts(nothing, nothing, 0, dict(_sorted(entries)), hidden, frozenset())


def _sorted(entries: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    for path in sorted(entries, key=str.encode):
        yield path, entries[path]
