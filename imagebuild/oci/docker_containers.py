"""Containers of a Docker engine (Engine API v1.40 and later), as far as running one command to its end needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, Protocol

from imagebuild.errors import UnavailableError
from imagebuild.oci.docker_engine import DockerEngine

_NOT_FOUND = 404
_NOT_RUNNING = 409


class Containers(Protocol):
    """What is asked of an engine.  Each call raises UnavailableError `oci.engine-unreachable` or `oci.engine-failed`."""

    @property
    def address(self) -> str: ...

    def info(self) -> Mapping[str, Any]:
        """What the engine says of itself (`GET /info`)."""
        ...

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Makes a container by the API's own words (`POST /containers/create`); its id."""
        ...

    def start(self, container: str) -> None: ...

    def state(self, container: str) -> Mapping[str, Any] | None:
        """`State` of a container; None where there is none of that id or name."""
        ...

    def logs(self, container: str, *, stdout: bool, stderr: bool, limit: int) -> bytes:
        """The first `limit` bytes that it printed."""
        ...

    def log_tail(self, container: str, lines: int) -> bytes: ...

    def kill(self, container: str) -> None:
        """KILL; nothing where it does not run any more."""
        ...

    def stop(self, container: str, grace: int) -> None:
        """TERM, then KILL after `grace` seconds."""
        ...

    def put(self, container: str, archive: bytes) -> None:
        """Unpacks a tar at the container's root."""
        ...

    def get(self, container: str, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A stream of a tar of a folder in the container."""
        ...

    def remove(self, container: str) -> None:
        """Removes it with its volumes, running or not; nothing where there is none."""
        ...

    def labelled(self, label: str) -> list[tuple[str, Mapping[str, str]]]:
        """Id and labels of every container, also stopped ones, that has a label of that name."""
        ...

    def image_names(self, repository: str) -> list[tuple[str, str]]:
        """Id and `REPOSITORY:TAG` of every image that has a name in the repository, once for each of them."""
        ...

    def tag_image(self, image: str, name: str) -> bool:
        """Gives an image one more name, `REPOSITORY:TAG`; False where it is not there (any more)."""
        ...

    def remove_image(self, name: str) -> None:
        """Takes the name away, and the image where that was its last; nothing where a container is made of it."""
        ...

    def close(self) -> None: ...


class DockerContainers:
    """`Containers` of the engine that the environment names."""

    def __init__(self) -> None:
        self._engine = DockerEngine()
        self._client = self._engine.client

    @property
    def address(self) -> str:
        return self._engine.address

    def info(self) -> Mapping[str, Any]:
        with self._engine.faults("asking what it is"):
            found: Mapping[str, Any] = self._client.info()
        return found

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        with self._engine.faults(f"making the container {name}"):
            return str(self._client.create_container_from_config(dict(config), name)["Id"])

    def start(self, container: str) -> None:
        with self._engine.faults(f"starting the container {container[:40]}"):
            self._client.start(container)

    def state(self, container: str) -> Mapping[str, Any] | None:
        found: dict[str, Any] = {}
        with _unless(_NOT_FOUND), self._engine.faults(f"looking at the container {container[:40]}"):
            found.update(self._client.inspect_container(container)["State"])
        return found or None

    def logs(self, container: str, *, stdout: bool, stderr: bool, limit: int) -> bytes:
        kept = bytearray()
        with self._engine.faults(f"reading what the container {container[:40]} printed"):
            parts = self._client.logs(container, stdout=stdout, stderr=stderr, stream=True)
            for part in parts:
                kept += part[: limit - len(kept)]
                if len(kept) >= limit:
                    break
            parts.close()
        return bytes(kept)

    def log_tail(self, container: str, lines: int) -> bytes:
        with self._engine.faults(f"reading what the container {container[:40]} printed"):
            return bytes(self._client.logs(container, stdout=True, stderr=True, tail=lines))

    def kill(self, container: str) -> None:
        with _unless(_NOT_FOUND, _NOT_RUNNING), self._engine.faults(f"killing the container {container[:40]}"):
            self._client.kill(container, "KILL")

    def stop(self, container: str, grace: int) -> None:
        with _unless(_NOT_FOUND), self._engine.faults(f"stopping the container {container[:40]}"):
            self._client.stop(container, timeout=grace)

    def put(self, container: str, archive: bytes) -> None:
        with self._engine.faults(f"putting files into the container {container[:40]}"):
            self._client.put_archive(container, "/", archive)

    @contextlib.contextmanager
    def get(self, container: str, path: str) -> Iterator[IO[bytes]]:
        with self._engine.faults(f"reading files of the container {container[:40]}"):
            parts, _ = self._client.get_archive(container, path)
            yield _Parts(parts)  # type: ignore[misc]

    def remove(self, container: str) -> None:
        with _unless(_NOT_FOUND, _NOT_RUNNING), self._engine.faults(f"removing the container {container[:40]}"):
            self._client.remove_container(container, force=True, v=True)

    def labelled(self, label: str) -> list[tuple[str, Mapping[str, str]]]:
        with self._engine.faults("listing its containers"):
            listed = self._client.containers(all=True, filters={"label": label})
        return [(str(item["Id"]), item.get("Labels") or {}) for item in listed]

    def image_names(self, repository: str) -> list[tuple[str, str]]:
        with self._engine.faults("listing its images"):
            listed = self._client.images(name=repository)
        names = [(str(item["Id"]), str(name)) for item in listed for name in item.get("RepoTags") or ()]
        return [one for one in names if one[1].rpartition(":")[0] == repository]

    def tag_image(self, image: str, name: str) -> bool:
        repository, _, tag = name.rpartition(":")
        done: list[bool] = []
        with _unless(_NOT_FOUND), self._engine.faults(f"naming the image {image}"):
            done.append(self._client.tag(image, repository, tag))
        return done == [True]

    def remove_image(self, name: str) -> None:
        with _unless(_NOT_FOUND, _NOT_RUNNING), self._engine.faults(f"removing the image {name}"):
            self._client.remove_image(name)

    def close(self) -> None:
        self._engine.close()


@contextlib.contextmanager
def _unless(*statuses: int) -> Iterator[None]:
    """Passes over answers of the engine with one of these HTTP statuses."""
    try:
        yield
    except UnavailableError as error:
        if error.details.get("status") not in statuses:
            raise


class _Parts:
    """Pieces of bytes as a stream."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        out = [self._held]
        held = len(self._held)
        while size < 0 or held < size:
            part = next(self._parts, None)
            if part is None:
                break
            out.append(part)
            held += len(part)
        data = b"".join(out)
        self._held = b"" if size < 0 else data[size:]
        return data if size < 0 else data[:size]
