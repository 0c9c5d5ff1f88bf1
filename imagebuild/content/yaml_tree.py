"""From PyYAML's events to our tree.

Apart from `strict_yaml`, so that yaml is imported when a file is read, not before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from types import MappingProxyType
from typing import Any, Protocol

import yaml
from yaml import events
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from imagebuild.content import strict_yaml
from imagebuild.content.strict_yaml import ListNode, MapNode, Node, ScalarNode, fault_at, raise_faults
from imagebuild.errors import InputError

_VERSION = re.compile(r"%YAML +1\.2 *(?: #.*)?\r?\Z")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s*)+")
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))#")


class _Events(Protocol):
    def get_event(self) -> Any: ...


class PythonEvents(Reader, Scanner, Parser):
    """PyYAML's own scanner and parser, for machines without libyaml."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


def event_source(text: str) -> _Events:
    """libyaml's events where PyYAML was built with it."""
    if yaml.__with_libyaml__:
        from yaml._yaml import CParser

        source: _Events = CParser(text)
        return source
    return PythonEvents(text)


class _Open:
    """A mapping or list whose end was not seen yet."""

    __slots__ = ("anchor", "column", "count", "entries", "flow", "items", "key", "line")

    def __init__(self, event: Any, mapping: bool, count: int) -> None:
        self.line: int = event.start_mark.line + 1
        self.column: int = event.start_mark.column + 1
        self.anchor: str | None = event.anchor
        self.count = count
        self.flow = bool(event.flow_style)
        self.items: list[Node] = []
        self.entries: dict[str, tuple[ScalarNode, Node]] | None = {} if mapping else None
        self.key: ScalarNode | None = None


class _Composer:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.faults: list[InputError] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node | None, int]] = {}
        self.count = 0
        self.documents = 0
        self.root: Node | None = None
        self.spans: list[tuple[int, int, str | None]] = []
        self.begins: list[int] = []
        self.tabs = "\t" in text

    def fault(self, code: str, mark: Any, message: str, **more: str) -> None:
        self.faults.append(fault_at(code, self.file, mark.line + 1, mark.column + 1, message, **more))

    def compose(self, source: _Events) -> Node:
        whole = False
        try:
            self._events(source)
            whole = True
        except yaml.YAMLError as error:
            self._syntax(error)
        except (ValueError, OverflowError):
            # PyYAML's Python scanner hands an escape beyond U+10FFFF to chr() unchecked
            self.faults.append(
                fault_at("yaml.syntax", self.file, 1, 1, "an escape in double quotes names no Unicode character")
            )
        if self.tabs and whole:
            self._check_tabs()
        raise_faults(self.faults)
        if self.root is None:
            raise fault_at("yaml.empty", self.file, 1, 1, "the file holds no document")
        return self.root

    def _syntax(self, error: yaml.YAMLError) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        lines = self.text.split("\n")
        for number in (line, line - 1):
            written = lines[number - 1] if 0 < number <= len(lines) else ""
            blank = written[: len(written) - len(written.lstrip(" \t"))]
            if "\t" in blank or (number == line and written[column - 1 : column] == "\t"):
                at = blank.index("\t") + 1 if "\t" in blank else column
                self.faults.append(self._tab(number, at))
                return
        context = getattr(error, "context", None)
        if context == "while scanning a directive":
            self.faults.append(self._directive(line))
            return
        started = getattr(error, "context_mark", None)
        message = f"{context}, {problem}" if context else problem
        if context and started is not None and started.line + 1 != line:
            message = f"{context} that begins in line {started.line + 1}, {problem}"
        self.faults.append(fault_at("yaml.syntax", self.file, line, column, f"not valid YAML: {message}"))

    def _tab(self, line: int, column: int) -> InputError:
        return fault_at(
            "yaml.tab",
            self.file,
            line,
            column,
            "a tab stands outside quotes and block text",
            hint="indent and separate with spaces; a tab in a value goes into double quotes",
        )

    def _check_tabs(self) -> None:
        """Reports tabs that the two scanners, or two people, read differently: allowed are tabs in comments, inside
        quotes (not before the text of a continued line), and in the text of a block scalar."""
        self.begins = [begin for begin, _, _ in self.spans]
        start = 0
        for number, written in enumerate(self.text.split("\n"), 1):
            at = written.find("\t")
            if at >= 0 and len(self.faults) < strict_yaml.FAULT_LIMIT:
                lead = len(written) - len(written.lstrip(" \t"))
                comment = self._comment(start, written)
                while 0 <= at < comment:
                    end = self._tab_allowed(start, at, lead)
                    if end is None:
                        self.faults.append(self._tab(number, at + 1))
                        break
                    at = written.find("\t", end - start)
            start += len(written) + 1

    def _span(self, index: int) -> tuple[int, int, str | None] | None:
        """Begin, end and style of the scalar whose text holds the character at `index`."""
        place = bisect_right(self.begins, index) - 1
        if place < 0:
            return None
        begin, end, style = self.spans[place]
        return (begin, end, style) if index < end else None

    def _comment(self, start: int, written: str) -> int:
        """Where the comment of the line that begins at index `start` begins; the line's length where it has none."""
        for found in _COMMENT.finditer(written):
            at = found.end() - 1
            span = self._span(start + at)
            if span is None or (span[2] in ("|", ">") and span[0] >= start):
                return at
        return len(written)

    def _tab_allowed(self, start: int, at: int, lead: int) -> int | None:
        """Where the scalar ends in which the tab at column `at` may stand; None where it may not.  The line begins at index
        `start` with `lead` blank characters."""
        span = self._span(start + at)
        if span is None:
            return None
        begin, end, style = span
        if style in ("'", '"'):
            return end if begin >= start or at >= lead else None
        return end if style in ("|", ">") and begin < start else None

    def _events(self, source: _Events) -> None:
        while True:
            event = source.get_event()
            if event is None or isinstance(event, events.StreamEndEvent):
                return
            if isinstance(event, events.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    self.fault("yaml.several-documents", event.start_mark, "a second document begins here")
                    return
                self._directives(event)
            elif isinstance(event, events.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, events.AliasEvent):
                self._alias(event)
            elif isinstance(event, events.CollectionStartEvent):
                if len(self.stack) >= strict_yaml.DEPTH_LIMIT:
                    self.fault(
                        "yaml.too-deep", event.start_mark, f"nested deeper than {strict_yaml.DEPTH_LIMIT} levels"
                    )
                    return
                self.count += 1
                self._tag(event)
                if event.anchor is not None:
                    self._anchor(event.anchor, event.start_mark)
                self.stack.append(_Open(event, isinstance(event, events.MappingStartEvent), self.count))
            elif isinstance(event, events.CollectionEndEvent):
                self._close()
            if len(self.faults) > strict_yaml.FAULT_LIMIT:
                return
            if self.count > strict_yaml.NODE_LIMIT:
                self.fault(
                    "yaml.too-large", event.start_mark, f"more than {strict_yaml.NODE_LIMIT} values, aliases expanded"
                )
                return

    def _directives(self, event: Any) -> None:
        written = self.text[event.start_mark.index : event.end_mark.index]
        for offset, line in enumerate(written.split("\n")):
            if line.startswith("%") and not _VERSION.match(line):
                number = event.start_mark.line + 1 + offset
                self.faults.append(self._directive(number))

    def _directive(self, line: int) -> InputError:
        return fault_at(
            "yaml.directive",
            self.file,
            line,
            1,
            "directives are not read here, but for %YAML 1.2",
            hint="remove the line",
        )

    def _tag(self, event: Any) -> None:
        if event.tag is not None:
            self.fault(
                "yaml.tag",
                event.start_mark,
                f"the tag {event.tag!r} is not read here",
                hint="remove it; quotes make a value text",
            )

    def _anchor(self, name: str, mark: Any) -> None:
        if name in self.anchors:
            self.fault("yaml.alias", mark, f"the anchor &{name} is set twice")
        self.anchors[name] = (None, 0)

    def _scalar(self, event: Any) -> None:
        mark = event.start_mark
        self.count += 1
        self._tag(event)
        plain = event.style in (None, "")
        text: str = event.value
        if self.tabs:
            properties = _PROPERTIES.match(self.text, mark.index)
            begin = properties.end() if properties is not None and event.anchor is not None else mark.index
            self.spans.append((begin, event.end_mark.index, event.style or None))
            if event.style in ("|", ">") and text.lstrip("\n").startswith("\t"):
                # is the tab indentation or text?  libyaml refuses to say
                self.fault("yaml.tab", mark, "a tab begins the text of a block", hint="put the text into double quotes")
        value: str | int | float | bool | None = text
        if plain:
            self._flow_text(event, text)
            try:
                value = strict_yaml.resolve_plain(text)
            except ValueError:
                self.fault(
                    "yaml.bad-number",
                    mark,
                    f"{text[:40]!r} does not fit a 64-bit number",
                    hint="put it in quotes if it is text",
                )
        elif any("\ud800" <= char <= "\udfff" for char in text):
            self.fault("yaml.bad-character", mark, "an escape names half of a surrogate pair, which is no character")
        node = ScalarNode(value, text, plain, self.file, mark.line + 1, mark.column + 1)
        if event.anchor is not None:
            self._anchor(event.anchor, mark)
            self.anchors[event.anchor] = (node, 1)
        self._attach(node)

    def _flow_text(self, event: Any, text: str) -> None:
        """Refuses the two forms of plain text inside brackets that one of the scanners takes and the other does not."""
        if not self.stack or not self.stack[-1].flow:
            return
        end = event.end_mark.index
        after = self.text[end : end + 2]
        if "?" in text or (after[:1] == ":" and after[1:] in tuple(",[]{}")):
            what = "? in a value" if "?" in text else "a colon right before a bracket or comma"
            self.fault("yaml.syntax", event.start_mark, f"{what}, inside brackets", hint="put the value into quotes")

    def _alias(self, event: Any) -> None:
        mark = event.start_mark
        node, size = self.anchors.get(event.anchor, (None, 0))
        if node is None:
            if event.anchor in self.anchors:
                self.fault("yaml.alias", mark, f"the alias *{event.anchor} stands inside what it names")
            else:
                self.fault("yaml.alias", mark, f"the alias *{event.anchor} names nothing above it")
            node = ScalarNode(None, "", True, self.file, mark.line + 1, mark.column + 1)
            size = 1
        self.count += size
        self._attach(node)

    def _close(self) -> None:
        done = self.stack.pop()
        node: Node
        if done.entries is None:
            node = ListNode(tuple(done.items), self.file, done.line, done.column)
        else:
            node = MapNode(MappingProxyType(done.entries), self.file, done.line, done.column)
        if done.anchor is not None:
            self.anchors[done.anchor] = (node, self.count - done.count + 1)
        self._attach(node)

    def _attach(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if parent.entries is None:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = self._key(node)
        else:
            key, parent.key = parent.key, None
            earlier = parent.entries.get(key.text)
            if earlier is not None:
                self.faults.append(
                    fault_at(
                        "yaml.duplicate-key",
                        self.file,
                        key.line,
                        key.column,
                        f"the key {key.text!r} is written twice",
                        key=key.text,
                        hint=f"it stands in line {earlier[0].line} too; keep one",
                    )
                )
                return
            parent.entries[key.text] = (key, node)

    def _key(self, node: Node) -> ScalarNode:
        if isinstance(node, ScalarNode) and isinstance(node.value, str):
            if node.plain and node.text == "<<":
                self.faults.append(
                    fault_at(
                        "yaml.merge-key",
                        self.file,
                        node.line,
                        node.column,
                        "merge keys are not read here",
                        hint="write the keys out, or use an alias for a whole value",
                    )
                )
            return node
        shown = node.text if isinstance(node, ScalarNode) else "a mapping or list"
        self.faults.append(
            fault_at(
                "yaml.key-not-text",
                self.file,
                node.line,
                node.column,
                f"the key {shown[:40]!r} is not text",
                hint=f'write "{shown[:40]}"' if isinstance(node, ScalarNode) else "keys are text",
            )
        )
        return ScalarNode(shown, shown, False, self.file, node.line, node.column)


def compose(text: str, file: str, source: _Events | None = None) -> Node:
    """The tree of `text`; `source` another maker of events than the fastest one."""
    return _Composer(text, file).compose(event_source(text) if source is None else source)
