"""`registries.conf`, version 2 (containers-registries.conf(5)): mirrors, insecure, blocked, prefix and location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.errors import InputError
from imagebuild.registry.surroundings import Surroundings, read_settings_file

_PULL_WORDS = ("all", "digest-only", "tag-only")


@dataclass(frozen=True, slots=True)
class Mirror:
    """One `[[registry.mirror]]`: `location` is HOST[/PATH]; `pull` one of all, digest-only, tag-only."""

    location: str
    insecure: bool = False
    pull: str = "all"

    def serves(self, by_digest: bool) -> bool:
        return self.pull == "all" or self.pull == ("digest-only" if by_digest else "tag-only")


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One `[[registry]]`: what stands for every name that begins with `prefix` (`*.example.com` is allowed)."""

    prefix: str
    location: str
    insecure: bool = False
    blocked: bool = False
    mirrors: tuple[Mirror, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether `name` (HOST/PATH) is the prefix or goes on after it at a slash."""
        if self.prefix.startswith("*."):
            host = name.partition("/")[0].rpartition(":")[0] or name.partition("/")[0]
            return host.endswith(self.prefix[1:])
        return name == self.prefix or name.startswith(self.prefix + "/")

    def moved(self, name: str, location: str) -> str:
        """`name` with `location` in the prefix's place; a wildcard entry without a location moves nothing."""
        if not location:
            return name
        if self.prefix.startswith("*."):
            tail = name.partition("/")[2]
            return f"{location}/{tail}"
        return location + name[len(self.prefix) :]


def registries_files(surroundings: Surroundings) -> list[Path]:
    """The files in the order in which they are read; a later entry of one prefix replaces an earlier one."""
    named = surroundings.variable("CONTAINERS_REGISTRIES_CONF")
    system, user = surroundings.etc / "containers", surroundings.containers_folder
    if named:
        return [Path(named)]
    main = user / "registries.conf"
    out = [main if main.is_file() else system / "registries.conf"]
    for folder in (system, user):
        out.extend(sorted((folder / "registries.conf.d").glob("*.conf")))
    return out


def load_registries(files: Sequence[Path]) -> tuple[RegistryEntry, ...]:
    """All entries, longest prefix first.  Raises InputError `registry.bad-settings` with file and entry."""
    entries: dict[str, RegistryEntry] = {}
    for file in files:
        data = read_settings_file(file, "registry.bad-settings")
        if data is not None:
            for entry in parse_registries(data, str(file)):
                entries[entry.prefix] = entry
    return tuple(sorted(entries.values(), key=lambda e: (-len(e.prefix.lstrip("*")), e.prefix)))


def parse_registries(data: bytes, what: str) -> list[RegistryEntry]:
    """The `[[registry]]` tables of one file; other tables (aliases, search lists) are not ours and are left alone."""
    import tomllib

    try:
        document = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise InputError("registry.bad-settings", f"{what} is not valid TOML: {error}") from None
    registries = document.get("registry", [])
    if not isinstance(registries, list) or not all(isinstance(item, dict) for item in registries):
        # Version 1 had one table `[registries.search]`; its `registry` is never a plain value.
        raise InputError("registry.bad-settings", f"{what}: `registry` must be an array of tables ([[registry]])")
    return [_entry(item, f"{what}, registry {number}") for number, item in enumerate(registries, 1)]


def _entry(table: Mapping[str, Any], where: str) -> RegistryEntry:
    location = _text(table, "location", where)
    prefix = _text(table, "prefix", where) or location
    if not prefix:
        raise InputError("registry.bad-settings", f"{where}: neither prefix nor location is given")
    if not location and not prefix.startswith("*."):
        location = prefix
    mirrors = table.get("mirror", [])
    if not isinstance(mirrors, list) or not all(isinstance(item, dict) for item in mirrors):
        raise InputError("registry.bad-settings", f"{where}: `mirror` must be an array of tables")
    digests_only = _flag(table, "mirror-by-digest-only", where)
    return RegistryEntry(
        prefix,
        location,
        _flag(table, "insecure", where),
        _flag(table, "blocked", where),
        tuple(_mirror(item, digests_only, f"{where}, mirror {number}") for number, item in enumerate(mirrors, 1)),
    )


def _mirror(table: Mapping[str, Any], digests_only: bool, where: str) -> Mirror:
    location = _text(table, "location", where)
    if not location:
        raise InputError("registry.bad-settings", f"{where}: location is missing")
    pull = _text(table, "pull-from-mirror", where) or ("digest-only" if digests_only else "all")
    if pull not in _PULL_WORDS:
        raise InputError(
            "registry.bad-settings",
            f"{where}: pull-from-mirror",
            expected="one of " + ", ".join(_PULL_WORDS),
            found=pull,
        )
    return Mirror(location, _flag(table, "insecure", where), pull)


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or "://" in value:
        raise InputError("registry.bad-settings", f"{where}: {key} must be HOST[:PORT][/PATH], without a scheme")
    return value.rstrip("/")


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InputError("registry.bad-settings", f"{where}: {key} must be true or false")
    return value
