"""Where the machine's own settings are read from.  One value, so that a test can stand it anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.errors import InputError, UnavailableError
from imagebuild.host import environment

SETTINGS_LIMIT = 4 << 20
"""Bytes of a settings or credentials file at most."""


def _home() -> Path:
    named = environment.variable("HOME")
    return Path(named) if named else Path.home()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`variable` reads an environment variable (None where unset or empty), `home` is the user's folder, `etc` the
    machine's settings folder."""

    variable: Callable[[str], str | None] = environment.variable
    home: Path = field(default_factory=_home)
    etc: Path = Path("/etc")

    @property
    def containers_folder(self) -> Path:
        """`$XDG_CONFIG_HOME/containers`, else `~/.config/containers`."""
        base = self.variable("XDG_CONFIG_HOME")
        return (Path(base) if base else self.home / ".config") / "containers"


def read_settings_file(path: Path, code: str) -> bytes | None:
    """The bytes of a settings file, None where there is none.

    Raises UnavailableError `code` where it cannot be read and InputError `code` where it is too large.
    """
    try:
        with open(path, "rb") as stream:
            data = stream.read(SETTINGS_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnavailableError(code, f"cannot read {path}: {error.strerror}") from None
    if len(data) > SETTINGS_LIMIT:
        raise InputError(code, f"{path} is too large", expected=f"at most {SETTINGS_LIMIT} bytes")
    return data
