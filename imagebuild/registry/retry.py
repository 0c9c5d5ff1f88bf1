"""When a request is repeated, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from imagebuild.errors import ImagebuildError
from imagebuild.host import clock

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Timing:
    """The clocks: `monotonic` seconds, `now` seconds since 1970, `sleep`, and `random` in [0, 1) for the jitter."""

    monotonic: clock.Clock = clock.monotonic
    now: Callable[[], int] = clock.now
    sleep: clock.Sleep = clock.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Capped exponential back-off: attempt n waits `first * 2**n` seconds, at most `cap`, between half and all of it
    by chance; at most `attempts` attempts and `total` seconds of waiting."""

    attempts: int = 6
    first: float = 0.25
    cap: float = 20.0
    total: float = 120.0


class Attempts:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._made = 0
        self._waited = 0.0

    def pause(self, failure: ImagebuildError, retry_after: float | None = None) -> None:
        """Waits before the next attempt, or raises `failure` when there is to be none.

        `retry_after` (seconds) is what the registry asked for; a wait that would go beyond the bounded total is not
        begun.
        """
        self._made += 1
        delay = min(self._policy.cap, self._policy.first * 2.0 ** (self._made - 1))
        delay *= 0.5 + self._timing.random() / 2
        if retry_after is not None:
            delay = max(delay, retry_after)
        failure.details["attempts"] = self._made
        if self._made >= self._policy.attempts or self._waited + delay > self._policy.total:
            raise failure
        self._waited += delay
        self._timing.sleep(delay)

    def progressed(self) -> None:
        """Something was gained: attempts are counted anew; the time waited is not."""
        self._made = 0


class Settling:
    """The turns of one writer of a tag that others write at the same time.

    No registry compares before it sets, so whoever had read the tag before our write may still overwrite it.  Before the tag
    is read again it is therefore waited for longer than a turn took us, twice as long each time, and by chance up to half
    more, so that writers who began together part.
    """

    LEAST, CAP = 0.2, 10.0

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began = 0.0
        self._wait = 0.0

    def reads(self) -> None:
        """To be called before each reading."""
        if self._wait:
            self._timing.sleep(self._wait * (1 + self._timing.random() / 2))
        self._began = self._timing.monotonic()

    def wrote(self) -> None:
        """To be called after each writing."""
        took = self._timing.monotonic() - self._began
        self._wait = min(self.CAP, max(self.LEAST, 2 * self._wait, 2 * took))


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait as a `Retry-After` header says (RFC 9110, 10.2.3): seconds, or an HTTP date; None otherwise."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError):
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, moment.timestamp() - now)
