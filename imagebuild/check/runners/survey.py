"""Which runners can work on this machine, for people who look before they choose."""

from __future__ import annotations

from collections.abc import Mapping

from imagebuild.check.runners import open_runner
from imagebuild.errors import ImagebuildError
from imagebuild.target.site import RUNNERS


def survey() -> Mapping[str, str | None]:
    """Each runner's name, and None where it can work here, else the reason why not.  Nothing is left behind."""
    out: dict[str, str | None] = {}
    for name in RUNNERS:
        try:
            runner = open_runner(name)
            try:
                out[name] = runner.available()
            finally:
                runner.close()
        except ImagebuildError as error:
            out[name] = f"{error.message}; {error.hint}" if error.hint else error.message
    return out
