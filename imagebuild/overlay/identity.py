"""Whether an image holds the distributions that a target says it does (formats.md, `identity`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from imagebuild.errors import RefusedError
from imagebuild.overlay.distributions import Distribution, Distributions, normalise_name

_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
_VERSION_LIMIT = 256
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_n>\d*))?"
    r"(?P<post>-(?P<post_short>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_n>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\Z"
)


def normalise_version(version: str) -> str:
    """The one spelling of a version (PEP 440, Normalization; trailing zeros of the release are dropped, so `1.0` and `1` are equal).
    Other texts come back trimmed and in lower case."""
    text = version.strip().lower()
    match = _VERSION.match(text) if len(text) <= _VERSION_LIMIT else None
    if match is None:
        return text
    epoch = int(match["epoch"] or 0)
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    out = (f"{epoch}!" if epoch else "") + ".".join(map(str, release))
    if match["pre"]:
        out += f"{_PRE.get(match['pre'], match['pre'])}{int(match['pre_n'] or 0)}"
    if match["post"]:
        out += f".post{int(match['post_short'] or match['post_n'] or 0)}"
    if match["dev"]:
        out += f".dev{int(match['dev_n'] or 0)}"
    if match["local"]:
        parts = re.split(r"[-_.]", match["local"])
        out += "+" + ".".join(str(int(part)) if part.isdigit() else part for part in parts)
    return out


class IdentityState(str, Enum):
    """The answer for one distribution; NOT_PROVEN is never a pass."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_PROVEN = "not-proven"


@dataclass(frozen=True, slots=True)
class IdentityFinding:
    """One expected distribution: what was found (`found` version, `path` of its metadata; "" for none) and why that is the answer."""

    name: str
    expected: str
    state: IdentityState
    found: str = ""
    path: str = ""
    reason: str = ""


def check_identity(
    expected: Mapping[str, str], distributions: Distributions, order: Sequence[str] = ()
) -> tuple[IdentityFinding, ...]:
    """Compares versions after normalising; a local label counts (`0.33.0` is not `0.33.0+cu129`).

    `order` are the folders in which the image's interpreter looks (PythonLayout.import_order): of several installations the first counts,
    as for `importlib.metadata`, and those elsewhere (caches) do not.  Without it all must agree.  What is missing while layers are
    unread, or whose METADATA was not read, is NOT_PROVEN.
    """
    return tuple(_check(name, expected[name], distributions, order) for name in sorted(expected))


def _check(name: str, wanted: str, distributions: Distributions, order: Sequence[str]) -> IdentityFinding:
    known = distributions.named(name, order or None)
    if order:
        known = tuple(item for item in known if item.site == known[0].site)
    if not known:
        if distributions.places.complete:
            return IdentityFinding(name, wanted, IdentityState.FAILED, reason="it is not installed")
        return IdentityFinding(
            name, wanted, IdentityState.NOT_PROVEN, reason="no layer that was read holds it; lower ones were not read"
        )
    versions = sorted({item.version for item in known})
    found, path = ", ".join(versions), known[0].info
    if any(normalise_version(version) != normalise_version(wanted) for version in versions):
        places = ", ".join("/" + item.info for item in known)
        return IdentityFinding(name, wanted, IdentityState.FAILED, found, path, f"found in {places}")
    if any(_unread(item) for item in known):
        reason = "its METADATA was not read; the version is the folder's name"
        return IdentityFinding(name, wanted, IdentityState.NOT_PROVEN, found, path, reason)
    return IdentityFinding(name, wanted, IdentityState.PASSED, found, path, "as its metadata says")


def _unread(item: Distribution) -> bool:
    return any(path.endswith(("/METADATA", "/PKG-INFO")) or path == item.info for path in item.unread)


def require_identity(findings: Sequence[IdentityFinding]) -> tuple[str, ...]:
    """Raises RefusedError `overlay.identity-mismatch` naming every failed finding; returns in words what is not proven."""
    failed = [item for item in findings if item.state is IdentityState.FAILED]
    if failed:
        raise RefusedError(
            "overlay.identity-mismatch",
            "the base does not hold what `identity` in target.yaml says: " + ", ".join(item.name for item in failed),
            expected=", ".join(f"{normalise_name(item.name)} {item.expected}" for item in failed),
            found=", ".join(
                f"{normalise_name(item.name)} {item.found or 'missing'} ({item.reason})" for item in failed
            ),
            hint="write the version that the base has, or pin another base",
            details={"identity": [{"name": i.name, "expected": i.expected, "found": i.found} for i in failed]},
        )
    return tuple(
        f"identity: {item.name} {item.expected}: {item.reason}"
        for item in findings
        if item.state is IdentityState.NOT_PROVEN
    )
