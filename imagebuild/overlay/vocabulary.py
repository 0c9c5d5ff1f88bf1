"""The words that all written files share: names, digests, platforms, paths, dates, addresses.  Each is one declaration,
for our own reader and for the JSON Schemas."""

from __future__ import annotations

import re
from datetime import date

from imagebuild.content.digest import Digest
from imagebuild.content.schema import Map, Text
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, PathReference, Reference, is_pinned, parse_reference
from imagebuild.overlay.paths import Glob, validate_path

PLATFORMS = ("linux/amd64", "linux/arm64")
"""The platforms that images are built for."""

_PART = r"[^/\u0000-\u001f\u007f]+"
_NO_DOTS = r"(?!(?:.*/)?\.{1,2}(?:/|$))"

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")


def validate_name(text: str, what: str) -> str:
    """`text` itself when it may name a folder, a tag and a file on every system; InputError `overlay.bad-name`."""
    if NAME_PATTERN.fullmatch(text) is None:
        raise InputError(
            "overlay.bad-name",
            f"{text[:80]!r} cannot be the name of {what}",
            expected="1 to 64 lower-case letters, digits, and . _ - between them",
            found=text[:80],
        )
    return text


def _platform(text: str) -> Platform:
    return Platform.parse(text)


def parse_date(text: str) -> date:
    """`YYYY-MM-DD` (RFC 3339 full-date).  Raises InputError `overlay.bad-date`."""
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InputError("overlay.bad-date", f"{text[:40]!r} is not a date", expected="YYYY-MM-DD", found=text[:40])


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> int:
    """Seconds of `90s`, `30m`, `2h`, `30d`.  Raises InputError `overlay.bad-duration`."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text)
    if found is None:
        raise InputError(
            "overlay.bad-duration",
            f"{text[:40]!r} is not a duration",
            expected="a whole number and s, m, h or d: 90s, 30m, 2h, 30d",
            found=text[:40],
        )
    return int(found.group(1)) * _SECONDS[found.group(2)]


def parse_pinned(text: str) -> DigestReference | PathReference:
    """A reference that names bytes.  Raises InputError `oci.bad-reference` or `overlay.unpinned`."""
    reference: Reference = parse_reference(text)
    if isinstance(reference, (DigestReference, PathReference)) and is_pinned(reference):
        return reference
    raise InputError("overlay.unpinned", f"{text[:300]} has no digest", expected="REF@sha256:…", found=text[:300])


def parse_mode(text: str) -> int:
    """Permission bits written in octal: `0644`.  Raises InputError `overlay.bad-mode`."""
    if re.fullmatch("0?[0-7]{3,4}", text) is None:
        raise InputError(
            "overlay.bad-mode", f"{text[:40]!r} is no mode", expected='octal digits: "0644"', found=text[:40]
        )
    return int(text, 8)


def validate_root_path(text: str) -> str:
    return validate_path(text, "this path")


def _validate_glob(text: str) -> str:
    Glob(text)
    return validate_path(text, "this glob")


def name_of(what: str) -> Text:
    """The name of a target, overlay, site, key: a folder's name and part of a tag."""
    return Text(
        f"the name of {what}",
        pattern=NAME_PATTERN.pattern,
        form="1 to 64 lower-case letters, digits, and . _ - between them",
    )


LINE = Text("one line of text")
PROSE = Text("text", lines=True, limit=20_000)
CODE = Text("text of a file", lines=True, limit=200_000)
DIGEST = Text(
    "a digest", pattern="sha256:[0-9a-f]{64}", form="sha256:<64 lower-case hexadecimal digits>", parse=Digest.parse
)
GIT_ID = Text(
    "a git object's id",
    pattern="[0-9a-f]{4,64}",
    form="4 to 64 lower-case hexadecimal digits, in quotes if all are decimal",
)
MODE = Text("permission bits", pattern="0?[0-7]{3,4}", form='octal digits in quotes: "0644"', parse=parse_mode)
PLATFORM = Text("a platform", choices=PLATFORMS, parse=_platform)
DATE = Text("a date", pattern="[0-9]{4}-[0-9]{2}-[0-9]{2}", form="YYYY-MM-DD", parse=parse_date, format="date")
DURATION = Text("a duration", pattern="[1-9][0-9]{0,5}[smhd]", form="90s, 30m, 2h, 30d", parse=parse_duration)
URL = Text(
    "an address",
    pattern=r"https?://[^\s/?#@\u0000-\u001f]+(?:[/?#][^\s\u0000-\u001f]*)?",
    form="https://HOST/… without user or password",
)
VERSION = Text(
    "a version", pattern="[0-9A-Za-z][0-9A-Za-z.!+_-]*", form='a version, in quotes if it looks like a number: "1.10"'
)
DISTRIBUTION = Text("the name of a Python distribution", pattern="[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
ENV_NAME = Text("the name of an environment variable", pattern="[A-Za-z_][A-Za-z0-9_]*")
ENV_VALUE = Text("text (an environment value)", empty=True, limit=32_768)
ENV = Map(ENV_NAME, ENV_VALUE, "a mapping from variables to values")
LOCAL_PATH = Text(
    "a relative path",
    pattern=rf"{_NO_DOTS}{_PART}(?:/{_PART})*",
    form="a path below this folder: no leading /, no . or .. in it",
)
ABSOLUTE_PATH = Text("an absolute path", pattern=rf"{_NO_DOTS}(?:/{_PART})+", form="/…, no . or .. in it")
ROOT_PATH = Text(
    "a path of the image",
    pattern=rf"(?!(?:.*/)?\.wh\.){_NO_DOTS}{_PART}(?:/{_PART})+",
    form="ROOT/relative, for example vllm/envs.py",
    parse=validate_root_path,
)
ROOT_GLOB = Text(
    "a glob over paths of the image",
    pattern=rf"(?!(?:.*/)?\.wh\.){_NO_DOTS}{_PART}(?:/{_PART})+",
    form="ROOT/pattern, for example aiter/jit/module_*.so",
    parse=_validate_glob,
)
PINNED = Text(
    "a pinned reference", pattern=r"[^\s\u0000-\u001f]+@sha256:[0-9a-f]{64}", form="REF@sha256:…", parse=parse_pinned
)
