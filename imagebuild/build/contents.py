"""Bytes of the base that a build needs, by digest: the target's committed folder first, the cache second."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping

from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import RefusedError

CONTENT_LIMIT = 4 << 20
"""Bytes on disk of a target's committed content (formats.md, content)."""


class Contents:
    """Reads from both places; `put` writes to the cache, `commit` moves what a lock needs to the committed folder."""

    def __init__(self, committed: CompressedStore, cache: ContentStore) -> None:
        self.committed = committed
        self.cache = cache
        self._memory: dict[Digest, bytes] = {}

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, verified, or None where neither place has them."""
        data = self._memory.get(digest)
        if data is None:
            data = self.committed.get(digest)
        if data is None:
            data = self.cache.get(digest)
        if data is not None:
            self._memory[digest] = data
        return data

    def put(self, data: bytes) -> Digest:
        digest = self.cache.put(data)
        self._memory[digest] = data
        return digest

    def commit(self, wanted: Mapping[Digest, str]) -> None:
        """Puts `wanted` (digest: what it is, for messages) into the committed folder; `prune` removes the rest afterwards.

        Raises RefusedError `lock.content-too-large` before anything is written.
        """
        packed: list[tuple[int, str]] = []
        for digest, what in wanted.items():
            data = self.get(digest)
            if data is None:
                raise AssertionError(f"{what} {digest} was never read")
            there = self.committed.packed_size(digest)
            packed.append((len(zlib.compress(data, 9)) if there is None else there, what))
        total = sum(size for size, _ in packed)
        if total > CONTENT_LIMIT:
            largest = max(packed)
            raise RefusedError(
                "lock.content-too-large",
                f"what this target needs of its base does not fit into its content folder; the largest is {largest[1]} "
                f"({largest[0]} bytes)",
                expected=f"at most {CONTENT_LIMIT} bytes",
                found=f"{total} bytes",
                hint="write `content: cache` into target.yaml; a fresh machine then reads the holder's layer again",
            )
        for digest in wanted:
            data = self.get(digest)
            assert data is not None
            self.committed.put(data)

    def prune(self, wanted: Collection[Digest]) -> None:
        """Removes from the committed folder what the stored lock does not name."""
        self.committed.keep_only(set(wanted))
