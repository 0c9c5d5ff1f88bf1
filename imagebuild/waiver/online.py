"""Upstream links looked up at the code host (`waiver check --online`): merged means that the patch can go.

Only what the host answers is a finding.  A link that could not be looked up (no network, a rate limit, a host that is not
known here) stays an open question, and is never taken for an open pull request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from imagebuild.errors import UnavailableError, clean
from imagebuild.host.clock import rfc3339
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding

GITHUB_API = "https://api.github.com"
HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
LINKS_LIMIT = 100
_LINK = re.compile(r"https?://(?:www\.)?github\.com/([\w.-]+)/([\w.-]+)/(pull|issues)/(\d{1,10})(?:[/?#].*)?", re.ASCII)


class Answer(Protocol):
    """What the host answered."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class Reader(Protocol):
    """Asks an address once; raises UnavailableError where nothing answers."""

    def get(self, url: str, headers: Mapping[str, str]) -> Answer: ...


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """What became of a pull request or issue: `state` is merged, closed, open, draft or missing; None with `why` where it
    could not be found out."""

    url: str
    state: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CodeHost:
    """GitHub's API below `base` (another one for tests and for a server of one's own)."""

    reader: Reader
    base: str = GITHUB_API

    def look_up(self, url: str) -> UpstreamState:
        """One link; nothing is raised, since one link that cannot be looked up says nothing of the others."""
        found = _LINK.fullmatch(url)
        if found is None:
            return UpstreamState(
                url, None, "no host that can be asked: links of github.com to pull requests and issues are"
            )
        owner, name, kind, number = found.groups()
        path = f"/repos/{owner}/{name}/{'pulls' if kind == 'pull' else 'issues'}/{number}"
        try:
            answer = self.reader.get(self.base.rstrip("/") + path, HEADERS)
        except UnavailableError as error:
            return UpstreamState(url, None, error.message)
        if answer.status in (404, 410):
            return UpstreamState(url, "missing")
        if answer.status != 200:
            return UpstreamState(url, None, _refusal(answer))
        try:
            value = json.loads(answer.body)
            return UpstreamState(url, _state(value, kind))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return UpstreamState(url, None, "the answer cannot be understood")


def _refusal(answer: Answer) -> str:
    headers = answer.headers
    if answer.status == 429 or (answer.status == 403 and headers.get("X-RateLimit-Remaining") == "0"):
        reset = headers.get("X-RateLimit-Reset", "")
        until = f" until {rfc3339(int(reset))}" if reset.isascii() and reset.isdigit() and len(reset) < 12 else ""
        return f"the host's rate limit is used up{until} (a token in GITHUB_TOKEN has a larger one)"
    return f"the host answers {answer.status}"


def _state(value: Any, kind: str) -> str:
    """Raises KeyError, TypeError, ValueError for an answer that is none."""
    if not isinstance(value, dict):
        raise TypeError("an object is wanted")
    pull = value if kind == "pull" else value.get("pull_request") or {}
    if pull.get("merged_at") or pull.get("merged") is True:
        return "merged"
    state = value["state"]
    if state not in ("open", "closed"):
        raise ValueError(state)
    return "draft" if state == "open" and value.get("draft") is True else str(state)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Findings of links that were answered, and the links that were not, with the reason."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]


def look_up_links(
    host: CodeHost, links: Iterable[tuple[str, str | None]], file: str, line: int, *, strict: bool
) -> LookedUp:
    """Looks up each link once; a link comes with the state that the waiver claims, where it does."""
    claimed: dict[str, str | None] = {}
    for url, state in links:
        claimed[url] = claimed.get(url) or state
    findings: list[Finding] = []
    unknown: list[str] = []
    for number, (url, said) in enumerate(claimed.items()):
        found = UpstreamState(url, None, "too many links") if number >= LINKS_LIMIT else host.look_up(url)
        if found.state is None:
            unknown.append(f"{url}: {clean(found.why, 300)}")
            findings.append(Finding("upstream.unknown", WARNING, f"could not find out: {url}: {found.why}", file, line))
        else:
            findings += _findings(found, said, file, line, strict)
    return LookedUp(tuple(findings), tuple(unknown))


def _findings(found: UpstreamState, said: str | None, file: str, line: int, strict: bool) -> Iterator[Finding]:
    url = found.url
    if found.state == "merged":
        yield Finding(
            "upstream.merged",
            BLOCKING if strict else WARNING,
            f"remove me: {url} is merged; once an image carries it, overlay and waiver can go",
            file,
            line,
        )
    elif found.state == "closed":
        yield Finding("upstream.closed", WARNING, f"{url} is closed and not merged", file, line)
    elif found.state == "missing":
        yield Finding("upstream.missing", WARNING, f"{url} is not there, or not for everybody to see", file, line)
    else:
        word = "open, as a draft" if found.state == "draft" else "open"
        yield Finding("upstream.open", NOTE, f"{url} is {word}", file, line)
    if said is not None and said != found.state:
        yield Finding(
            "upstream.state-differs", NOTE, f"the waiver says {said} of {url}; it is {found.state}", file, line
        )
