"""Time.  Kept in one place so that a test can move it and so that nothing in the core looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime


def monotonic() -> float:
    """Seconds for measuring and deadlines."""
    return time.monotonic()


def now() -> int:
    """Whole seconds since 1970."""
    return int(time.time())


def sleep(seconds: float) -> None:
    time.sleep(seconds)


Clock = Callable[[], float]
Sleep = Callable[[float], None]


def rfc3339(seconds: int) -> str:
    """`2026-11-30T00:00:00Z` for whole seconds since 1970 (image-spec: RFC 3339, section 5.6)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> int | None:
    """Whole seconds since 1970, or None where the text is no RFC 3339 time."""
    try:
        head, _, tail = text.partition(".")
        if tail:
            digits = len(tail) - len(tail.lstrip("0123456789"))
            head += tail[digits:]
        moment = datetime.fromisoformat(head.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return int(moment.timestamp() // 1)
