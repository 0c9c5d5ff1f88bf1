"""Counting what goes over the wire."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """What was moved.  `requests` to registries and what they redirect to, every attempt counted; `authentication`
    requests to token servers and first attempts answered 401; bytes are those of bodies."""

    requests: int = 0
    authentication: int = 0
    retries: int = 0
    downloaded_bytes: int = 0
    uploaded_bytes: int = 0
    mounted_blobs: int = 0

    def __sub__(self, other: Transfer) -> Transfer:
        return Transfer(
            self.requests - other.requests,
            self.authentication - other.authentication,
            self.retries - other.retries,
            self.downloaded_bytes - other.downloaded_bytes,
            self.uploaded_bytes - other.uploaded_bytes,
            self.mounted_blobs - other.mounted_blobs,
        )


class Statistics:
    """Counts of one source or sink; each addition goes to `parent` too.  Safe to use from several threads."""

    def __init__(self, parent: Statistics | None = None) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._counts = [0] * 6

    def _add(self, place: int, number: int) -> None:
        with self._lock:
            self._counts[place] += number
        if self._parent is not None:
            self._parent._add(place, number)

    def request(self) -> None:
        self._add(0, 1)

    def authentication(self) -> None:
        self._add(1, 1)

    def challenged(self) -> None:
        """A request that was counted turns out to have been the one that fetched the challenge."""
        self._add(0, -1)
        self._add(1, 1)

    def retry(self) -> None:
        self._add(2, 1)

    def downloaded(self, size: int) -> None:
        self._add(3, size)

    def uploaded(self, size: int) -> None:
        self._add(4, size)

    def mounted(self) -> None:
        self._add(5, 1)

    @property
    def requests(self) -> int:
        return self.snapshot().requests

    @property
    def downloaded_bytes(self) -> int:
        return self.snapshot().downloaded_bytes

    @property
    def uploaded_bytes(self) -> int:
        return self.snapshot().uploaded_bytes

    def snapshot(self) -> Transfer:
        with self._lock:
            return Transfer(*self._counts)
