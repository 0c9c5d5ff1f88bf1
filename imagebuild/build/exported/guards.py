"""The root that an exported script changes, and its three-way guards: as the base has it, as the image has it, neither."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from imagebuild.build.exported.plan import TARGET

CHUNK = 1 << 20


class Stop(Exception):
    """The end of a run: `code` is the exit code, the text what people read."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    """Everything but the answer goes to stderr."""
    sys.stderr.write(f"{TARGET}: {text}\n")


def chunks_of(path: str) -> Iterator[bytes]:
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(CHUNK)
            if not chunk:
                return
            yield chunk


def hashed(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()


class Root:
    """The file system that is changed: `/`, or an unpacked root.  No path in it leads through a symbolic link: the image's
    paths are resolved ones, so a link there says that this is another root."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)

    def at(self, path: str) -> str:
        return os.path.join(self.folder, path.lstrip("/"))

    def look(self, path: str) -> tuple[str, str]:
        """What is there: ("absent", ""), ("file", sha256), ("link", its text), ("folder", "") or ("other", what)."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts)):
            parent = self.at("/".join(parts[:depth]))
            try:
                mode = os.lstat(parent).st_mode
            except FileNotFoundError:
                return "absent", ""
            if not stat.S_ISDIR(mode):
                return "other", f"{parent} is no folder"
        full = self.at(path)
        try:
            mode = os.lstat(full).st_mode
        except FileNotFoundError:
            return "absent", ""
        if stat.S_ISLNK(mode):
            return "link", os.readlink(full)
        if stat.S_ISDIR(mode):
            return "folder", ""
        if not stat.S_ISREG(mode):
            return "other", "neither a file nor a folder nor a link"
        return "file", hashed(chunks_of(full))


def state(step: dict[str, Any], found: tuple[str, str]) -> str:
    """`before`, `after`, or in words what is there instead."""
    kind, text = found
    before = step.get("before")
    if step["kind"] == "directory":
        return {"folder": "after", "absent": "before"}.get(kind, f"a {kind}")
    if step["kind"] == "symlink" and (kind, text) == ("link", step["link"]):
        return "after"
    if step["kind"] == "file" and kind == "file" and text == step["after"]:
        return "after"
    if kind == "absent":
        if step["kind"] == "whiteout":
            return "after"
        return "before" if before is None and "before_link" not in step else "nothing"
    if (kind == "file" and text == before) or (kind == "link" and text == step.get("before_link")):
        return "before"
    return {"file": text, "link": f"a link to {text}", "folder": "a folder", "other": text}[kind]


def patched(data: bytes, diff: bytes, path: str) -> bytes:
    """`data` with a unified diff applied at exactly the places that it names."""
    old = re.findall(rb"[^\n]*\n|[^\n]+", data)
    out: list[bytes] = []
    at = number = 0
    lines = [*diff.split(b"\n"), b""]
    while number < len(lines):
        head = re.match(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", lines[number])
        number += 1
        if head is None:
            continue
        gone, fresh = int(head.group(2) or 1), int(head.group(3) or 1)
        start = int(head.group(1)) - (1 if gone else 0)
        out += old[at:start]
        at = start
        while gone or fresh:
            mark, text = lines[number][:1], lines[number][1:]
            number += 1
            if lines[number][:1] == b"\\":
                number += 1
            else:
                text += b"\n"
            if mark != b"+":
                if at >= len(old) or old[at] != text:
                    raise Stop(1, f"{path}: line {at + 1} is not the one that the patch replaces")
                at += 1
                gone -= 1
            if mark != b"-":
                out.append(text)
                fresh -= 1
    return b"".join([*out, *old[at:]])
