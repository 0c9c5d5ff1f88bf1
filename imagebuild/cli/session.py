"""What a verb works with: workspace, cache, references, progress, answer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from imagebuild.build.events import Emitter
from imagebuild.build.opening import Opener, RegistryAccess
from imagebuild.cli.output import Output
from imagebuild.cli.progress import Progress
from imagebuild.host.environment import cache_folder

if TYPE_CHECKING:
    from imagebuild.oci.reference import Reference
    from imagebuild.target.workspace import Workspace


def shown_here(path: Path | str) -> str:
    """A path that can be pasted where the user stands: below the current folder where it lies there."""
    path, here = Path(path), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


class Session:
    """One run of one verb.  Everything is made when first asked for."""

    def __init__(self, arguments: argparse.Namespace, output: Output) -> None:
        self.arguments = arguments
        self.output = output
        self.progress = Progress(quiet=arguments.quiet, verbose=arguments.verbose, events_file=arguments.events)
        self.emitter = Emitter(self.progress)

    @cached_property
    def workspace(self) -> Workspace:
        """The named workspace, or the nearest above.  Raises InputError `target.no-workspace`."""
        from imagebuild.target.workspace import Workspace

        return Workspace.find(Path.cwd(), self.arguments.workspace)

    @property
    def cache(self) -> Path:
        return Path(self.arguments.cache) if self.arguments.cache else cache_folder()

    def opener(self, folder: Path | None = None) -> Opener:
        """Opens references whose relative paths are below `folder` (default: the current one)."""
        return self._opener.at(folder if folder is not None else Path.cwd())

    @cached_property
    def _opener(self) -> Opener:
        return Opener(
            Path.cwd(),
            RegistryAccess(
                frozenset(self.arguments.plain_http),
                frozenset(self.arguments.insecure),
                self.arguments.ca_bundle,
                bool(getattr(self.arguments, "allow_base_transfer", False)),
            ),
        )

    def reference(self, text: str) -> Reference:
        """The reference that somebody typed.  Raises InputError `oci.bad-reference`.

        A bare name is Docker Hub's, as everywhere; where a layout of that name lies here, that is said.
        """
        from imagebuild.oci.reference import parse_reference

        reference = parse_reference(text)
        folder = text.partition("@")[0]
        if not text.startswith("docker:") and (Path(folder) / "oci-layout").is_file():
            self.output.note(f"{text} is a name on Docker Hub; the layout in that folder is oci:{text}")
        return reference

    def traffic_since(self, before: Mapping[str, int] | None = None) -> dict[str, int]:
        """Requests and bytes on the wire since `before` (an earlier answer; None: since the run began)."""
        return {key: value - (before or {}).get(key, 0) for key, value in self._opener.traffic().items()}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)
