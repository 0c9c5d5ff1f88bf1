"""Turning a diff, or a tree of files, into a guarded overlay (cli.md, `overlay import`).

The result is complete before anything is written, and has been applied to every platform's base once: an overlay that was
imported applies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from imagebuild.content.strict_yaml import quoted
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Change, DeleteChange, FileChange, PatchChange
from imagebuild.overlay.document import UPSTREAM_STATUS, Overlay
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.import_files import FileReport, FileState, Placed, place, would_apply
from imagebuild.overlay.import_paths import Mapped, WantedPath, map_paths
from imagebuild.overlay.overlay_text import Guards, format_overlay
from imagebuild.overlay.patch import EXECUTABLE, FilePatch, Patch, format_patch
from imagebuild.overlay.patch_make import is_text, make_file_patch
from imagebuild.overlay.patch_names import header_fields
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.paths import Glob, validate_path
from imagebuild.overlay.proving import prove_guards
from imagebuild.overlay.series_tree import Base, Tree
from imagebuild.overlay.vocabulary import validate_name

_HEADER_LIMIT = 64 << 10
_KNOWN_FIELDS = frozenset(
    (
        "Description",
        "Subject",
        "From",
        "Author",
        "Origin",
        "Forwarded",
        "Last-Update",
        "Upstream-Status",
        "Applied-Upstream",
    )
)


@dataclass(frozen=True, slots=True)
class ImportedOverlay:
    """An overlay that is not on disk yet.

    `text` is its overlay.yaml, `files` every other file by its path below the overlay's folder, `changes` and `guards` what
    the text says, `reports` how each file of the input fared, `notes` remarks for people.
    """

    name: str
    text: str
    files: Mapping[str, bytes] = field(repr=False)
    changes: tuple[Change, ...]
    guards: Guards
    reports: tuple[FileReport, ...]
    notes: tuple[str, ...] = ()


def import_diff(
    name: str,
    diff: bytes,
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    *,
    folders: Collection[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    check_ids: bool = True,
) -> ImportedOverlay:
    """Makes an overlay of a unified diff.

    `bases` holds the base of each platform; the first decides where hunks stand, the others must take the same patch
    exactly.  `roots` are the target's root names, `folders` those of them that are no Python package.  `include` and
    `exclude` are globs over the paths as the diff names them.  `check_ids` compares the blob ids of `index`
    lines with the base's file before and the result after.

    Modified files become one patch each (at their true positions), new ones are stored whole, deleted ones become
    `delete`.  Raises InputError for what cannot be read (`parse_patch`, `overlay.nothing-to-import`,
    `overlay.ambiguous-root`), RefusedError for what does not fit: `overlay.path-missing` naming every path that the
    base lacks, `overlay.index-mismatch`, `overlay.patch-mismatch`, `overlay.path-exists`, `overlay.already-applied`,
    `overlay.mode-mismatch`, `overlay.platforms-differ`; SeveralErrors where there are several.  `details["files"]` of the
    first error holds the report of every file, each hunk's offset with it, also of those that would fit.
    """
    validate_name(name, "an overlay")
    patch = parse_patch(diff)
    base = next(iter(bases.values()))
    chosen, reports = _choose(patch.files, include, exclude)
    mapping = _mapping(_wanted(chosen), roots, folders, base)
    placed: list[Placed] = []
    tree = Tree(base)
    for file in chosen:
        mapped = _mapped(file, mapping)
        if isinstance(mapped, FileReport):
            reports.append(mapped)
            continue
        for path in Patch((mapped,)).paths:
            validate_path(path, "the diff", roots)
        source, target = _file_at(tree, mapped.old_path or mapped.path), _file_at(tree, mapped.path)
        found = place(file.path, mapped, source, target, check_ids)
        if isinstance(found, FileReport):
            reports.append(found)
            continue
        reports.append(found.report)
        placed.append(found)
        if mapped.moved and not mapped.copied and mapped.old_path is not None:
            tree.put(mapped.old_path, None)
        tree.put(mapped.path, None if found.after is None else BaseFile(found.after, found.mode))
    _refuse(reports, roots)
    notes = [note for report in reports for note in report.notes]
    notes += [f"{report.diff_path}: left out" for report in reports if report.state is FileState.EXCLUDED]
    header, remark = _header(patch.header)
    return _assemble(name, placed, header, bases, roots, reports, notes + remark)


def import_tree(
    name: str,
    tree: Mapping[str, bytes],
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    *,
    folders: Collection[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    whole: bool = False,
) -> ImportedOverlay:
    """Makes an overlay of files (`read_tree`): relative path to bytes, laid out as a repository or as ROOT/relative.

    A text that the base has in another form becomes a patch, so that a reviewer sees hunks (with `whole` it is stored
    whole), everything else is stored whole; files that are equal to the base's are left out and said.  The parameters and
    errors are those of `import_diff`.
    """
    validate_name(name, "an overlay")
    base = next(iter(bases.values()))
    paths = [FilePatch(None, path) for path in sorted(tree, key=lambda path: path.encode())]
    chosen, reports = _choose(paths, include, exclude)
    names = [file.path for file in chosen]
    mapping = _mapping([(path, False) for path in names], roots, folders, base)
    known = [(path, mapping[path].target is None and not mapping[path].several) for path in names]
    mapping = _mapping(known, roots, folders, base)
    placed: list[Placed] = []
    stored: set[str] = set()
    notes: list[str] = []
    for path in names:
        mapped = _mapped(FilePatch(None, path), mapping)
        if isinstance(mapped, FileReport):
            reports.append(mapped)
            continue
        target = validate_path(mapped.path, "the tree", roots)
        before, after = base.read(target), tree[path]
        report = FileReport(path, target, FileState.FITS)
        if before is not None and before.digest.hex == BaseFile(after).digest.hex:
            notes.append(f"{path}: equal to the base's file, left out")
            reports.append(FileReport(path, target, FileState.APPLIED))
            continue
        data = None if before is None else before.data
        if whole or before is None or data is None or not (is_text(data) and is_text(after)):
            stored.add(target)
            file = FilePatch(None if before is None else target, target)
        else:
            file = make_file_patch(target, data, after)
        placed.append(Placed(report, file, before, after, 0o644 if before is None else before.mode))
        reports.append(report)
    _refuse(reports, roots)
    return _assemble(name, placed, b"", bases, roots, reports, notes, stored)


def _choose(
    files: Sequence[FilePatch], include: Sequence[str], exclude: Sequence[str]
) -> tuple[list[FilePatch], list[FileReport]]:
    wanted, unwanted = [Glob(text) for text in include], [Glob(text) for text in exclude]
    chosen, reports = [], []
    for file in files:
        if (wanted and not any(glob.matches(file.path) for glob in wanted)) or any(
            glob.matches(file.path) for glob in unwanted
        ):
            reports.append(FileReport(file.path, None, FileState.EXCLUDED))
        else:
            chosen.append(file)
    if not chosen:
        raise InputError(
            "overlay.nothing-to-import",
            f"nothing is left of {len(files)} files",
            hint="check --include and --exclude; they are globs over the paths as the diff or tree names them",
            details={"files": [file.path for file in files[:100]]},
        )
    return chosen, reports


def _wanted(files: Sequence[FilePatch]) -> list[tuple[str, bool]]:
    """Every path once, with whether the diff makes it; a path that is made first and changed later is made."""
    out: dict[str, bool] = {}
    for file in files:
        if file.old_path is not None:
            out.setdefault(file.old_path, file.maybe_created)
        if file.new_path is not None:
            out.setdefault(file.new_path, file.created or file.moved)
    return list(out.items())


def _file_at(tree: Tree, path: str) -> BaseFile | None:
    node = tree.node(path)
    return node if isinstance(node, BaseFile) else None


def _mapping(
    paths: Sequence[tuple[str, bool]], roots: Collection[str], folders: Collection[str], base: Base
) -> dict[str, Mapped]:
    def exists(path: str) -> bool:
        return base.read(path) is not None

    return map_paths([WantedPath(path, new) for path, new in paths], roots, folders, exists)


def _mapped(file: FilePatch, mapping: Mapping[str, Mapped]) -> FilePatch | FileReport:
    """The file under ROOT/relative paths, or why it has none."""
    for path in (file.old_path, file.new_path):
        if path is None:
            continue
        where = mapping[path]
        if where.several:
            error = InputError(
                "overlay.ambiguous-root",
                f"{path} may mean {' or '.join(where.several)}",
                hint="make the diff from the folder that holds the root, so that its path begins with the root's name",
            )
            return FileReport(path, None, FileState.AMBIGUOUS, error=error)
        if where.target is None:
            return FileReport(path, None, FileState.MISSING)
    return next(iter(Patch((file,)).mapped(lambda path: mapping[path].target or path).files))


def _refuse(reports: Sequence[FileReport], roots: Collection[str]) -> None:
    """Raises what the reports hold against the import; says beside it what the other files would do."""
    errors: list[ImagebuildError] = []
    missing = [report for report in reports if report.state is FileState.MISSING]
    if missing:
        errors.append(_missing(missing, roots))
    errors += [report.error for report in reports if report.error is not None]
    if not errors:
        return
    fine = [
        f"{report.path} {would_apply(report.hunks)}"
        for report in reports
        if report.error is None and report.state is FileState.OFFSETS
    ]
    if fine:
        errors[0].message += f" ({'; '.join(fine[:5])})"
    errors[0].details["files"] = [report.document() for report in reports[:200]]
    if len(errors) == 1:
        raise errors[0]
    raise SeveralErrors(errors)


def _missing(reports: Sequence[FileReport], roots: Collection[str]) -> RefusedError:
    paths = [report.path or report.diff_path for report in reports]
    shown = ", ".join(paths[:10]) + (f" and {len(paths) - 10} more" if len(paths) > 10 else "")
    outside = sorted({path.partition("/")[0] for path in paths if path.partition("/")[0] not in roots})
    if outside:
        globs = " ".join(
            f"--exclude '{first}/**'" if any(path.startswith(first + "/") for path in paths) else f"--exclude {first}"
            for first in outside[:5]
        )
        hint = f"no root of the target holds {', '.join(outside[:5])}; leave such files out: {globs}"
    else:
        hint = "make the diff against the base's own files, or point the target at the base that the diff was made for"
    return RefusedError(
        "overlay.path-missing",
        f"the base has no {shown}",
        expected=f"files below the target's roots: {', '.join(sorted(roots))}",
        found=f"{len(paths)} {'path' if len(paths) == 1 else 'paths'} that the base lacks",
        hint=hint,
        details={"paths": paths[:500]},
    )


def _header(header: bytes) -> tuple[bytes, list[str]]:
    """The text above the diff where it is a provenance header; prose (a pasted page) is dropped and said."""
    if not header.strip():
        return b"", []
    first = header.lstrip().split(b"\n", 1)[0]
    fields = header_fields(header)
    begins = re.match(rb"(?:From [0-9a-f]{40} |[A-Z][A-Za-z-]*:)", first) is not None
    if begins and _KNOWN_FIELDS & set(fields) and len(header) <= _HEADER_LIMIT:
        return header, []
    return b"", [f"{len(header)} bytes of text above the diff are no DEP-3 or mail header; they were left out"]


def _fields(header: bytes) -> tuple[str, dict[str, str]]:
    """Description and further keys of overlay.yaml, as far as the header says them."""
    said = header_fields(header)
    subject = said.get("Subject") or said.get("Description") or ""
    line = re.sub(r"^(?:\[[^\]]*\]\s*)+", "", " ".join(subject.split("\n")[:1])).strip()
    out: dict[str, str] = {}
    author = said.get("Author") or said.get("From")
    if author:
        out["author"] = quoted(" ".join(author.split()))
    forwarded = " ".join(said.get("Forwarded", "").split())
    if re.fullmatch(r"no|not-needed|https?://[^\s@]+", forwarded):
        out["forwarded"] = f'"{forwarded}"'
    status = re.split(r"[\s\[(:]", said.get("Upstream-Status", ""), maxsplit=1)[0]
    if status in UPSTREAM_STATUS:
        out["upstream_status"] = status
    if said.get("Applied-Upstream"):
        out["applied_upstream"] = quoted(" ".join(said["Applied-Upstream"].split()))
    if re.fullmatch(r"\d{4}-\d\d-\d\d", said.get("Last-Update", "")):
        out["last_update"] = said["Last-Update"]
    return line, out


def _stored_whole(item: Placed) -> bool:
    """A new file without a mode of its own is stored as it is; a diff of it would only hide it behind plus signs."""
    return item.before is None and item.patch.new_mode != EXECUTABLE


def _assemble(
    name: str,
    placed: Sequence[Placed],
    header: bytes,
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    reports: Sequence[FileReport],
    notes: Sequence[str],
    stored: Collection[str] = (),
) -> ImportedOverlay:
    changes: list[Change] = []
    files: dict[str, bytes] = {}
    for item in placed:
        path = item.patch.path
        if path in stored or (_stored_whole(item) and not item.patch.moved):
            files[f"files/{path}"] = item.after or b""
            changes.append(FileChange(f"files/{path}", path))
        elif item.patch.deleted:
            changes.append(DeleteChange(path=path))
        else:
            number = sum(isinstance(change, PatchChange) for change in changes) + 1
            member = f"patches/{number:04d}-{patch_slug(path)}.patch"
            files[member] = format_patch(Patch((item.patch,), header if number == 1 else b""))
            changes.append(PatchChange(member))
    if not changes:
        raise InputError("overlay.nothing-to-import", "every file is as the base has it already; nothing is left to do")
    overlay = Overlay(name, name, tuple(changes), Path(name))
    guards = prove_guards(overlay, bases, roots, read=lambda _, member: files[member])
    description, fields = _fields(header)
    if not description:
        described = ", ".join(PurePosixPath(item.patch.path).name for item in placed[:3])
        description = f"changes {described}" + (f" and {len(placed) - 3} more files" if len(placed) > 3 else "")
    text = format_overlay(name, description, fields, changes, guards)
    return ImportedOverlay(name, text, files, tuple(changes), guards, tuple(reports), tuple(notes))


def patch_slug(path: str) -> str:
    """The part of a patch file's name that tells what it patches."""
    stem = PurePosixPath(path).stem.lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40] or "patch"
