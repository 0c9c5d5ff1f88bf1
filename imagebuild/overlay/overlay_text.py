"""The text of overlay.yaml: written anew by an import, changed in place by lock and refresh.

People comment these files, so a rewrite touches the lines of one block and leaves every other byte alone; the result is
read back and compared before anybody gets to see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuild.content.strict_yaml import ListNode, MapNode, Node, parse_yaml, plain_value, quoted
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Change, DeleteChange, FileChange, Guard, PatchChange, WheelChange

Guards = Mapping[str, Guard | Mapping[Platform, Guard]]


def _guard_lines(guard: Guard, indent: str) -> list[str]:
    lines = []
    for key, value in guard.to_json().items():
        if isinstance(value, list):
            lines.append(f"{indent}{key}:")
            lines += [f"{indent}  - {quoted(item)}" for item in value]
        else:
            lines.append(f"{indent}{key}: {quoted(value)}")
    return lines


def format_guards(guards: Guards) -> str:
    """The `guards:` block, paths sorted, one fact a line so that a changed digest is one changed line."""
    if not guards:
        return "guards: {}\n"
    lines = ["guards:"]
    for path in sorted(guards, key=lambda path: path.encode()):
        guard = guards[path]
        lines.append(f"  {quoted(path)}:")
        if isinstance(guard, Guard):
            lines += _guard_lines(guard, "    ")
            continue
        for platform in sorted(guard):
            lines.append(f"    {quoted(str(platform))}:")
            lines += _guard_lines(guard[platform], "      ")
    return "\n".join(lines) + "\n"


def format_change(change: Change, indent: str = "  ") -> str:
    """One item of `changes:` (patch, file, delete or wheel), with its line end."""
    if isinstance(change, PatchChange):
        return f"{indent}- patch: {quoted(change.patch)}\n"
    if isinstance(change, FileChange):
        return f"{indent}- file: {quoted(change.file)}\n{indent}  to: {quoted(change.to)}\n"
    if isinstance(change, DeleteChange) and change.path is not None:
        return f"{indent}- delete: {{path: {quoted(change.path)}}}\n"
    if isinstance(change, WheelChange):
        return _wheel(change, indent)
    raise TypeError(f"no text for {type(change).__name__}")


def _wheel(change: WheelChange, indent: str) -> str:
    inner = indent + "    "
    lines = [f"{indent}- wheel:", f"{inner}name: {quoted(change.name)}", f"{inner}version: {quoted(change.version)}"]
    lines.append(f"{inner}sha256:")
    lines += [f"{inner}  {quoted(str(on))}: {quoted(str(change.sha256[on]))}" for on in sorted(change.sha256)]
    if change.url is not None:
        lines.append(f"{inner}url: {quoted(change.url)}")
    if change.without:
        lines.append(f"{inner}without: [{', '.join(quoted(name) for name in change.without)}]")
    return "\n".join(lines) + "\n"


def format_overlay(
    name: str, description: str, fields: Mapping[str, str], changes: Sequence[Change], guards: Guards
) -> str:
    """A whole overlay.yaml.  `fields` are further keys with their text as it is to stand there (`quoted`, flow maps)."""
    lines = ["schema: 1\n", f"name: {quoted(name)}\n", f"description: {quoted(description)}\n"]
    lines += [f"{key}: {value}\n" for key, value in fields.items()]
    lines.append("changes:\n")
    lines += [format_change(change) for change in changes]
    return "".join(lines) + format_guards(guards)


def rewrite_guards(text: str, guards: Guards) -> str:
    """`text` with its `guards:` block replaced, or added at the end; every other byte stays.

    Raises InputError `overlay.cannot-rewrite` where the file is not laid out in blocks, and what `parse_yaml` raises.
    """
    top = _top(text)
    lines = text.splitlines(keepends=True)
    block = format_guards(guards)
    if "guards" in top.entries:
        start, end = _block(top, "guards", lines)
        comment = lines[start].partition("#")
        if comment[1] and lines[start].startswith("guards:") and not lines[start][7:].partition("#")[0].strip():
            first, newline, rest = block.partition("\n")
            block = f"{first}  #{comment[2].rstrip()}{newline}{rest}"
        out = "".join(lines[:start]) + block + "".join(lines[end:])
    else:
        out = text + ("" if text.endswith("\n") else "\n") + block
    wanted = {**plain_value(top), "guards": plain_value(_top(format_guards(guards)))["guards"]}
    return _verified(out, wanted)


def append_change(text: str, change: Change) -> str:
    """`text` with one more item at the end of `changes:`.  Raises InputError `overlay.cannot-rewrite`."""
    top = _top(text)
    lines = text.splitlines(keepends=True)
    items = _changes(top)
    _, end = _block(top, "changes", lines)
    new = format_change(change, _indent(lines, items.items[0]))
    before = "".join(lines[:end])
    if not before.endswith("\n"):
        before += "\n"
    wanted = plain_value(top)
    wanted["changes"] = [*wanted["changes"], *plain_value(_top("changes:\n" + new))["changes"]]
    return _verified(before + new + "".join(lines[end:]), wanted)


def insert_change(text: str, number: int, change: Change) -> str:
    """`text` with one more item before item `number` (from 0) of `changes:`.  Raises InputError `overlay.cannot-rewrite`."""
    top = _top(text)
    lines = text.splitlines(keepends=True)
    item = _changes(top).items[number]
    new = format_change(change, _indent(lines, item))
    at = item.line - 1
    while at > 0 and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    wanted = plain_value(top)
    wanted["changes"] = [
        *wanted["changes"][:number],
        *plain_value(_top("changes:\n" + new))["changes"],
        *wanted["changes"][number:],
    ]
    return _verified("".join(lines[:at]) + new + "".join(lines[at:]), wanted)


def remove_change(text: str, number: int) -> str:
    """`text` without item `number` (from 0) of `changes:`, which must stand on lines of its own."""
    top = _top(text)
    lines = text.splitlines(keepends=True)
    items = _changes(top)
    _, block_end = _block(top, "changes", lines)
    start = items.items[number].line - 1
    _indent(lines, items.items[number])
    end = items.items[number + 1].line - 1 if number + 1 < len(items.items) else block_end
    while end > start + 1 and _is_remark(lines[end - 1]):
        end -= 1
    wanted = plain_value(top)
    wanted["changes"] = [item for at, item in enumerate(wanted["changes"]) if at != number]
    return _verified("".join(lines[:start] + lines[end:]), wanted)


def _is_remark(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _top(text: str) -> MapNode:
    node = parse_yaml(text.encode("utf-8"), "overlay.yaml")
    if not isinstance(node, MapNode):
        raise _cannot("it is no mapping")
    return node


def _changes(top: MapNode) -> ListNode:
    node: Node | None = top.entries["changes"][1] if "changes" in top.entries else None
    if not isinstance(node, ListNode) or not node.items:
        raise _cannot("`changes` is no list")
    return node


def _indent(lines: Sequence[str], item: Node) -> str:
    head = lines[item.line - 1][: item.column - 1]
    if head.strip() != "-":
        raise _cannot(f"the change in line {item.line} is not an item on lines of its own")
    return head[: head.index("-")]


def _block(top: MapNode, key: str, lines: Sequence[str]) -> tuple[int, int]:
    """The lines (from, to) of one key and its value; remarks at the margin behind it belong to what follows."""
    keys = [node for node, _ in top.entries.values()]
    if any(node.column != 1 for node in keys):
        raise _cannot("its keys do not begin at the margin")
    start = top.entries[key][0].line - 1
    end = min((node.line - 1 for node in keys if node.line - 1 > start), default=len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith(("#", "..."))):
        end -= 1
    return start, end


def _verified(text: str, wanted: object) -> str:
    try:
        found = plain_value(_top(text))
    except InputError as error:
        raise _cannot(f"the result would not be readable ({error.message})") from error
    if found != wanted:
        raise _cannot("the result would say something else")
    return text


def _cannot(why: str) -> InputError:
    return InputError(
        "overlay.cannot-rewrite",
        f"overlay.yaml cannot be changed in place: {why}",
        expected="one key a line at the margin, `changes` and `guards` in block form below theirs",
        hint="write the file in that form, or change it by hand",
    )
