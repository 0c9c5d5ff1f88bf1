"""Reading unified diffs: plain ones (GNU diff, `diff -ru`, quilt) and git's, with the text around them.

Whatever cannot be read to the last line is refused.  Text between diffs (mail headers, diffstats, signatures) is passed
over, but never a line that could be part of a diff: a change that we did not understand must not be lost silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from imagebuild.errors import InputError, clean
from imagebuild.overlay.patch import FilePatch, Hunk, Patch, bad_patch
from imagebuild.overlay.patch_names import git_names, is_epoch, read_name, same_file, shown, tail, unprefixed

MAX_PATCH_BYTES = 64 << 20
MAX_HEADER_BYTES = 256 << 10

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)\Z", re.DOTALL)
_INDEX = re.compile(rb"index ([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?\Z")
_MODE = re.compile(rb"[0-7]{6}\Z")
_ONLY_IN = re.compile(rb"Only in [^\s:]+: \S+\Z")
_EXTENDED = (
    b"index ",
    b"old mode ",
    b"new mode ",
    b"new file mode ",
    b"deleted file mode ",
    b"similarity index ",
    b"dissimilarity index ",
    b"rename from ",
    b"rename to ",
    b"copy from ",
    b"copy to ",
)


def parse_patch(data: bytes) -> Patch:
    """Reads a patch text of at most 64 MiB.

    Raises InputError: `overlay.patch-bad-hunk` (counts that lie, hunks out of order, text that is cut),
    `overlay.patch-bad-header`, `overlay.patch-binary`, `overlay.patch-unsupported` (context and combined diffs, links,
    submodules, "Only in"), `overlay.patch-empty`, `overlay.patch-too-large`, `overlay.bad-path` for names that are not UTF-8.
    Whether a path is a safe `ROOT/relative` is not decided here, since an import still has to map it.
    """
    if len(data) > MAX_PATCH_BYTES:
        raise InputError(
            "overlay.patch-too-large",
            f"the patch has {len(data)} bytes",
            expected=f"at most {MAX_PATCH_BYTES} bytes",
            found=f"{len(data)} bytes",
            hint="import new files as files (--from-tree), not as a diff",
        )
    return _Parser(data).patch()


@dataclass(slots=True)
class _Section:
    """What the lines above the hunks of one file said; mutable while they are read."""

    line: int
    git: bool = False
    git_names: bytes = b""
    old_mode: int | None = None
    new_mode: int | None = None
    created: bool = False
    deleted: bool = False
    moved_from: str | None = None
    moved_to: str | None = None
    copied: bool = False
    old_id: str | None = None
    new_id: str | None = None
    index_mode: int | None = None
    names: tuple[bytes, bytes] | None = None
    hunks: list[Hunk] = field(default_factory=list)


class _Parser:
    def __init__(self, data: bytes) -> None:
        self.lines = data.split(b"\n")
        if self.lines[-1] == b"":
            self.lines.pop()
        self.at = 0

    def head(self, ahead: int = 0) -> bytes:
        """A line as headers are read: without the CR that a mailer or editor may have put at its end."""
        place = self.at + ahead
        return self.lines[place].rstrip(b"\r") if place < len(self.lines) else b""

    def patch(self) -> Patch:
        files: list[FilePatch] = []
        header_end: int | None = None
        while self.at < len(self.lines):
            line = self.head()
            start = self.at
            if line.startswith(b"diff --git "):
                section = self.git_section()
            elif line.startswith(b"--- ") and self.head(1).startswith(b"+++ "):
                section = _Section(self.at + 1)
                self.names_and_hunks(section)
            else:
                self.refuse_lost_change(line)
                self.at += 1
                continue
            if header_end is None:
                header_end = self._header_end(start)
            files.append(_file_patch(section))
        if not files:
            raise bad_patch(
                "there is no diff in it",
                hint="give a unified diff, as `git diff` and `diff -u` write it",
                code="overlay.patch-empty",
            )
        header = b"".join(line + b"\n" for line in self.lines[: header_end or 0])
        if len(header) > MAX_HEADER_BYTES:
            raise InputError(
                "overlay.patch-too-large",
                f"the text before the first diff has {len(header)} bytes",
                expected=f"at most {MAX_HEADER_BYTES} bytes",
                found=f"{len(header)} bytes",
            )
        return Patch(tuple(files), header)

    def _header_end(self, start: int) -> int:
        """Where the first diff begins, lines that tools write above it (`diff -ru a b`, `Index: x`, `====`) included."""
        end = start
        while end and self.lines[end - 1].startswith((b"diff ", b"Index: ", b"==========")):
            end -= 1
        return end

    def refuse_lost_change(self, line: bytes) -> None:
        number = self.at + 1
        if line.startswith((b"diff --cc ", b"diff --combined ")):
            raise bad_patch(
                "a combined diff of a merge",
                number,
                "make it against one parent: `git diff -m --first-parent`",
                "overlay.patch-unsupported",
            )
        if line.startswith(b"*** ") and self.head(1).startswith(b"--- ") and self.head(2).startswith(b"*****"):
            raise bad_patch("a context diff", number, "make a unified one: `diff -u`", "overlay.patch-unsupported")
        if _ONLY_IN.match(line):
            raise bad_patch(
                f"{clean(shown(line), 200)}: the text of that file is not in the diff",
                number,
                "make the diff with `diff -ruN`",
                "overlay.patch-unsupported",
            )
        if line == b"GIT binary patch" or (line.startswith(b"Binary files ") and line.endswith(b" differ")):
            self.refuse_binary(line)
        if line.startswith(b"@@ -"):
            raise bad_patch("a hunk without a file above it", number, code="overlay.patch-bad-header")
        if line.startswith(b"--- ") and self.head(1).startswith(b"@@ -"):
            raise bad_patch("a file header without its `+++` line", number, code="overlay.patch-bad-header")

    def refuse_binary(self, line: bytes) -> None:
        raise bad_patch(
            f"a binary change ({clean(shown(line), 200)})",
            self.at + 1,
            "import the file itself: `imagebuild overlay import NAME --from-tree DIR`",
            "overlay.patch-binary",
        )

    def git_section(self) -> _Section:
        section = _Section(self.at + 1, git=True, git_names=self.head()[len(b"diff --git ") :])
        self.at += 1
        while self.at < len(self.lines):
            line = self.head()
            if line == b"GIT binary patch" or (line.startswith(b"Binary files ") and line.endswith(b" differ")):
                self.refuse_binary(line)
            if not line.startswith(_EXTENDED):
                break
            self.extended(section, line)
            self.at += 1
        if self.head().startswith(b"--- ") and self.head(1).startswith(b"+++ "):
            self.names_and_hunks(section)
        return section

    def extended(self, section: _Section, line: bytes) -> None:
        number = self.at + 1
        if line.startswith(b"index "):
            found = _INDEX.match(line)
            if found is None:
                raise bad_patch(f"cannot read {clean(shown(line), 200)!r}", number, code="overlay.patch-bad-header")
            section.old_id, section.new_id = found[1].decode(), found[2].decode()
            section.index_mode = int(found[3], 8) if found[3] else None
        elif line.startswith((b"old mode ", b"deleted file mode ")):
            section.old_mode = self.mode(line)
            section.deleted = section.deleted or line.startswith(b"deleted")
        elif line.startswith((b"new mode ", b"new file mode ")):
            section.new_mode = self.mode(line)
            section.created = section.created or line.startswith(b"new file")
        elif line.startswith((b"rename from ", b"copy from ")):
            section.moved_from = read_name(line.split(b" from ", 1)[1], number)
        elif line.startswith((b"rename to ", b"copy to ")):
            section.moved_to = read_name(line.split(b" to ", 1)[1], number)
            section.copied = line.startswith(b"copy")

    def mode(self, line: bytes) -> int:
        word = line.rpartition(b" ")[2]
        if not _MODE.match(word):
            raise bad_patch(f"cannot read {clean(shown(line), 200)!r}", self.at + 1, code="overlay.patch-bad-header")
        return int(word, 8)

    def names_and_hunks(self, section: _Section) -> None:
        section.names = (self.head()[4:], self.head(1)[4:])
        self.at += 2
        if not self.head().startswith(b"@@ "):
            raise bad_patch(
                f"a file header without hunks ({clean(shown(section.names[1]), 200)})",
                self.at - 1,
                code="overlay.patch-bad-header",
            )
        while self.head().startswith(b"@@ "):
            section.hunks.append(self.hunk())
        if self.head().startswith(b"@@"):
            raise bad_patch(f"cannot read {clean(shown(self.head()), 200)!r}", self.at + 1)

    def hunk(self) -> Hunk:
        number = self.at + 1
        found = _HUNK.match(self.head())
        if found is None:
            raise bad_patch(f"cannot read {clean(shown(self.head()), 200)!r}", number)
        old_start, new_start = int(found[1]), int(found[3])
        old_count = 1 if found[2] is None else int(found[2])
        new_count = 1 if found[4] is None else int(found[4])
        self.at += 1
        lines: list[bytes] = []
        old_left, new_left = old_count, new_count
        every = self.lines
        while old_left > 0 or new_left > 0:
            if self.at >= len(every):
                break
            text = every[self.at]
            tag = text[:1]
            if tag == b"-":
                old_left -= 1
            elif tag == b"+":
                new_left -= 1
            elif tag == b" " or text in (b"", b"\r"):
                # Mailers and editors strip the space of an empty context line.
                text = text if tag == b" " else b" " + text
                old_left -= 1
                new_left -= 1
            elif tag == b"\\" and lines:
                self.open_end(lines)
                continue
            else:
                break
            lines.append(text + b"\n")
            self.at += 1
        if old_left or new_left:
            raise bad_patch(
                f"the hunk's header promises {old_count} old and {new_count} new lines, "
                f"{max(old_left, 0)} old and {max(new_left, 0)} new are missing or too many",
                number,
                "the patch was cut or edited by hand; make it again",
            )
        if self.at < len(every) and every[self.at].startswith(b"\\ "):
            self.open_end(lines)
        self.refuse_surplus(number)
        return Hunk(old_start, old_count, new_start, new_count, tuple(lines), found[5], number)

    def open_end(self, lines: list[bytes]) -> None:
        """`\\ No newline at end of file`, in whatever language: the line above has no LF."""
        if not lines or not lines[-1].endswith(b"\n") or not self.lines[self.at].startswith(b"\\ "):
            raise bad_patch("a '\\' line that belongs to no line", self.at + 1)
        lines[-1] = lines[-1][:-1]
        self.at += 1

    def refuse_surplus(self, number: int) -> None:
        """A line right below a hunk that looks like a part of it: the header's counts are too small."""
        if self.at >= len(self.lines):
            return
        line = self.lines[self.at]
        if not line.startswith((b" ", b"+", b"-", b"\\")):
            return
        if line.rstrip() == b"--" or (line.startswith(b"--- ") and self.head(1).startswith(b"+++ ")):
            return
        raise bad_patch(
            f"more hunk lines than the header in line {number} promises",
            self.at + 1,
            "the patch was edited by hand; make it again",
        )


def _file_patch(section: _Section) -> FilePatch:
    number = section.line
    hunks = tuple(section.hunks)
    old: str | None
    new: str | None
    created, deleted, maybe = section.created, section.deleted, False
    if section.moved_from is not None or section.moved_to is not None:
        if section.moved_from is None or section.moved_to is None:
            raise bad_patch("half a rename", number, code="overlay.patch-bad-header")
        old, new = section.moved_from, section.moved_to
    elif section.names is not None:
        names = tuple(read_name(raw, number) for raw in section.names)
        empty = tuple(name == "/dev/null" for name in names)
        if all(empty):
            raise bad_patch("/dev/null on both sides", number, code="overlay.patch-bad-header")
        created, deleted = created or empty[0], deleted or empty[1]
        if any(empty):
            path = _lone_name(section, names[0] if empty[1] else names[1])
        else:
            path = same_file(names[0], names[1], number)
            if not section.git and len(hunks) == 1:
                created = (hunks[0].old_start, hunks[0].old_count) == (0, 0) and is_epoch(section.names[0])
                deleted = (hunks[0].new_start, hunks[0].new_count) == (0, 0) and is_epoch(section.names[1])
                maybe = not created and (hunks[0].old_start, hunks[0].old_count) == (0, 0)
        old = new = path
    else:
        old, new = git_names(section.git_names, number)
        old = new = same_file(old, new, number)
        if not created and not deleted and (section.old_mode is None or section.new_mode is None):
            raise bad_patch(
                f"{clean(new, 200)}: neither hunks nor a mode change", number, code="overlay.patch-bad-header"
            )
    if created and deleted:
        raise bad_patch("both new and deleted", number, code="overlay.patch-bad-header")
    return FilePatch(
        None if created else old,
        None if deleted else new,
        hunks,
        section.old_mode,
        section.new_mode,
        section.old_id,
        section.new_id,
        section.index_mode,
        section.copied,
        maybe,
        number,
    )


def _lone_name(section: _Section, name: str) -> str:
    """The path where the other side is /dev/null; the `diff --git` line tells whether there is a prefix at all."""
    if section.git:
        old, new = git_names(section.git_names, section.line)
        return name if old == new else (tail(name) or name)
    return unprefixed(name)
