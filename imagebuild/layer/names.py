"""Names inside a layer: normal form, and what `.wh.` names mean (image-spec layer.md, Whiteouts)."""

from __future__ import annotations

PATH_LIMIT = 4096
"""Bytes of a path at most (images.md, Reading 6)."""
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


class TarFault(Exception):
    """A rule of the tar format, or of images.md, that the stream breaks; the reader adds where."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def text_of(raw: bytes) -> str:
    """A name's bytes as text: UTF-8, other bytes as surrogate escapes (so every byte comes back)."""
    return raw.decode("utf-8", "surrogateescape")


def bytes_of(path: str) -> bytes:
    """The bytes of a name; also the key of path order."""
    return path.encode("utf-8", "surrogateescape")


def normal_path(raw: bytes, what: str = "name") -> str:
    """The path without leading `/` and `./`, doubled slashes, inner `.` and trailing `/`; "" is the root.

    Raises TarFault `base.bad-path` for `..` components, NUL, an empty name and more than PATH_LIMIT bytes: engines
    resolve `..` differently where links are involved, so it is never interpreted.
    """
    if not raw or len(raw) > PATH_LIMIT or b"\0" in raw:
        raise TarFault("base.bad-path", f"the {what} is empty, longer than {PATH_LIMIT} bytes, or holds a NUL")
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise TarFault("base.bad-path", f"the {what} {text_of(raw[:200])!r} has a '..' component")
    return text_of(b"/".join(parts))


def is_plain(raw: bytes) -> bool:
    """Whether a name is its own normal form, apart from one trailing slash: the common case, decided quickly."""
    return (
        b"//" not in raw
        and b"./" not in raw
        and b"/." not in raw
        and not raw.startswith((b"/", b"."))
        and raw != b""
        and len(raw) <= PATH_LIMIT
        and b"\0" not in raw
    )


def hidden_by(path: str) -> tuple[str, bool] | None:
    """What an entry of this normal path hides in lower layers: `(path, opaque)`, or None for an ordinary name.

    `.wh..wh..opq` makes its folder opaque; any other name that begins with `.wh.` hides the rest of the name in the
    same folder.  Raises TarFault `base.bad-whiteout` where the rest is no name, and for a folder whose own name
    begins with `.wh.`.
    """
    if WHITEOUT not in path:
        return None
    folder, _, name = path.rpartition("/")
    if folder.startswith(WHITEOUT) or f"/{WHITEOUT}" in folder:
        raise TarFault("base.bad-whiteout", f"{path!r} lies below a whiteout")
    if not name.startswith(WHITEOUT):
        return None
    if name == OPAQUE:
        return folder, True
    rest = name[len(WHITEOUT) :]
    if rest in ("", ".", ".."):
        raise TarFault("base.bad-whiteout", f"{path!r} is a whiteout of nothing")
    return (f"{folder}/{rest}" if folder else rest), False


def parents(path: str) -> list[str]:
    """The folders above a path, the highest first, the root (which every path is below) not among them."""
    out = []
    at = path.find("/")
    while at >= 0:
        out.append(path[:at])
        at = path.find("/", at + 1)
    return out


def is_normal(path: str) -> bool:
    """Whether a text is a path in normal form (and not the root)."""
    return bool(path) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
