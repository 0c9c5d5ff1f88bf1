"""A Docker engine, spoken to through the `docker` SDK: the one module that imports it.

Where the engine is, is Docker's own matter: DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, else the local socket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from imagebuild.errors import UnavailableError, clean
from imagebuild.host.environment import variables

TIMEOUT = 900
"""Seconds that the engine may be silent; it unpacks a large layer without a word."""
_CONTAINERD_STORE = ["driver-type", "io.containerd.snapshotter.v1"]


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image as the engine tells it.  `id` is the config's digest in an engine with graph drivers, something else
    where containerd keeps the images; `layers` the diff_ids, lowest first; `config` the section of that name."""

    id: str
    layers: tuple[str, ...]
    os: str
    architecture: str
    config: Mapping[str, Any]


class Engine(Protocol):
    """What is asked of an engine."""

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        ...

    def image(self, name: str) -> EngineImage | None: ...

    def layer_stacks(self) -> Iterable[tuple[str, ...]]:
        """The diff_ids of every image that it holds."""
        ...

    def takes_part_archives(self) -> bool:
        """Whether a docker-archive may leave out layers that the engine has."""
        ...

    def load(self, parts: Iterator[bytes]) -> None:
        """Gives it a docker-archive, piece by piece."""
        ...

    def close(self) -> None: ...


class DockerEngine:
    """The engine that the environment names.  Every fault is an UnavailableError: `oci.engine-unreachable` where nobody
    answers, `oci.engine-failed` where the answer is an error."""

    def __init__(self) -> None:
        import docker
        from docker.utils import kwargs_from_env

        self.address = variables().get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if self.address.startswith("unix://") and not _is_socket(self.address.removeprefix("unix://")):
            raise self._unreachable("there is no such socket")
        with self.faults("asking for its version"):
            self.client: Any = docker.APIClient(
                version="auto", timeout=TIMEOUT, **kwargs_from_env(environment=variables())
            )

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Turns what the SDK raises inside the block into errors of ours; `details` of `oci.engine-failed` hold the HTTP
        `status`."""
        from docker import errors

        try:
            yield
        except errors.APIError as error:
            said = clean(str(error.explanation or error), 500)
            raise UnavailableError(
                "oci.engine-failed",
                f"the Docker engine at {self.address} failed while {doing}",
                found=said,
                details={"status": error.status_code},
            ) from error
        except (errors.DockerException, OSError) as error:
            raise self._unreachable(f"{doing}: {error}") from error

    def _unreachable(self, why: str) -> UnavailableError:
        return UnavailableError(
            "oci.engine-unreachable",
            f"no Docker engine answers at {self.address}",
            found=clean(why, 500),
            hint="start it, or name another one in DOCKER_HOST; docker-archive:FILE:NAME needs no engine",
        )

    def image(self, name: str) -> EngineImage | None:
        """What `name` (or an id) stands for; None where nothing does."""
        from docker import errors

        with self.faults(f"looking at {name}"):
            try:
                value = self.client.inspect_image(name)
            except errors.NotFound:
                return None
        return EngineImage(
            str(value.get("Id", "")),
            tuple(map(str, (value.get("RootFS") or {}).get("Layers") or ())),
            str(value.get("Os", "")),
            str(value.get("Architecture", "")),
            value.get("Config") or {},
        )

    def layer_stacks(self) -> Iterator[tuple[str, ...]]:
        with self.faults("listing its images"):
            listed = [str(item["Id"]) for item in self.client.images(all=True)]
        for identity in dict.fromkeys(listed):
            try:
                found = self.image(identity)
            except UnavailableError as error:
                if error.code != "oci.engine-failed":
                    raise
                continue  # an image that the engine itself cannot show, half removed perhaps
            if found is not None:
                yield found.layers

    def takes_part_archives(self) -> bool:
        """Engines with graph drivers do (seen with 20.10); where containerd keeps the images, an archive is whole."""
        with self.faults("asking what it is"):
            status = self.client.info().get("DriverStatus") or []
        return _CONTAINERD_STORE not in status

    def load(self, parts: Iterator[bytes]) -> None:
        with self.faults("loading the image"):
            for message in self.client.load_image(parts, quiet=False):
                fault = message.get("error") if isinstance(message, Mapping) else None
                if fault:
                    raise UnavailableError(
                        "oci.engine-failed",
                        f"the Docker engine at {self.address} does not take the image",
                        found=clean(str(fault), 500),
                    )

    def close(self) -> None:
        self.client.close()


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
