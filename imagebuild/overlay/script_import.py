"""Turning a shell script that patches a container into what an import takes (cli.md, `overlay import --from-script`).

Taken over: unified diffs that `patch` and `git apply` read from here-documents, and whole files that `cat` and `tee`
write from them.  Everything else that could change a file is refused with its line and what to write instead, all at
once: half of a script would be another change than the one that was measured.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors, clean
from imagebuild.oci.platform import Platform
from imagebuild.overlay.import_paths import WantedPath, map_paths
from imagebuild.overlay.importer import ImportedOverlay, import_diff
from imagebuild.overlay.patch_make import is_text, make_diff
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.script_rules import HARMLESS, advice_for, only_looks
from imagebuild.overlay.series_tree import Base
from imagebuild.overlay.shell_commands import UNKNOWN, Command, HereDocument, Redirect, walk
from imagebuild.overlay.shell_words import read_script

SCRATCH = tuple(f"/{name}/" for name in ("tmp", "var/tmp", "dev/shm"))
"""Folders whose files are no part of an image."""
_FUZZ = (
    "-F",
    "--fuzz",
    "-l",
    "--ignore-whitespace",
    "--ignore-space-change",
    "-C",
    "--3way",
    "-3",
    "--unidiff-zero",
    "--recount",
)
_DRY = ("--dry-run", "--check", "-C0", "--stat", "--numstat", "--summary")
_TAKES_VALUE = (
    "-d",
    "--directory",
    "-i",
    "--input",
    "-F",
    "--fuzz",
    "-p",
    "--strip",
    "-o",
    "--output",
    "-r",
    "--reject-file",
    "-C",
)


@dataclass(frozen=True, slots=True)
class ScriptDiff:
    """A unified diff of the script, with the line where its text begins and the globs that the command leaves out."""

    line: int
    text: str = field(repr=False)
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A whole file that the script writes; `path` as far as the script says it, without leading `/`."""

    line: int
    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReadScript:
    """What a script changes, in its order, and remarks for people."""

    steps: tuple[ScriptDiff | ScriptFile, ...]
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The paths that the base is asked for."""
        out: list[str] = []
        for step in self.steps:
            if isinstance(step, ScriptFile):
                out.append(step.path)
            else:
                out += parse_patch(_raw(step.text)).paths
        return tuple(dict.fromkeys(out))


def parse_script(text: str, where: str) -> ReadScript:
    """Reads a script.  `where` names it in messages.

    Raises InputError `overlay.script-unreadable`, `overlay.nothing-to-import`; RefusedError `overlay.script-refused`
    for each command that changes files in another way (SeveralErrors where several).
    """
    reader = _Meaning(where)
    commands = read_script(text, where)
    reader.functions = {command.function for command in walk(commands) if command.function}
    for command in walk(commands):
        reader.command(command)
    reader.finish()
    if reader.errors:
        raise reader.errors[0] if len(reader.errors) == 1 else SeveralErrors(reader.errors)
    if not reader.steps:
        raise InputError(
            "overlay.nothing-to-import",
            f"{where} holds no diff and writes no file that an overlay could take over",
            hint="imagebuild overlay import NAME --target TARGET --from-diff FILE takes a diff itself",
        )
    return ReadScript(tuple(reader.steps), tuple(dict.fromkeys(reader.notes)))


class _Meaning:
    def __init__(self, where: str) -> None:
        self.where = where
        self.functions: set[str] = set()
        self.steps: list[ScriptDiff | ScriptFile] = []
        self.notes: list[str] = []
        self.errors: list[ImagebuildError] = []
        self.written: dict[str, list[tuple[int, str]]] = {}
        self.used: set[str] = set()
        self.taken: set[str] = set()

    def refuse(self, line: int, what: str, hint: str) -> None:
        self.errors.append(
            RefusedError(
                "overlay.script-refused",
                f"{self.where}:{line}: {what}",
                hint=hint,
                details={"line": line},
            )
        )

    def command(self, command: Command) -> None:
        words = command.words = _unwrapped(command.words)
        outputs = [item for item in command.redirects if item.operator in (">", ">>", ">|", "&>", "<>")]
        document = next((item.document for item in command.redirects if item.document is not None), None)
        name = words[0].rpartition("/")[2] if words else ""
        files = [item for item in outputs if not self.passes(item)]
        if name == "tee":
            files += [Redirect(">", word) for word in words[1:] if not word.startswith("-")]
        if name in ("cat", "tee") and document is not None and files:
            for target in files:
                self.writes(command, target, document, ">>" if target.operator == ">>" or "-a" in words else ">")
            return
        for target in files:
            if name != "tee":
                shown = _shown(target.target)
                self.refuse(
                    command.line,
                    f"`{name or '>'}` writes {shown}",
                    "store the file in the overlay and write a `file` change",
                )
        if not words:
            return
        if name == "patch" or (name == "git" and "apply" in words):
            self.applies(command, document)
        elif name in HARMLESS or name in self.functions or words[0] in self.functions:
            return
        elif name == "tee":
            if files:
                self.refuse(command.line, f"`tee` writes {_shown(files[0].target)}", advice_for("tee"))
        elif only_looks(words, None if document is None else document.text):
            if name.startswith("python"):
                self.notes.append(f"line {command.line}: the Python text is not run; it was taken for a check")
        elif name in ("rm", "touch", "cp", "mv", "chmod") and self.scratch(words):
            return
        elif UNKNOWN in words[0]:
            self.refuse(command.line, "which program runs here is only known when it runs", advice_for(""))
        else:
            self.refuse(
                command.line, f"`{clean(' '.join(map(_shown, words))[:80])}` may change files", advice_for(words[0])
            )

    def passes(self, target: Redirect) -> bool:
        """Whether a redirection writes no file of an image."""
        return target.target.startswith("/dev/") or target.target in ("", "-") or target.target.isdigit()

    def scratch(self, words: Sequence[str]) -> bool:
        """Whether every path that a command names is a scratch file of the script."""
        paths = [word for word in words[1:] if not word.startswith("-")]
        return bool(paths) and all(path.startswith(SCRATCH) or path.endswith((".rej", ".orig")) for path in paths)

    def writes(self, command: Command, target: Redirect, document: HereDocument, operator: str) -> None:
        if not self.literal(document):
            return
        text = document.text
        if operator == ">>":
            self.refuse(
                command.line,
                f"text is put at the end of {_shown(target.target)}",
                "write it as an `edit` change or a patch",
            )
            return
        self.written.setdefault(target.target, []).append((document.line, text))
        self.steps.append(ScriptFile(document.line, target.target, _raw(text)))

    def literal(self, document: HereDocument) -> bool:
        """Whether the text stands in the script as it is used; refuses one in which the shell would replace something."""
        text = document.text
        if document.literal:
            return True
        if any(char in text for char in "$`") or "\\\n" in text or "\\\\" in text:
            self.refuse(
                document.line,
                "the shell replaces variables in this text, and their values are only known when it runs",
                "put the delimiter in quotes (<<'EOF') where nothing is to be replaced",
            )
            return False
        return True

    def applies(self, command: Command, document: HereDocument | None) -> None:
        words = command.words
        options = [word for word in words[1:] if word.startswith("-")]
        if any(word in _DRY or word.startswith("--dry-run") for word in options):
            return
        if any(word in ("-R", "--reverse") for word in options):
            self.refuse(
                command.line, "a diff is taken back", "leave the change out, or import the diff the other way round"
            )
            return
        fuzz = sorted({word for word in options if word.startswith(_FUZZ)})
        if fuzz:
            self.notes.append(f"line {command.line}: {' '.join(fuzz)} is not honoured: patches apply with zero fuzz")
        excluded = tuple(word.partition("=")[2] for word in options if word.startswith("--exclude="))
        if document is None and command.source is not None and command.source.words[:1] == ["cat"]:
            document = next((item.document for item in command.source.redirects if item.document is not None), None)
        if document is not None:
            if self.literal(document):
                self.take(document.line, document.text, excluded)
            return
        for source in self.sources(command):
            if source in self.written:
                self.used.add(source)
                for line, text in self.written[source]:
                    self.take(line, text, excluded)
            else:
                self.refuse(
                    command.line,
                    f"the diff in {_shown(source)} does not stand in the script",
                    "import that diff: imagebuild overlay import NAME --target TARGET --from-diff FILE",
                )

    def sources(self, command: Command) -> list[str]:
        """The files that the diff is read from."""
        found = [item.target for item in command.redirects if item.operator == "<"]
        words = command.words[1:]
        git = command.words[0].rpartition("/")[2] == "git"
        plain: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            if word in ("-i", "--input") and at + 1 < len(words):
                found.append(words[at + 1])
            elif word.startswith("--input="):
                found.append(word.partition("=")[2])
            at += 2 if word in _TAKES_VALUE else 1
            if not word.startswith("-"):
                plain.append(word)
        if git:
            found += plain[plain.index("apply") + 1 :] if "apply" in plain else []
        return [source for source in found if source != "-"] or ["standard input"]

    def take(self, line: int, text: str, excluded: tuple[str, ...]) -> None:
        if text in self.taken:
            self.notes.append(
                f"line {line}: the diff is applied in more than one place of the script; it is taken once"
            )
            return
        self.taken.add(text)
        try:
            parse_patch(_raw(text))
        except ImagebuildError as error:
            self.refuse(
                line, f"the diff that begins here cannot be read: {error.message}", "mend the diff in the script"
            )
            return
        self.steps.append(ScriptDiff(line, text, excluded))

    def finish(self) -> None:
        """Leaves out the files that only held diffs; refuses those that lie outside every root."""
        kept: list[ScriptDiff | ScriptFile] = []
        for step in self.steps:
            if isinstance(step, ScriptFile):
                if step.path in self.used:
                    continue
                if step.path.startswith(SCRATCH):
                    self.refuse(
                        step.line, f"{step.path} is written and never applied", "leave it out, or import what it is for"
                    )
                    continue
                step = ScriptFile(step.line, _relative(step.path), step.data)
                if UNKNOWN in step.path or not step.path:
                    self.refuse(step.line, "which file is written is only known when it runs", advice_for("cp"))
                    continue
            kept.append(step)
        self.steps = kept
        if any(isinstance(step, ScriptDiff) for step in kept):
            self.notes.append("conditions of the script are not evaluated: every diff in it is taken")


def _unwrapped(words: list[str]) -> list[str]:
    """A command without the programs that only start it."""
    out = list(words)
    while out and out[0] in ("sudo", "exec", "env", "command", "nohup", "time", "nice", "builtin"):
        if out[0] == "command" and out[1:2] and out[1] in ("-v", "-V"):
            break
        del out[0]
        while out and (out[0].startswith("-") or "=" in out[0]):
            del out[0]
    return out


def _relative(path: str) -> str:
    """A path without what only a run would tell at its beginning: `$ROOT/vllm/envs.py` is `vllm/envs.py`."""
    head, mark, rest = path.partition(UNKNOWN)
    text = rest if mark and not head.strip("/") else path
    return posixpath.normpath(text.lstrip("/")) if text.strip("/") else ""


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(word: str) -> str:
    return clean(word.replace(UNKNOWN, "…"), 80)


def import_script(
    name: str,
    script: ReadScript,
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    *,
    folders: Collection[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    convert: Callable[..., ImportedOverlay] = import_diff,
) -> ImportedOverlay:
    """Makes an overlay of a script's diffs and files, in their order.  Parameters and errors are those of
    `import_diff`."""
    base = next(iter(bases.values()))
    parts: list[bytes] = []
    left_out: list[str] = []
    for step in script.steps:
        if isinstance(step, ScriptDiff):
            parts.append(_raw(step.text))
            left_out += step.excluded
        else:
            parts.append(_as_diff(step, base, roots, folders))
    made = convert(name, b"".join(parts), bases, roots, folders=folders, include=include, exclude=(*exclude, *left_out))
    return ImportedOverlay(
        made.name, made.text, made.files, made.changes, made.guards, made.reports, (*script.notes, *made.notes)
    )


def _as_diff(step: ScriptFile, base: Base, roots: Collection[str], folders: Collection[str]) -> bytes:
    """A whole file as a diff against what the base has there."""
    for new in (False, True):
        mapped = map_paths([WantedPath(step.path, new)], roots, folders, lambda path: base.read(path) is not None)
        target = mapped[step.path].target
        if target is None:
            # a path in the image's own file system: what follows a root's name counts
            parts = step.path.split("/")
            tails = ["/".join(parts[at:]) for at in range(len(parts) - 1) if parts[at] in roots]
            target = tails[-1] if new and tails else None
        if target is not None:
            before = base.read(target)
            data = None if before is None else before.data
            if data is not None and not (is_text(data) and is_text(step.data)):
                data = None
            return make_diff(target, data, step.data)
    raise RefusedError(
        "overlay.path-missing",
        f"the file that the script writes in line {step.line} lies in none of the target's roots: {step.path}",
        expected=", ".join(sorted(roots)),
        hint="declare the folder as a root in target.yaml: `roots: {NAME: {path: /…}}`",
        details={"line": step.line},
    )
