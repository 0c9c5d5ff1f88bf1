"""Whether a wheel is for a platform and an interpreter (packaging.python.org, Platform compatibility tags; PEP 600)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, View
from imagebuild.oci.platform import Platform

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(.+)\Z")
_LIBC = re.compile(r"(?:libc|ld)-(\d+)\.(\d+)\.so\Z")
_SINGLE_LIBC = (2, 34)
"""From this version on glibc's files carry no version in their names."""
_NEWEST = 99


def platform_tags(platform: Platform, glibc: tuple[int, int] | None = None) -> list[str]:
    """The platform tags that a glibc system of that platform takes, the most particular first; `glibc` bounds them,
    None: any."""
    arch = platform.machine
    newest = glibc[1] if glibc is not None else _NEWEST
    out = [f"manylinux_2_{minor}_{arch}" for minor in range(newest, 4, -1)]
    out += [f"{name}_{arch}" for name, (_, minor) in _LEGACY.items() if minor <= newest]
    return [*out, f"linux_{arch}"]


def supported_tags(platform: Platform, python: str, glibc: tuple[int, int] | None) -> frozenset[str]:
    """Every tag `PYTHON-ABI-PLATFORM` that CPython `python` (`3.12`) on `platform` installs."""
    from packaging import tags

    version = tuple(int(part) for part in python.split("."))
    places = platform_tags(platform, glibc)
    nodot = "".join(map(str, version))
    found = [
        *tags.cpython_tags(version, abis=[f"cp{nodot}"], platforms=places),
        *tags.compatible_tags(version, interpreter=f"cp{nodot}", platforms=places),
    ]
    return frozenset(map(str, found))


def expand_tags(texts: Iterable[str]) -> frozenset[str]:
    """Single tags of compressed sets: `py2.py3-none-any` is two."""
    out = set()
    for text in texts:
        parts = text.lower().split("-")
        if len(parts) == 3:
            out |= {
                f"{a}-{b}-{c}" for a in parts[0].split(".") for b in parts[1].split(".") for c in parts[2].split(".")
            }
    return frozenset(out)


def filename_tags(name: str) -> frozenset[str]:
    """The tags in a wheel's file name; empty for what is no such name."""
    stem = name.removesuffix(".whl")
    parts = stem.split("-")
    return expand_tags(["-".join(parts[-3:])]) if stem != name and len(parts) in (5, 6) else frozenset()


def check_tags(
    where: str, tags: Iterable[str], platform: Platform, python: str, glibc: tuple[int, int] | None
) -> str | None:
    """Refuses a wheel that the image's interpreter would not install; `where` names it, `glibc` is the base's (None:
    not known).

    The answer says what could not be found out: which glibc the wheel asks of a base whose version is not known.
    Raises RefusedError `overlay.wheel-platform`.
    """
    single = expand_tags(tags)
    fitting = single & supported_tags(platform, python, None)
    if not fitting:
        raise RefusedError(
            "overlay.wheel-platform",
            f"{where} is not for Python {python} on {platform}",
            expected=f"a tag of CPython {python} and {platform.machine}, or of any",
            found=", ".join(sorted(single)) or "no tag",
            hint="give the digest of this platform's wheel: imagebuild overlay pin NAME DIST==VERSION",
        )
    needs = [_needed_glibc(tag.split("-")[2]) for tag in fitting]
    needed = min((need for need in needs if need is not None), default=None)
    if None in needs or needed is None:
        return None
    if glibc is None:
        return f"{where}: whether the base's glibc is {_version(needed)} or newer"
    if glibc < needed:
        raise RefusedError(
            "overlay.wheel-platform",
            f"{where} needs a newer glibc than the base has",
            expected=f"glibc {_version(needed)} or newer",
            found=f"glibc {_version(glibc)}",
            hint="take a wheel that was built for older systems, or a newer base",
        )
    return None


def _version(glibc: tuple[int, int]) -> str:
    return f"{glibc[0]}.{glibc[1]}"


def _needed_glibc(tag: str) -> tuple[int, int] | None:
    """What a platform tag asks of glibc; None for one that asks nothing."""
    match = _MANYLINUX.match(tag)
    if match is not None:
        return int(match[1]), int(match[2])
    for name, version in _LEGACY.items():
        if tag.startswith(name + "_"):
            return version
    return None


def read_glibc(view: View, platform: Platform) -> tuple[int, int] | None:
    """The least version that the base's glibc can have, told by the names of its files; None where there is none to
    be seen."""
    multiarch = f"{platform.machine}-linux-gnu"
    best: tuple[int, int] | None = None
    for folder in (f"usr/lib/{multiarch}", f"lib/{multiarch}", "usr/lib64", "lib64", "usr/lib", "lib"):
        where = view.resolve(folder)
        if not isinstance(where, str):
            continue
        children = view.children(where)[0]
        for name in children:
            match = _LIBC.match(name)
            if match is not None:
                best = max(best or (0, 0), (int(match[1]), int(match[2])))
        libc = children.get("libc.so.6")
        if isinstance(libc, Found) and libc.entry.kind is Kind.FILE:
            best = max(best or (0, 0), _SINGLE_LIBC)
    return best
