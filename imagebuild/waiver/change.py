"""A change as `git diff` prints it, read for review: which files, which lines are new, which blobs before and after.

Nothing is applied here, so that anything git prints is read, binary files and renames too; a patch that is to be applied is
the overlay package's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.content.files import io_faults
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.overlay.patch_names import git_names, read_name, tail, unprefixed
from imagebuild.waiver.page import Line

SIZE_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of a change.  `old` and `new` are paths in the repository, None for a file that is made or deleted; the
    blob ids as git abbreviates them, "" where it prints none; `added` the new lines with their numbers, `removed` the
    lines taken out."""

    old: str | None
    new: str | None
    old_blob: str = ""
    new_blob: str = ""
    added: tuple[Line, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.new or self.old or ""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All files of a change, by the order in which git prints them."""

    files: tuple[ChangedFile, ...]

    def find(self, path: str) -> ChangedFile | None:
        """The file at `path`, or the one whose path ends with it (a page may be named from a sub-folder)."""
        exact = [f for f in self.files if path in (f.new, f.old)]
        tail = [f for f in self.files if f.path and (f.path.endswith("/" + path) or path.endswith("/" + f.path))]
        return next(iter(exact or tail), None)


@dataclass
class _Open:
    """A file that is being read; mutable until its last line is seen.  `prefixed`: whether its names have git's `a/` and
    `b/` (or the like) before them, None where its header does not say it."""

    old: str | None = None
    new: str | None = None
    prefixed: bool | None = None
    blobs: tuple[str, str] = ("", "")
    added: list[Line] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def close(self) -> ChangedFile:
        return ChangedFile(self.old, self.new, *self.blobs, tuple(self.added), tuple(self.removed))


def load_change(path: Path) -> ChangeSet:
    """The change in a file.  Raises InputError `waiver.bad-diff` for a text that is none."""
    if not path.is_file():
        raise InputError("waiver.bad-diff", f"{path} is not a file", hint="git diff BASE...HEAD > FILE makes one")
    with io_faults(path, "reading"), path.open("rb") as stream:
        data = stream.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputError("waiver.bad-diff", f"{path} is too large", expected=f"at most {SIZE_LIMIT} bytes")
    return parse_change(data.decode("utf-8", "replace"), str(path))


_COMBINED = re.compile(r"diff --(?:cc|combined) ")
_MOVED = re.compile(r"(?:rename|copy) (from|to) (.+)")
_INDEX = re.compile(r"index ([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def parse_change(text: str, name: str) -> ChangeSet:
    """Raises InputError `waiver.bad-diff` where no file header stands in a text that is not empty, and for the combined diff
    of a merge, which does not say what the change adds to its base."""
    files: list[ChangedFile] = []
    current: _Open | None = None
    old_left = new_left = number = 0
    for line in text.split("\n"):
        if current is not None and (old_left > 0 or new_left > 0):
            mark = line[:1]
            if mark == "+":
                current.added.append(Line(number, line[1:]))
                number, new_left = number + 1, new_left - 1
            elif mark == "-":
                current.removed.append(line[1:])
                old_left -= 1
            elif mark != "\\":
                number, old_left, new_left = number + 1, old_left - 1, new_left - 1
            continue
        if _COMBINED.match(line):
            raise InputError(
                "waiver.bad-diff",
                f"{name} is the combined diff of a merge",
                expected="a diff against the base alone",
                hint="git diff BASE...HEAD > FILE makes one",
            )
        if line.startswith("diff --git "):
            if current is not None:
                files.append(current.close())
            current = _opened(line[len("diff --git ") :])
        elif line.startswith("--- ") and current is None:
            current = _Open(_path(line[4:], None), None)
        elif current is not None:
            hunk = _HUNK.match(line)
            if hunk:
                number = int(hunk[3])
                old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            elif line.startswith("+++ "):
                current.new = _path(line[4:], current.prefixed)
            elif line.startswith("--- "):
                if current.added or current.removed:
                    files.append(current.close())
                    current = _Open()
                current.old = _path(line[4:], current.prefixed)
            elif moved := _MOVED.match(line):
                setattr(current, "old" if moved[1] == "from" else "new", _path(moved[2], False))
            elif line.startswith("new file"):
                current.old = None
            elif line.startswith("deleted file"):
                current.new = None
            elif index := _INDEX.match(line):
                current.blobs = (index[1], index[2])
    if current is not None:
        files.append(current.close())
    if not files and text.strip():
        raise InputError("waiver.bad-diff", f"{name} is no unified diff", hint="git diff BASE...HEAD > FILE makes one")
    return ChangeSet(tuple(files))


def _opened(names: str) -> _Open:
    """The file of a `diff --git` line, whichever prefixes git was told to write (`diff.mnemonicPrefix`, `diff.noprefix`); of
    a renamed one the lines below say the names."""
    try:
        old, new = git_names(names.rstrip("\r").encode(), 0)
    except ImagebuildError:
        return _Open()
    return _Open(old, new, False) if old == new else _Open(tail(old), tail(new), True)


def _path(text: str, prefixed: bool | None) -> str | None:
    try:
        name = read_name(text.rstrip("\r").encode(), 0)
    except ImagebuildError:
        name = text.strip()
    if name == "/dev/null":
        return None
    if prefixed is None:
        return unprefixed(name)
    return (tail(name) or name) if prefixed else name


_RUN_TIME: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("git apply", re.compile(r"\bgit\b[^#|;&]*\bapply\b(?!-)")),
    ("patch -p", re.compile(r"(?:^|[\s;&|(`/])patch\s+(?:-\w+\s+|--\S+\s+)*(?:-\w*p ?\d|-d|-i|--strip|<)")),
    ("sed -i", re.compile(r"""\bsed(?:\s+(?:'[^']*'|"[^"]*"|[^\s|;&'"]+))*?\s+-(?:[a-zA-Z]*i|-in-place)""")),
    ("sitecustomize", re.compile(r"\b(?:sitecustomize|usercustomize)\b")),
    ("a forced wheel install", re.compile(r"\bpip3?\s+install\b.*(?:--force-reinstall|\.whl\b)")),
    ("a wheel install", re.compile(
        r"\bpip3?\s+install\b.*(?:git\+|(?<!index-url )(?<!index-url=)(?<!-i )(?<!find-links )(?<!find-links=)https?://)")),
    ("a downloaded .so or .co", re.compile(r"\b(?:curl|wget)\b.*\.(?:so|co|hsaco|cubin)\b")),
    ("a write into installed packages", re.compile(
        r"(?:\b(?:cp|mv|ln|rm|tee|install|rsync|dd)\b|>>?).*(?:site-packages|dist-packages|python3 -c .*__file__)")),
)  # fmt: skip
_OWN_FILE = re.compile(
    r"(?:\.(?:ya?ml|json|toml|env|conf|cfg|ini|txt|log|csv)|CONFIG\w*\}?|RECIPE\w*\}?)[\"']?\s*\\?$", re.IGNORECASE
)
"""A `sed -i` whose last word is a file of settings changes the benchmark's own file, not the engine."""
_PROSE = re.compile(r"(?:^|/)\.github/|changelog|(?:^|/)tests?/|(?:^|/)test_[^/]*$", re.IGNORECASE)
"""Files that speak of patching without doing it in an image."""
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_PACKAGES = re.compile(r"site-packages|dist-packages|\.__file__|find_spec\(|importlib\.util")
_WRITES = re.compile(
    r"write_text\(|write_bytes\(|\.write\(|open\([^)]{0,200}['\"][wa]b?['\"]|os\.replace|shutil\.(?:copy|move)"
)
_SCRIPT = re.compile(
    r"\.(?:sh|bash|py|ya?ml|slurm|sbatch|dockerfile)$|(?:^|/)(?:Dockerfile|Makefile|[^./]+)$", re.IGNORECASE
)


def _windows(text: str, size: int = 2000, step: int = 1600) -> Iterator[str]:
    """A line in overlapping parts, so that a search costs no more than its length."""
    for start in range(0, max(len(text) - (size - step), 1), step):
        yield text[start : start + size]


@dataclass(frozen=True, slots=True)
class RunTimePatch:
    """A line by which a script changes the installed engine when it runs; `how` names the means."""

    path: str
    line: int
    how: str
    text: str


def run_time_patches(change: ChangeSet) -> Iterator[RunTimePatch]:
    """The first line of each kind in each script of the change, and each patch file that it brings.

    Comments do not count.  A block of Python (a heredoc, or a .py file) counts where it both looks for installed packages and
    writes files.
    """
    for file in change.files:
        if file.new is None:
            continue
        if file.new.endswith((".patch", ".diff")) and file.added:
            yield RunTimePatch(file.new, 1, "a patch file", "")
            continue
        if not _SCRIPT.search(file.new) or _PROSE.search(file.new):
            continue
        seen: set[str] = set()
        lines = [line for line in file.added if not line.text.lstrip().startswith(("#", "//"))]
        for line in lines:
            for how, pattern in _RUN_TIME:
                if how == "sed -i" and _OWN_FILE.search(line.text):
                    continue
                if how not in seen and any(pattern.search(part) for part in _windows(line.text)):
                    seen.add(how)
                    yield RunTimePatch(file.new, line.number, how, line.text.strip())
        whole = "\n".join(line.text for line in lines)
        heredoc = next((line for line in lines if _HEREDOC.search(line.text)), None)
        if (heredoc or file.new.endswith(".py")) and _PACKAGES.search(whole) and _WRITES.search(whole):
            first = heredoc or lines[0]
            how = "a heredoc over installed packages" if heredoc else "Python that rewrites installed packages"
            yield RunTimePatch(file.new, first.number, how, first.text.strip())
