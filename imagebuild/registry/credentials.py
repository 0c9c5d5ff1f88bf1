"""Credentials as docker and podman keep them.

Files, in this order, the first that has an entry for the host wins: `$DOCKER_CONFIG/config.json` (else
`~/.docker/config.json`), `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`,
`~/.config/containers/auth.json`.  In each file: `credHelpers`, then `credsStore`, then `auths`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.errors import ImagebuildError, InputError, UnavailableError
from imagebuild.oci.reference import HUB
from imagebuild.registry.secret import Secret
from imagebuild.registry.surroundings import Surroundings, read_settings_file

if TYPE_CHECKING:
    from imagebuild.host import process

HUB_KEY = "https://index.docker.io/v1/"
HELPER_DEADLINE = 30.0
"""Seconds that a credential helper may take."""
TOKEN_USER = "<token>"
_HELPER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_HUB_KEYS = (HUB_KEY, "index.docker.io", HUB, "registry-1.docker.io")

Run = Callable[..., "process.Finished"]


@dataclass(frozen=True, slots=True)
class Credential:
    """What a registry is told of us: user and password, an identity token (exchanged at the token server), or a
    registry token (sent as it is).  Nothing of it is shown, the user's name neither."""

    username: str = field(default="", repr=False)
    password: Secret | None = field(default=None, repr=False)
    identity_token: Secret | None = field(default=None, repr=False)
    registry_token: Secret | None = field(default=None, repr=False)

    @classmethod
    def of_pair(cls, username: str, secret: str) -> Credential | None:
        """User and secret as helpers give them; the user `<token>` marks an identity token."""
        if username == TOKEN_USER:
            return cls(identity_token=Secret(secret)) if secret else None
        return cls(username, Secret(secret)) if username or secret else None


def _bad_file(path: Path, what: str) -> InputError:
    return InputError(
        "registry.bad-credentials",
        f"{path}: {what}",
        hint="write the file again with `docker login HOST` or `podman login HOST`",
    )


def _keys(host: str, path: str) -> Iterator[str]:
    """The keys under which a file may hold a repository's credential, most specific first."""
    parts = path.split("/") if path else []
    for length in range(len(parts), 0, -1):
        yield "/".join([host, *parts[:length]])
    if host == HUB:
        yield from _HUB_KEYS
        return
    yield host
    for scheme in ("https://", "http://"):
        for tail in ("", "/", "/v1/", "/v2/", "/v1", "/v2"):
            yield f"{scheme}{host}{tail}"


class Credentials:
    """Finds the credential for a repository.  Files are read once, when first asked; each helper is asked once a key.

    `run` starts helper programs, imagebuild.host.process.run where none is given (`docker-credential-NAME get`, the server on standard input).
    """

    def __init__(self, surroundings: Surroundings | None = None, run: Run | None = None) -> None:
        self._surroundings = surroundings or Surroundings()
        self._run = run
        self._lock = threading.Lock()
        self._documents: list[tuple[Path, Mapping[str, Any]]] | None = None
        self._helped: dict[tuple[str, str], Credential | None] = {}

    def lookup(self, host: str, path: str = "") -> Credential | None:
        """The credential for `host/path`, or None (anonymous).

        Raises InputError `registry.bad-credentials`, UnavailableError `registry.credential-helper`; no message holds
        anything of what was found.
        """
        with self._lock:
            for file, document in self._load():
                found = self._in_document(file, document, host, path)
                if found is not None:
                    return found
        return None

    def part(self, host: str, path: str) -> str:
        """The part of a registry that `path` shares a credential with: "" (all of it) unless a file has an entry for
        `HOST/some/path`.  A file that cannot be read is no fault here: it is one when a credential is needed."""
        with self._lock:
            try:
                documents = self._load()
            except ImagebuildError:
                return ""
        for _, document in documents:
            for section in ("auths", "credHelpers"):
                entries = document.get(section)
                if isinstance(entries, dict) and any(key.startswith(f"{host}/") for key in entries):
                    return path
        return ""

    def files(self) -> Sequence[Path]:
        """Where credentials are looked for, in order, whether the files exist or not."""
        around = self._surroundings
        docker = around.variable("DOCKER_CONFIG")
        out = [(Path(docker) if docker else around.home / ".docker") / "config.json"]
        named = around.variable("REGISTRY_AUTH_FILE")
        if named:
            out.append(Path(named))
        runtime = around.variable("XDG_RUNTIME_DIR")
        if runtime:
            out.append(Path(runtime) / "containers" / "auth.json")
        out.append(around.containers_folder / "auth.json")
        return out

    def _load(self) -> list[tuple[Path, Mapping[str, Any]]]:
        if self._documents is None:
            documents: list[tuple[Path, Mapping[str, Any]]] = []
            for file in self.files():
                data = read_settings_file(file, "registry.bad-credentials")
                if data is None or not data.strip():
                    continue
                try:
                    value = json.loads(data.decode("utf-8"))
                except (ValueError, RecursionError):
                    raise _bad_file(file, "not valid JSON") from None
                if not isinstance(value, dict):
                    raise _bad_file(file, "not a JSON object")
                documents.append((file, value))
            self._documents = documents
        return self._documents

    def _in_document(self, file: Path, document: Mapping[str, Any], host: str, path: str) -> Credential | None:
        keys = list(_keys(host, path))
        helpers = document.get("credHelpers")
        if isinstance(helpers, dict):
            for key in keys:
                name = helpers.get(key)
                if isinstance(name, str) and name:
                    found = self._ask(file, name, HUB_KEY if host == HUB and "/" not in key.strip("/") else key)
                    if found is not None:
                        return found
        store = document.get("credsStore")
        if isinstance(store, str) and store:
            found = self._ask(file, store, HUB_KEY if host == HUB else host)
            if found is not None:
                return found
        auths = document.get("auths")
        if isinstance(auths, dict):
            for key in keys:
                entry = auths.get(key)
                if isinstance(entry, dict):
                    found = _entry(file, key, entry)
                    if found is not None:
                        return found
        return None

    def _ask(self, file: Path, name: str, server: str) -> Credential | None:
        if not _HELPER_NAME.match(name):
            raise _bad_file(file, "the name of a credential helper must be a plain word")
        known = (name, server)
        if known not in self._helped:
            self._helped[known] = self._help(name, server)
        return self._helped[known]

    def _program(self) -> Run:
        if self._run is not None:
            return self._run
        from imagebuild.host import process

        return process.run

    def _help(self, name: str, server: str) -> Credential | None:
        program = f"docker-credential-{name}"

        def failed(why: str) -> UnavailableError:
            return UnavailableError(
                "registry.credential-helper",
                f"the credential helper {program} {why} for {server}",
                hint=f"run `echo {server} | {program} get` yourself; its output is a secret",
            )

        try:
            done = self._program()([program, "get"], deadline=HELPER_DEADLINE, stdin=server.encode())
        except UnavailableError as error:
            raise failed("is not installed" if error.code == "host.missing-program" else "did not end") from None
        if done.code != 0:
            # The helpers' protocol has no exit code for "none": it is this sentence on standard output.
            if b"not found" in (done.stdout + done.stderr).lower():
                return None
            raise failed(f"failed with exit code {done.code}")
        try:
            answer = json.loads(done.stdout.decode("utf-8"))
            user, secret = answer["Username"], answer["Secret"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise failed("gave an answer that is not the protocol's") from None
        if not isinstance(user, str) or not isinstance(secret, str):
            raise failed("gave an answer that is not the protocol's")
        return Credential.of_pair(user, secret)


def _entry(file: Path, key: str, entry: Mapping[str, Any]) -> Credential | None:
    def text(name: str) -> str:
        value = entry.get(name)
        return value if isinstance(value, str) else ""

    username, password = text("username"), text("password")
    if text("auth"):
        try:
            pair = base64.b64decode(text("auth"), validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            raise _bad_file(file, f"auths.{key}.auth is not base64 of USER:PASSWORD") from None
        username, colon, password = pair.partition(":")
        if not colon:
            raise _bad_file(file, f"auths.{key}.auth is not base64 of USER:PASSWORD")
        password = password.rstrip("\0")
    if text("identitytoken"):
        return Credential(username, identity_token=Secret(text("identitytoken")))
    if text("registrytoken"):
        return Credential(registry_token=Secret(text("registrytoken")))
    return Credential.of_pair(username, password)
