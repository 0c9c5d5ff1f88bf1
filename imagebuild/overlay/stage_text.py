"""`artifact:` of a stage, written into overlay.yaml in place."""

from __future__ import annotations

import re

from imagebuild.content.strict_yaml import ListNode, MapNode, Node, ScalarNode, parse_yaml, plain_value, quoted
from imagebuild.errors import InputError

_PLAIN = re.compile(r"[^\s,}#]+")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")


def set_artifact(text: str, number: int, reference: str) -> str:
    """`text` with the artifact of change `number` (from 0), a stage, being `reference`; every other byte stays.

    Raises InputError `overlay.cannot-rewrite` where that cannot be done in place, and what `parse_yaml` raises.
    """
    stage = _stage(text, number)
    wanted = plain_value(_top(text))
    wanted["changes"][number]["stage"]["artifact"] = reference
    lines = text.splitlines(keepends=True)
    if "artifact" in stage.entries:
        node = stage.entries["artifact"][1]
        assert isinstance(node, ScalarNode)
        line, at = lines[node.line - 1], node.column - 1
        old = _QUOTED.match(line, at) or _PLAIN.match(line, at)
        if old is None:
            raise _cannot("`artifact` does not stand on one line")
        lines[node.line - 1] = line[:at] + quoted(reference) + line[old.end() :]
    else:
        line, at = lines[stage.line - 1], stage.column - 1
        if line[at : at + 1] == "{":
            lines[stage.line - 1] = f"{line[: at + 1]}artifact: {quoted(reference)}, {line[at + 1 :].lstrip()}"
        else:
            first = next(iter(stage.entries.values()))[0]
            line, at = lines[first.line - 1], first.column - 1
            if line[:at].strip():
                raise _cannot("its first key does not begin its line")
            lines[first.line - 1] = f"{line[:at]}artifact: {quoted(reference)}\n{line}"
    out = "".join(lines)
    try:
        found = plain_value(_top(out))
    except InputError as error:
        raise _cannot(error.message) from error
    if found != wanted:
        raise _cannot("the result would say something else")
    return out


def _top(text: str) -> MapNode:
    node = parse_yaml(text.encode("utf-8"), "overlay.yaml")
    if not isinstance(node, MapNode):
        raise _cannot("it is no mapping")
    return node


def _stage(text: str, number: int) -> MapNode:
    changes: Node | None = _top(text).entries["changes"][1]
    item = changes.items[number] if isinstance(changes, ListNode) else None
    stage = item.entries["stage"][1] if isinstance(item, MapNode) and "stage" in item.entries else None
    if not isinstance(stage, MapNode) or not stage.entries:
        raise _cannot("the change is no stage")
    return stage


def _cannot(why: str) -> InputError:
    return InputError(
        "overlay.cannot-rewrite",
        f"`artifact` cannot be written into overlay.yaml in place: {why}",
        expected="the stage in block or flow form, `artifact` on one line",
        hint="write it by hand; the reference is shown above",
    )
