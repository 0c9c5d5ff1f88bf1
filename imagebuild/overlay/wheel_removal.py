"""Taking an installed distribution out of an image, by its RECORD (packaging.python.org, Recording installed projects)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, View
from imagebuild.overlay.bytecode import find_bytecode
from imagebuild.overlay.contents import is_below, join
from imagebuild.overlay.distributions import Distribution, Distributions
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.wheel_install import Scheme

_IMPORTABLE = (".py", ".pyd", ".so")


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes with one distribution: `files` and links by image path, its metadata and bytecode among them;
    `emptied` folders in which nothing is left, below the site folder."""

    distribution: Distribution
    files: frozenset[str]
    emptied: frozenset[str]
    findings: tuple[Finding, ...]


def installed_versions(
    name: str, distributions: Distributions, order: Sequence[str], scheme: Scheme
) -> tuple[tuple[Distribution, ...], tuple[Finding, ...]]:
    """The installations of `name` that a new one takes the place of, and findings on those that stay.

    `order` are the folders in which the interpreter looks (PythonLayout.import_order); installations elsewhere do not
    count.  Raises RefusedError `overlay.wheel-shadowed` where one lies in a folder that is searched before the one that
    wheels go to.
    """
    own = {scheme.purelib, scheme.platlib}
    places = {site: number for number, site in enumerate(order)}
    first = min((places[site] for site in own if site in places), default=len(places))
    replaced = []
    findings = []
    for item in distributions.named(name):
        if item.site in own:
            replaced.append(item)
        elif places.get(item.site, len(places)) < first:
            raise RefusedError(
                "overlay.wheel-shadowed",
                f"{item.label} would be found before the wheel's files in /{scheme.purelib}",
                expected="no installation in an earlier folder of the interpreter",
                found="/" + item.info,
                hint="take a base without it",
            )
        elif item.site in places:
            message = f"stays: it is not in the folder that wheels go to; /{scheme.purelib} is searched first"
            findings.append(Finding("overlay.wheel-older-copy", Severity.WARNING, item.info, message))
    return tuple(replaced), tuple(findings)


def remove_distribution(view: View, distributions: Distributions, item: Distribution, scheme: Scheme) -> Removal:
    """What an uninstallation of `item` removes from the view, whose layers must all have been read.

    Files that another distribution lists too stay, and are said; so is code in its folders that no RECORD lists.
    Raises RefusedError `overlay.wheel-unremovable` where its RECORD is missing, damaged or does not list its own
    metadata, where it is an editable installation or none of a `.dist-info`, and where RECORD leads out of the
    interpreter's folders.
    """
    fault = _fault(item)
    if fault is not None:
        raise RefusedError(
            "overlay.wheel-unremovable",
            f"{item.label} cannot be replaced by a wheel: {fault}",
            expected="an installation whose RECORD lists every file of it",
            found=f"installed by {item.installer or 'nobody knows what'}",
            hint="take a base without it, or one where pip or uv installed it from a wheel",
            details={"path": "/" + item.info},
        )
    files: set[str] = set()
    findings: list[Finding] = []
    shared = []
    for path in item.rows:
        _refuse_outside(path, item, scheme)
        found = view.lookup(path)
        if not isinstance(found, Found) or found.entry.kind is Kind.DIRECTORY:
            continue
        if any(other.info != item.info for other in distributions.owners(path)):
            shared.append(path)
            continue
        files.add(path)
        if path.endswith(".py"):
            files.update(find_bytecode(view, path, deleted=True).whiteouts)
    files.update(path for path, found in view.walk(item.info) if found.entry.kind is not Kind.DIRECTORY)
    if shared:
        names = ", ".join("/" + path for path in sorted(shared)[:5])
        message = f"{len(shared)} files that other distributions list too stay: {names}"
        findings.append(Finding("overlay.wheel-shared-files", Severity.NOTE, item.info, message))
    emptied, leftover = _emptied(view, files, item)
    if leftover:
        names = ", ".join("/" + path for path in leftover[:5]) + (", …" if len(leftover) > 5 else "")
        message = f"{len(leftover)} files in its folders that no RECORD lists stay and can be imported: {names}"
        findings.append(Finding("overlay.wheel-leftover", Severity.WARNING, item.info, message))
    message = f"{item.name} {item.version} is taken out by its RECORD ({len(files)} files)"
    findings.append(Finding("overlay.wheel-replaces", Severity.NOTE, item.info, message))
    return Removal(item, frozenset(files), emptied, tuple(findings))


def _fault(item: Distribution) -> str | None:
    if not item.dist_info:
        return "it is no .dist-info installation"
    if item.editable is not None:
        return f"it is an editable installation of /{item.editable}"
    if item.record is None:
        return "it has no RECORD"
    if item.record in item.unread:
        return "its RECORD could not be read"
    if f"{item.info}/METADATA" not in item.rows:
        return "its RECORD does not list its own METADATA, so it is not complete"
    return None


def _refuse_outside(path: str, item: Distribution, scheme: Scheme) -> None:
    if path and not is_below(path, {scheme.data, scheme.purelib, scheme.platlib}) and scheme.data:
        raise RefusedError(
            "overlay.wheel-unremovable",
            f"the RECORD of {item.label} lists a file outside the interpreter's folders",
            expected=f"paths below /{scheme.data}",
            found="/" + path,
            hint="take a base without it",
            details={"path": "/" + path},
        )


def _emptied(view: View, files: Collection[str], item: Distribution) -> tuple[frozenset[str], list[str]]:
    """Folders below the site folder in which nothing stays, and importable files that stay in folders of the
    distribution."""
    folders: set[str] = set()
    inside = item.site + "/" if item.site else ""
    for path in files:
        folder = path.rpartition("/")[0]
        while folder.startswith(inside) and folder != item.site and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    emptied: set[str] = set()
    leftover: list[str] = []
    for folder in sorted(folders, key=lambda path: -path.count("/")):
        stays = [name for name, child in _stays(view, folder, files, emptied)]
        if not stays:
            emptied.add(folder)
        leftover += [name for name in stays if name.endswith(_IMPORTABLE) and not _is_folder(view, name)]
    return frozenset(emptied), sorted(leftover)


def _stays(view: View, folder: str, files: Collection[str], emptied: Collection[str]) -> Iterator[tuple[str, Found]]:
    for name, child in view.children(folder)[0].items():
        path = join(folder, name)
        if path not in files and path not in emptied:
            yield path, child


def _is_folder(view: View, path: str) -> bool:
    found = view.lookup(path)
    return isinstance(found, Found) and found.entry.kind is Kind.DIRECTORY
