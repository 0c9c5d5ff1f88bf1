"""BuildKit, driven through Docker's command line by python-on-whales: the one module that imports it.

The first `docker` in PATH that has buildx is taken; where none has, the first of a version before 23 with an engine that
embeds BuildKit (DOCKER_BUILDKIT=1).  Which engine they speak to is Docker's own matter (DOCKER_HOST, contexts).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError, clean
from imagebuild.host.environment import variable
from imagebuild.oci.platform import Platform

if TYPE_CHECKING:
    from python_on_whales import DockerClient

_EMBEDDED_BEFORE = 23
"""Clients from this major version on build with buildx only."""
_TAIL = 30
_OUTAGES = (
    "cannot connect to the docker daemon",
    "connection refused",
    "no such host",
    "i/o timeout",
    "no space left on device",
)


@dataclass(frozen=True, slots=True)
class StageBuild:
    """One build: a context and a Dockerfile laid out on disk; the root of the last stage goes to `tar`."""

    context: Path
    dockerfile: Path
    arguments: Mapping[str, str]
    network: str
    platform: Platform
    tar: Path


class Builder(Protocol):
    """What makes a stage."""

    @property
    def name(self) -> str:
        """Program and version, for the record."""
        ...

    def build(self, wanted: StageBuild, log: Callable[[str], None]) -> None:
        """Builds from nothing (no cache) and exports; `log` gets every line that the program writes."""
        ...


def find_builder() -> Builder:
    """Raises UnavailableError `stage.no-builder` where no program can build, saying what each lacks."""
    from python_on_whales import DockerClient

    lacking = []
    embedded: Builder | None = None
    for path in _candidates():
        client = DockerClient(client_call=[path])
        try:
            if client.buildx.is_installed():
                return _Buildx(client, f"{_buildx_version(client)}, docker engine {_server(client)}")
        except Exception as error:
            lacking.append(f"{path}: {_last_line(error)}")
            continue
        version = _client_version(client)
        if version is None or version >= _EMBEDDED_BEFORE:
            lacking.append(f"{path} has no buildx")
        elif embedded is None:
            try:
                embedded = _Embedded(client, f"docker engine {_server(client)}")
            except Exception as error:
                lacking.append(f"{path}: {_last_line(error)}")
    if embedded is not None:
        return embedded
    raise UnavailableError(
        "stage.no-builder",
        "a stage must be built, and nothing here can build it",
        expected="a docker client with buildx (or docker before version 23), and an engine that answers",
        found=clean("; ".join(lacking) or "no docker in PATH", 600),
        hint="start the engine, or name it in DOCKER_HOST; where a stage was built elsewhere, `artifact: REF@sha256:…` in the "
        "overlay brings its outputs",
    )


def _candidates() -> Iterator[str]:
    seen = set()
    for folder in (variable("PATH") or os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", "docker")
        real = os.path.realpath(path)
        if real not in seen and os.path.isfile(path) and os.access(path, os.X_OK):
            seen.add(real)
            yield path


def _client_version(client: DockerClient) -> int | None:
    """The major version of Docker's own client; None for another program under its name."""
    from python_on_whales.utils import run

    found = re.match(r"Docker version (\d+)\.", str(run([*client.client_config.docker_cmd, "--version"])))
    return int(found[1]) if found else None


def _buildx_version(client: DockerClient) -> str:
    words = client.buildx.version().split()
    return f"buildx {words[1]}" if len(words) > 1 else "buildx"


def _server(client: DockerClient) -> str:
    """The engine's version; raises where none answers."""
    server = client.version().server
    if server is None or server.version is None:
        raise ValueError("the engine does not answer")
    return str(server.version)


def _last_line(error: Exception) -> str:
    text = str(getattr(error, "stderr", None) or error).strip()
    return text.splitlines()[-1][:200] if text else type(error).__name__


class _Buildx:
    """`docker buildx build`."""

    def __init__(self, client: DockerClient, name: str) -> None:
        self._client = client
        self.name = name

    def build(self, wanted: StageBuild, log: Callable[[str], None]) -> None:
        lines = self._client.buildx.build(
            wanted.context,
            file=wanted.dockerfile,
            build_args=dict(wanted.arguments),
            network=wanted.network if wanted.network != "default" else None,
            output={"type": "tar", "dest": str(wanted.tar)},
            platforms=[str(wanted.platform)],
            cache=False,
            progress="plain",
            stream_logs=True,
        )
        _follow(lines, wanted, log)


class _Embedded:
    """`docker build` with the engine's own BuildKit, which python-on-whales has no call for: its command and its runner."""

    def __init__(self, client: DockerClient, name: str) -> None:
        self._client = client
        self.name = name

    def build(self, wanted: StageBuild, log: Callable[[str], None]) -> None:
        from python_on_whales.utils import stream_stdout_and_stderr

        command = self._client.client_config.docker_cmd
        command += ["build", "--progress", "plain", "--no-cache"]
        command.add_simple_arg("--file", wanted.dockerfile)
        command.add_args_mapping("--build-arg", wanted.arguments)
        if wanted.network != "default":
            command.add_simple_arg("--network", wanted.network)
        command.add_simple_arg("--platform", str(wanted.platform))
        command.add_simple_arg("--output", f"type=tar,dest={wanted.tar}")
        command.append(wanted.context)
        lines = stream_stdout_and_stderr(command, env={"DOCKER_BUILDKIT": "1"})
        _follow((text.decode("utf-8", "replace") for _, text in lines), wanted, log)


def _follow(lines: Any, wanted: StageBuild, log: Callable[[str], None]) -> None:
    """Hands the lines on; a failure becomes an error that shows the last of them."""
    from python_on_whales.exceptions import DockerException

    kept: list[str] = []
    try:
        for line in lines:
            text = clean(str(line).rstrip("\n"), 500)
            if text.strip():
                kept = [*kept[1 - _TAIL :], text]
                log(text)
    except DockerException as error:
        raise _failed(wanted, kept, error) from error
    except OSError as error:
        raise UnavailableError("stage.build-failed", f"docker cannot be run any more: {error}") from error
    if not wanted.tar.is_file():
        raise UnavailableError(
            "stage.build-failed", "BuildKit ended well and exported nothing", found="\n".join(kept[-5:]) or "no output"
        )


def _failed(wanted: StageBuild, kept: list[str], error: Any) -> ImagebuildError:
    """A step that fails says no; an engine that is away, or full, could not find out."""
    text = "\n".join(kept)
    away = any(word in text.lower() for word in _OUTAGES)
    return (UnavailableError if away else RefusedError)(
        "stage.build-failed",
        f"the stage does not build for {wanted.platform} (exit code {error.return_code})",
        found="\n".join(kept[-12:]) or "no output",
        hint="lines of the Dockerfile count one more for each FROM above them: ARG SOURCE_DATE_EPOCH is put in there",
    )
