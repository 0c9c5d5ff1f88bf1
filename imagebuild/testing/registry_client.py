"""A registry client for tests: no setting of the machine reaches it, and no time passes in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.oci.reference import Repository
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.open import make_client
from imagebuild.registry.retry import RetryPolicy, Timing
from imagebuild.registry.settings import RegistryOptions
from imagebuild.registry.surroundings import Surroundings
from imagebuild.testing.registry_double import RegistryDouble

EPOCH = 1_700_000_000
"""What the wall clock shows when the double's clock shows 0."""


class FakeTime:
    """Clocks that only sleeping moves.  `slept` lists the seconds of each sleep; the chance of the jitter is `chance`."""

    def __init__(self, double: RegistryDouble | None = None, chance: float = 0.0) -> None:
        self.slept: list[float] = []
        self.chance = chance
        self._double = double
        self._own = 0.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self._own if self._double is None else self._double.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.slept.append(seconds)
            self._own += seconds
        if self._double is not None:
            self._double.advance(seconds)

    @property
    def timing(self) -> Timing:
        return Timing(self.monotonic, lambda: EPOCH + int(self.monotonic()), self.sleep, lambda: self.chance)


def surroundings(folder: Path, variables: Mapping[str, str] | None = None) -> Surroundings:
    """A machine whose settings are below `folder`: `home` and `etc`."""
    return Surroundings(dict(variables or {}).get, folder / "home", folder / "etc")


def client_for(
    folder: Path,
    *,
    docker_config: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    time: FakeTime | None = None,
    policy: RetryPolicy | None = None,
    **options: Any,
) -> RegistryClient:
    """A client whose machine is `folder`; `docker_config` becomes its ~/.docker/config.json."""
    if docker_config is not None:
        path = folder / "home" / ".docker" / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(docker_config))
    made = RegistryOptions(surroundings=surroundings(folder, variables), **options)
    return make_client(made, policy=policy, timing=(time or FakeTime()).timing)


def repository_at(double: RegistryDouble, path: str) -> Repository:
    return Repository(double.host, path)
