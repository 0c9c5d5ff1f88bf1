"""Unified diffs as values, and the two texts that we write of them.

A patch is read by `patch_parse`, applied by `patch_apply`, made from two files by `patch_make`.  Everything is bytes: a
line ends in LF and nothing else, and a CR before it belongs to the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError

REGULAR = 0o100644
EXECUTABLE = 0o100755


def bad_patch(message: str, line: int = 0, hint: str | None = None, code: str = "overlay.patch-bad-hunk") -> InputError:
    """The error for a patch text that breaks its own rules; `line` counts the patch's lines from 1 (0: unknown)."""
    where = f"line {line} of the patch: " if line else ""
    return InputError(code, f"{where}{message}", hint=hint, details={"line": line} if line else None)


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk: `@@ -old_start,old_count +new_start,new_count @@section` and its lines.

    Starts count lines from 1; where a count is 0 the start is the line *after which* the text stands.  Each of `lines`
    is a tag (space, `-`, `+`) and the line's own bytes, which end in LF except where the file's last line has none.
    `line` is the header's place in the patch text (0 for a hunk that we made).
    Validates that the counts are those of the lines; raises InputError `overlay.patch-bad-hunk`.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[bytes, ...]
    section: bytes = b""
    line: int = 0

    def __post_init__(self) -> None:
        old = new = 0
        old_open = new_open = False
        for text in self.lines:
            tag = text[:1]
            if tag not in (b" ", b"-", b"+") or b"\n" in text[1:-1]:
                raise bad_patch("a hunk line begins with a space, '-' or '+' and is one line", self.line)
            if (old_open and tag != b"+") or (new_open and tag != b"-"):
                raise bad_patch("a line without a newline is not the last of its side", self.line)
            ends = text.endswith(b"\n")
            if tag != b"+":
                old += 1
                old_open = not ends
            if tag != b"-":
                new += 1
                new_open = not ends
        if (old, new) != (self.old_count, self.new_count):
            raise bad_patch(
                f"the header promises {self.old_count} old and {self.new_count} new lines, "
                f"the hunk has {old} and {new}",
                self.line,
                "the patch was cut or edited by hand; make it again",
            )
        if (self.old_count and self.old_start < 1) or (self.new_count and self.new_start < 1):
            raise bad_patch("line numbers begin at 1", self.line)
        if old == new == 0:
            raise bad_patch("a hunk without lines", self.line)

    @property
    def old(self) -> list[bytes]:
        """The lines that must be found."""
        return [text[1:] for text in self.lines if text[:1] != b"+"]

    @property
    def new(self) -> list[bytes]:
        """The lines that take their place."""
        return [text[1:] for text in self.lines if text[:1] != b"-"]

    @property
    def position(self) -> int:
        """Index, from 0, of the first old line in the old file."""
        return self.old_start - 1 if self.old_count else self.old_start

    @property
    def new_position(self) -> int:
        """Index, from 0, of the first new line in the new file."""
        return self.new_start - 1 if self.new_count else self.new_start

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        swap = {b"+": b"-", b"-": b"+", b" ": b" "}
        return Hunk(
            self.new_start,
            self.new_count,
            self.old_start,
            self.old_count,
            tuple(swap[text[:1]] + text[1:] for text in self.lines),
            self.section,
            self.line,
        )

    def moved(self, position: int, new_position: int) -> Hunk:
        """The same lines at other positions (indices from 0)."""
        return replace(
            self,
            old_start=position + 1 if self.old_count else position,
            new_start=new_position + 1 if self.new_count else new_position,
        )


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What a patch says of one file.

    `old_path` and `new_path` have their `a/`, `b/` prefix off; None stands for /dev/null.  `old_mode` and `new_mode`
    are set by `old mode`, `new mode`, `new file mode`, `deleted file mode` lines only; `index_mode`, the mode in an
    `index` line, is a note.  `old_id` and `new_id` are the blob ids of the `index` line, perhaps abbreviated.
    `copied` tells a copy from a rename where the two paths differ.  `maybe_created` and `emptied` mark plain diffs whose
    only sign of creation is `-0,0`, or of removal `+0,0`: such a file may have been there, empty.
    """

    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...] = ()
    old_mode: int | None = None
    new_mode: int | None = None
    old_id: str | None = None
    new_id: str | None = None
    index_mode: int | None = None
    copied: bool = False
    maybe_created: bool = False
    line: int = 0

    def __post_init__(self) -> None:
        if self.old_path is None and self.new_path is None:
            raise bad_patch("a file that is neither before nor after", self.line, code="overlay.patch-bad-header")
        for mode in (self.old_mode, self.new_mode, self.index_mode):
            if mode is not None and mode not in (REGULAR, EXECUTABLE):
                raise bad_patch(
                    f"{self.path}: mode {mode:o} is no regular file's",
                    self.line,
                    "write a symbolic link as a `symlink` change; submodules cannot be patched",
                    "overlay.patch-unsupported",
                )
        if self.created and any(hunk.old_count for hunk in self.hunks):
            raise bad_patch(f"{self.path}: a new file has no old lines", self.line)
        if self.deleted and any(hunk.new_count for hunk in self.hunks):
            raise bad_patch(f"{self.path}: a deleted file has no new lines", self.line)
        end = 0
        for number, hunk in enumerate(self.hunks, 1):
            if hunk.position < end:
                raise bad_patch(f"{self.path}: hunk {number} overlaps or comes before the one above it", hunk.line)
            end = hunk.position + hunk.old_count

    @property
    def path(self) -> str:
        """The path after the patch, or the one before where the file is deleted."""
        found = self.new_path if self.new_path is not None else self.old_path
        assert found is not None
        return found

    @property
    def created(self) -> bool:
        return self.old_path is None

    @property
    def deleted(self) -> bool:
        return self.new_path is None

    @property
    def moved(self) -> bool:
        """A rename or a copy."""
        return self.old_path is not None and self.new_path is not None and self.old_path != self.new_path


@dataclass(frozen=True, slots=True)
class Patch:
    """A whole patch text.  `header` is what stands before the first diff: a DEP-3 header, a mail, or nothing."""

    files: tuple[FilePatch, ...]
    header: bytes = b""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is read, written or removed, once, in order."""
        seen: dict[str, None] = {}
        for file in self.files:
            for path in (file.old_path, file.new_path):
                if path is not None:
                    seen[path] = None
        return tuple(seen)

    def mapped(self, mapping: Callable[[str], str]) -> Patch:
        """The same patch under other paths."""

        def one(path: str | None) -> str | None:
            return None if path is None else mapping(path)

        files = tuple(replace(f, old_path=one(f.old_path), new_path=one(f.new_path)) for f in self.files)
        return replace(self, files=files)


def _quoted(path: str, prefix: bytes) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    if not any(byte < 32 or byte in b'"\\\x7f' for byte in raw):
        return prefix + raw
    out = bytearray(b'"' + prefix)
    for byte in raw:
        if byte in b'"\\':
            out += b"\\" + bytes([byte])
        elif byte < 32 or byte == 0x7F:
            out += b"\\%03o" % byte
        else:
            out.append(byte)
    return bytes(out + b'"')


def _name_line(tag: bytes, path: str | None, prefix: bytes) -> bytes:
    if path is None:
        return tag + b" /dev/null\n"
    # A tab ends a name that holds a space, as git writes it, so that no reader takes the rest for a timestamp.
    return tag + b" " + _quoted(path, prefix) + (b"\t\n" if " " in path else b"\n")


def _range(start: int, count: int) -> bytes:
    return b"%d" % start if count == 1 else b"%d,%d" % (start, count)


def _hunk_lines(hunk: Hunk, sections: bool) -> Iterator[bytes]:
    section = hunk.section if sections else b""
    yield b"@@ -%b +%b @@%b\n" % (
        _range(hunk.old_start, hunk.old_count),
        _range(hunk.new_start, hunk.new_count),
        section,
    )
    for text in hunk.lines:
        yield text
        if not text.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"


def _file_lines(file: FilePatch, sections: bool) -> Iterator[bytes]:
    old, new = file.old_path or file.path, file.new_path or file.path
    yield b"diff --git %b %b\n" % (_quoted(old, b"a/"), _quoted(new, b"b/"))
    if file.created:
        yield b"new file mode %o\n" % (file.new_mode or REGULAR)
    elif file.deleted:
        yield b"deleted file mode %o\n" % (file.old_mode or REGULAR)
    elif file.old_mode != file.new_mode and file.old_mode and file.new_mode:
        yield b"old mode %o\nnew mode %o\n" % (file.old_mode, file.new_mode)
    if file.moved:
        word = b"copy" if file.copied else b"rename"
        yield b"%b from %b\n%b to %b\n" % (word, _quoted(old, b""), word, _quoted(new, b""))
    if file.hunks:
        yield _name_line(b"---", file.old_path, b"a/")
        yield _name_line(b"+++", file.new_path, b"b/")
    for hunk in file.hunks:
        yield from _hunk_lines(hunk, sections)


def format_patch(patch: Patch) -> bytes:
    """The text that we store: header, then git's form with `a/`, `b/` paths, no index lines, no timestamps.

    Blob ids are left out because the guards beside the patch say more; `git apply -p1` and `patch -p1` read it.
    """
    header = patch.header
    if header and not header.endswith(b"\n"):
        header += b"\n"
    return header + b"".join(line for file in patch.files for line in _file_lines(file, sections=True))


def normalise(patch: Patch) -> bytes:
    """The text whose digest names the change: as `format_patch`, without header and without hunk sections.

    Equal for the same diff however it was served: with index ids of any length, with timestamps, under other prefixes,
    with other function names behind `@@`, with a commentary above it.
    """
    return b"".join(line for file in patch.files for line in _file_lines(file, sections=False))


def patch_digest(patch: Patch) -> Digest:
    """The sha256 of the normalised text."""
    return Digest.of(normalise(patch))
