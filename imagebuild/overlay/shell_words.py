"""Commands of a shell script, read and never run (POSIX, Shell Command Language; of bash what patch scripts use).

The reader knows quoting, comments, here-documents, substitutions and variables whose values stand in the script; it
follows no condition and no loop, so that what is found is what any run could do.
"""

from __future__ import annotations

import re

from imagebuild.errors import InputError, clean
from imagebuild.overlay.shell_commands import UNKNOWN, Command, HereDocument, Redirect

DEPTH_LIMIT = 20
_SEPARATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "|", "&", "\n", "(", ")")
_REDIRECT = re.compile(r"(\d*|&)(<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)\Z", re.DOTALL)
_RESERVED = frozenset(
    ("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "time", "function", "esac")
)


def read_script(text: str, where: str) -> list[Command]:
    """The commands of a script in the order of their text.  Raises InputError `overlay.script-unreadable` with the
    line."""
    return _Reader(text.replace("\r\n", "\n"), where, 1, {}, 0).read()


class _Reader:
    def __init__(self, text: str, where: str, line: int, variables: dict[str, str], depth: int) -> None:
        self.text = text
        self.where = where
        self.first = line
        self.at = 0
        self.variables = variables
        self.depth = depth
        self.waiting: list[tuple[HereDocument, str, bool]] = []
        if depth > DEPTH_LIMIT:
            raise self.fault("substitutions are nested too deeply")

    @property
    def line(self) -> int:
        return self.first + self.text.count("\n", 0, self.at)

    def fault(self, why: str) -> InputError:
        return InputError(
            "overlay.script-unreadable",
            f"{self.where}:{self.line}: {why}",
            hint="import the diffs of the script one by one with --from-diff",
            details={"line": self.line},
        )

    def read(self) -> list[Command]:
        out: list[Command] = []
        pattern = False
        cases = 0
        before: Command | None = None
        while self.at < len(self.text):
            command = self.command()
            command.source, before = before, None
            words = command.words
            if pattern:
                # a pattern of `case` is no command; the parenthesis behind it ends it
                pattern = self.separator() not in (")",)
                if words[:1] != ["esac"]:
                    continue
                pattern = False
            if words[:1] == ["case"] and "in" in words:
                cases += 1
                pattern = True
                command.words = []
            elif words[:1] == ["esac"]:
                cases = max(0, cases - 1)
            defined = _PARENTHESES.match(self.text, self.at) if len(words) == 1 else None
            if defined is not None:
                self.at = defined.end()
                command.function, command.words = words[0], []
            self._plain(command)
            if command.function or command.words or command.redirects or command.inner:
                out.append(command)
            if not pattern:
                end = self.separator()
                if end in (";;", ";&", ";;&") and cases:
                    pattern = True
                elif end in ("|", "|&"):
                    before = command
        return out

    def _plain(self, command: Command) -> None:
        """Takes reserved words off the front, and the head of a loop, which runs nothing."""
        words = command.words
        while words and words[0] in _RESERVED:
            if words[0] == "function" and len(words) > 1:
                command.function = words[1].removesuffix("()")
                del words[:2]
                continue
            del words[0]
        if words[:1] in (["for"], ["select"]):
            for name in words[1:2]:
                self.variables[name] = UNKNOWN
            words.clear()
        declared = words[:1] in (["export"], ["local"], ["readonly"], ["declare"], ["typeset"])
        rest = words[1:] if declared else words
        for word in rest:
            match = _ASSIGNED.match(word)
            if match is None:
                if not declared:
                    break
                continue
            name, more, value = match.groups()
            known = self.variables.get(name, UNKNOWN) if more else ""
            # a second value in another branch makes the variable unknown
            again = name in self.variables and self.variables[name] != value and not more
            self.variables[name] = UNKNOWN if again else known + value
        if declared:
            words.clear()
        while words and _ASSIGNED.match(words[0]):
            del words[0]

    def separator(self) -> str:
        """Passes one separator, and reads the here-documents that begin behind a line end."""
        self.blanks()
        for mark in _SEPARATORS:
            if self.text.startswith(mark, self.at):
                self.at += len(mark)
                if mark == "\n":
                    self.documents()
                return mark
        return ""

    def blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def documents(self) -> None:
        for document, delimiter, tabs in self.waiting:
            lines = []
            document.line = self.line
            while True:
                if self.at >= len(self.text):
                    raise self.fault(f"a here-document has no end ({clean(delimiter, 60)})")
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(len(self.text), end + 1)
                line = line.lstrip("\t") if tabs else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            document.text = "".join(lines)
        self.waiting.clear()

    def command(self) -> Command:
        self.blanks()
        while self.text.startswith("\n", self.at):
            self.at += 1
            self.documents()
            self.blanks()
        command = Command(self.line)
        if self.text.startswith("((", self.at):
            self.balanced("(", ")")
        while self.at < len(self.text):
            self.blanks()
            if self.at >= len(self.text):
                break
            match = _REDIRECT.match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                self.redirect(command, match[1], match[2])
                continue
            if any(self.text.startswith(mark, self.at) for mark in _SEPARATORS):
                break
            if set(command.words) <= _RESERVED and self.text.startswith("[[", self.at):
                self.condition(command)
                continue
            array = _NAME.match(self.text, self.at)
            if array is not None and self.text.startswith("=(", array.end()):
                self.array(command, array)
                continue
            command.words.append(self.word(command))
        return command

    def condition(self, command: Command) -> None:
        """`[[ … ]]`, in which `&&`, `<` and parentheses have another meaning."""
        command.words.append("[[")
        self.at += 2
        while not re.match(r"\s\]\](?=[\s;&|)]|\Z)", self.text[self.at : self.at + 4]):
            if self.at >= len(self.text):
                raise self.fault("[[ has no end")
            char = self.text[self.at]
            if char in "'\"$`":
                self.word(command)
            else:
                self.at += 2 if char == "\\" else 1
        self.at += 3

    def array(self, command: Command, name: re.Match[str]) -> None:
        self.at = name.end() + 2
        while True:
            self.blanks()
            while self.text.startswith("\n", self.at):
                self.at += 1
                self.blanks()
            if self.at >= len(self.text):
                raise self.fault("an array has no end")
            if self.text[self.at] == ")":
                self.at += 1
                break
            self.word(command)
        self.variables[name[0]] = UNKNOWN

    def redirect(self, command: Command, stream: str, operator: str) -> None:
        self.blanks()
        start = self.at
        target = self.word(command)
        if operator not in ("<<", "<<-"):
            command.redirects.append(Redirect(operator, target, stream=stream))
            return
        raw = self.text[start : self.at]
        literal = any(char in raw for char in "'\"\\")
        delimiter = re.sub(r"['\"\\]", "", raw)
        document = HereDocument(self.line, "", literal)
        self.waiting.append((document, delimiter, operator == "<<-"))
        command.redirects.append(Redirect("<<", delimiter, document))

    def word(self, command: Command) -> str:
        out: list[str] = []
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;|&()<>":
                if char in "<>" and self.at > start:
                    break
                if not (char in "()" and self.at > start and self.text[self.at - 1] in "?*+@!"):
                    break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.fault("a quote has no end")
                out.append(self.text[self.at + 1 : end])
                self.at = end + 1
            elif char == '"':
                self.at += 1
                out.append(self.double(command))
            elif char == "\\":
                if self.text.startswith("\\\n", self.at):
                    self.at += 2
                    continue
                out.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "$" or char == "`":
                out.append(self.expansion(command))
            else:
                out.append(char)
                self.at += 1
        if self.at == start:
            if self.text[start] in "<>" and self.text[start + 1 : start + 2] == "(":
                self.at += 1
                out.append(self.parenthesised(command))
            else:
                raise self.fault(f"{self.text[start]!r} stands where a word belongs")
        return "".join(out)

    def double(self, command: Command) -> str:
        out: list[str] = []
        while True:
            if self.at >= len(self.text):
                raise self.fault("a quote has no end")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(out)
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                out.append("" if following == "\n" else following if following in '$`"\\' else char + following)
                self.at += 2
            elif char in "$`":
                out.append(self.expansion(command))
            else:
                out.append(char)
                self.at += 1

    def expansion(self, command: Command) -> str:
        """What `$…` or a back-quoted command stands for."""
        text = self.text
        if text[self.at] == "`":
            end = self.at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                raise self.fault("a back-quote has no end")
            self.nested(command, text[self.at + 1 : end])
            self.at = end + 1
            return UNKNOWN
        self.at += 1
        if text.startswith("((", self.at):
            self.balanced("(", ")")
            return UNKNOWN
        if text.startswith("(", self.at):
            return self.parenthesised(command)
        if text.startswith("{", self.at):
            inside = self.balanced("{", "}")
            name = re.match(r"([A-Za-z_][A-Za-z0-9_]*)(?::?-(.*))?\Z", inside, re.DOTALL)
            if name is None:
                return UNKNOWN
            default = name[2]
            if name[1] in self.variables:
                return self.variables[name[1]]
            plain = default is not None and not any(char in default for char in "$`\\'\"")
            return default if plain and default is not None else UNKNOWN
        if text.startswith("'", self.at):
            end = text.find("'", self.at + 1)
            self.at = len(text) if end < 0 else end + 1
            return UNKNOWN
        found = _NAME.match(text, self.at)
        if found is not None:
            self.at = found.end()
            return self.variables.get(found[0], UNKNOWN)
        if self.at < len(text) and text[self.at] in "@*#?$!-0123456789":
            self.at += 1
            return UNKNOWN
        return "$"

    def parenthesised(self, command: Command) -> str:
        line = self.line
        inside = self.balanced("(", ")")
        self.nested(command, inside, line)
        return UNKNOWN

    def balanced(self, left: str, right: str) -> str:
        """The text up to the closing bracket; quotes in it are passed over."""
        start = self.at + 1
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.at += 1
            elif char == "'" and left == "(":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.fault("a quote has no end")
                self.at = end
            elif char == left:
                depth += 1
            elif char == right:
                depth -= 1
                if depth == 0:
                    self.at += 1
                    return self.text[start : self.at - 1]
            self.at += 1
        raise self.fault(f"{left!r} has no end")

    def nested(self, command: Command, text: str, line: int | None = None) -> None:
        reader = _Reader(text, self.where, self.line if line is None else line, self.variables, self.depth + 1)
        command.inner += reader.read()
