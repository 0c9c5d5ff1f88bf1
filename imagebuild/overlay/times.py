"""The time of an entry that we write (images.md, Writing the layers, 2)."""

from __future__ import annotations

from collections.abc import Iterable

from imagebuild.overlay.bytecode import PycHead, PycKind


def entry_time(
    created: int, replaced_mtime: int | None = None, pyc_heads: Iterable[PycHead | None] = (), size: int | None = None
) -> int:
    """Seconds since 1970: `created`, and one more where that is the time of the replaced file.

    Equal time and size is how stale bytecode and stale caches survive; so a time that a pyc which stays (`pyc_heads`) has recorded
    is passed over as well, where the pyc's recorded size is `size` (any size where that is None).
    """
    taken = set() if replaced_mtime is None else {replaced_mtime & 0xFFFFFFFF}
    for head in pyc_heads:
        if head is None or head.kind is not PycKind.TIMESTAMP or head.mtime is None:
            continue
        if size is None or head.size == size & 0xFFFFFFFF:
            taken.add(head.mtime)
    time = created
    while time & 0xFFFFFFFF in taken:
        time += 1
    return time
