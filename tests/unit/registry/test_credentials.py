"""Credentials are found in docker's and podman's order and are never shown."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imagebuild.errors import ImagebuildError, InputError, UnavailableError
from imagebuild.host.process import Finished
from imagebuild.registry.credentials import HELPER_DEADLINE, HUB_KEY, Credential, Credentials
from imagebuild.registry.secret import Secret, SecretRegister, basic_value
from imagebuild.testing.registry_client import surroundings

HOST = "registry.example:5000"


class Helpers:
    """Credential helpers by program name: what they answer, and what they were asked."""

    def __init__(self, answers: Mapping[str, Finished | ImagebuildError]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def __call__(self, command: list[str], *, deadline: float, stdin: bytes = b"", **other: Any) -> Finished:
        assert deadline == HELPER_DEADLINE
        assert command[1:] == ["get"]
        self.asked.append((command[0], stdin.decode()))
        answer = self.answers[command[0]]
        if isinstance(answer, ImagebuildError):
            raise answer
        return answer


def answer(user: str, secret: str) -> Finished:
    return Finished(0, json.dumps({"ServerURL": "x", "Username": user, "Secret": secret}).encode(), b"")


NONE = Finished(1, b"credentials not found in native keychain\n", b"")


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def docker(folder: Path, document: object) -> None:
    write(folder / "home" / ".docker" / "config.json", document)


def passwords(found: Credential | None) -> str | None:
    return None if found is None or found.password is None else found.password.reveal()


def look(
    folder: Path, host: str = HOST, path: str = "", helpers: Helpers | None = None, **variables: str
) -> Credential | None:
    return Credentials(surroundings(folder, variables), helpers or Helpers({})).lookup(host, path)


def test_helper_before_store_before_auths(tmp_path: Path) -> None:
    """rancher-sandbox/rancher-desktop#2321"""
    document: dict[str, Any] = {
        "credHelpers": {HOST: "own"},
        "credsStore": "desktop",
        "auths": {HOST: auth("file", "from-auths")},
    }
    helpers = Helpers(
        {"docker-credential-own": answer("u", "from-own"), "docker-credential-desktop": answer("u", "from-store")}
    )
    docker(tmp_path, document)
    assert passwords(look(tmp_path, helpers=helpers)) == "from-own"
    assert helpers.asked == [("docker-credential-own", HOST)]
    del document["credHelpers"]
    docker(tmp_path, document)
    assert passwords(look(tmp_path, helpers=helpers)) == "from-store"
    del document["credsStore"]
    docker(tmp_path, document)
    assert passwords(look(tmp_path, helpers=helpers)) == "from-auths"


def test_a_helper_without_an_entry_is_followed_by_the_next(tmp_path: Path) -> None:
    docker(tmp_path, {"credHelpers": {HOST: "own"}, "credsStore": "desktop", "auths": {HOST: auth("u", "last")}})
    helpers = Helpers({"docker-credential-own": NONE, "docker-credential-desktop": NONE})
    assert passwords(look(tmp_path, helpers=helpers)) == "last"
    assert len(helpers.asked) == 2


def test_each_helper_is_asked_once(tmp_path: Path) -> None:
    docker(tmp_path, {"credsStore": "desktop"})
    helpers = Helpers({"docker-credential-desktop": answer("u", "p")})
    credentials = Credentials(surroundings(tmp_path), helpers)
    assert credentials.lookup(HOST) == credentials.lookup(HOST)
    assert len(helpers.asked) == 1


@pytest.mark.parametrize("user", ["<token>"])
def test_the_user_token_means_an_identity_token(tmp_path: Path, user: str) -> None:
    """moby/moby#36926"""
    docker(tmp_path, {"credsStore": "desktop"})
    found = look(tmp_path, helpers=Helpers({"docker-credential-desktop": answer(user, "identity")}))
    assert found is not None
    assert found.identity_token == Secret("identity")
    assert found.password is None


def test_forms_of_entries(tmp_path: Path) -> None:
    docker(
        tmp_path,
        {
            "auths": {
                "a.example": {"username": "u", "password": "p:with:colons"},
                "b.example": auth("u", "p:with:colons"),
                "c.example": {"identitytoken": "identity", **auth("u", "x")},
                "d.example": {"registrytoken": "registry"},
                "e.example": {},
                "https://f.example/v2/": auth("u", "old-form"),
            }
        },
    )
    assert passwords(look(tmp_path, "a.example")) == "p:with:colons"
    assert passwords(look(tmp_path, "b.example")) == "p:with:colons"
    assert look(tmp_path, "c.example") == Credential("u", identity_token=Secret("identity"))
    assert look(tmp_path, "d.example") == Credential(registry_token=Secret("registry"))
    assert look(tmp_path, "e.example") is None
    assert passwords(look(tmp_path, "f.example")) == "old-form"
    assert look(tmp_path, "g.example") is None


@pytest.mark.parametrize("key", [HUB_KEY, "docker.io", "index.docker.io"])
def test_docker_hub_has_a_key_of_its_own(tmp_path: Path, key: str) -> None:
    docker(tmp_path, {"auths": {key: auth("u", "hub")}})
    assert passwords(look(tmp_path, "docker.io", "library/debian")) == "hub"
    docker(tmp_path, {"credHelpers": {key: "own"}})
    helpers = Helpers({"docker-credential-own": answer("u", "hub")})
    assert passwords(look(tmp_path, "docker.io", helpers=helpers)) == "hub"
    assert helpers.asked == [("docker-credential-own", HUB_KEY)]


def test_the_most_specific_entry_wins(tmp_path: Path) -> None:
    docker(
        tmp_path,
        {"auths": {HOST: auth("u", "all"), f"{HOST}/team": auth("u", "team"), f"{HOST}/team/x": auth("u", "x")}},
    )
    assert passwords(look(tmp_path, path="team/x")) == "x"
    assert passwords(look(tmp_path, path="team/y")) == "team"
    assert passwords(look(tmp_path, path="teams/y")) == "all"
    credentials = Credentials(surroundings(tmp_path))
    assert credentials.part(HOST, "team/x") == "team/x"
    assert credentials.part("other.example", "team/x") == ""


def test_the_files_in_order(tmp_path: Path) -> None:
    variables = {
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "REGISTRY_AUTH_FILE": str(tmp_path / "auth-file.json"),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    files = [
        tmp_path / "docker" / "config.json",
        tmp_path / "auth-file.json",
        tmp_path / "runtime" / "containers" / "auth.json",
        tmp_path / "home" / ".config" / "containers" / "auth.json",
    ]
    assert Credentials(surroundings(tmp_path, variables)).files() == files
    docker(tmp_path, {"auths": {HOST: auth("u", "not read: DOCKER_CONFIG is set")}})
    for file in reversed(files):
        write(file, {"auths": {HOST: auth("u", file.name + file.parent.name)}})
        assert passwords(look(tmp_path, **variables)) == file.name + file.parent.name


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    docker(tmp_path, {})
    (tmp_path / "home" / ".docker" / "config.json").write_bytes(b"  \n")
    assert look(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"auths": {"a": {"auth": "c2VjcmV0LWluLWZpbGU',
        "[]",
        '"secret-in-file"',
        json.dumps({"auths": {HOST: {"auth": "secret-in-file!"}}}),
        json.dumps({"auths": {HOST: {"auth": base64.b64encode(b"secret-in-file").decode()}}}),
        json.dumps({"auths": {HOST: {"auth": base64.b64encode(b"\xff:secret-in-file").decode()}}}),
        json.dumps({"credsStore": "../../bin/secret-in-file"}),
    ],
)
def test_a_bad_file_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    docker(tmp_path, {})
    path = tmp_path / "home" / ".docker" / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        look(tmp_path)
    assert caught.value.code == "registry.bad-credentials"
    assert str(path) in caught.value.message
    shown = json.dumps(caught.value.document()) + str(caught.value) + repr(caught.value.__cause__)
    assert "secret" not in shown
    assert "c2Vj" not in shown


@pytest.mark.parametrize(
    "result",
    [
        Finished(1, b"secret-of-helper", b"secret-of-helper"),
        Finished(0, b"secret-of-helper", b""),
        Finished(0, b'{"Secret": "secret-of-helper"}', b""),
        Finished(0, b'{"Username": 1, "Secret": "secret-of-helper"}', b""),
        Finished(0, b"[]", b""),
        UnavailableError("host.missing-program", "secret-of-helper"),
        UnavailableError("host.deadline", "secret-of-helper"),
    ],
)
def test_a_failing_helper_is_said_and_its_output_is_not(tmp_path: Path, result: Finished | ImagebuildError) -> None:
    docker(tmp_path, {"credsStore": "desktop"})
    with pytest.raises(UnavailableError) as caught:
        look(tmp_path, helpers=Helpers({"docker-credential-desktop": result}))
    assert caught.value.code == "registry.credential-helper"
    assert "docker-credential-desktop" in caught.value.message
    assert "secret-of-helper" not in str(caught.value) + json.dumps(caught.value.document())


def test_a_secret_shows_nothing() -> None:
    secret = Secret("hunter2-hunter2")
    credential = Credential("user-name", secret, secret, secret)
    for text in (repr(secret), str(secret), f"{secret:>40}", f"{secret!r}", repr(credential), str([secret])):
        assert "hunter2" not in text
        assert "user-name" not in text
    assert json.dumps({"s": secret}, default=str) == '{"s": "***"}'
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert copy.deepcopy(secret) is copy.copy(secret) is secret
    assert secret == Secret("hunter2-hunter2")
    assert secret != Secret("another")
    assert len({secret, Secret("hunter2-hunter2")}) == 1
    assert not Secret("")


def test_text_that_repeats_a_secret_is_known() -> None:
    register = SecretRegister()
    register.add(Secret("p/w d"))
    for text in ("x p/w d y", "p%2Fw%20d", "p%2Fw+d", base64.b64encode(b"p/w d").decode()):
        assert register.repeated_in(text)
    assert not register.repeated_in("p w d")
    assert "p/w" not in repr(register)
    register.add(Secret(""))
    assert not register.repeated_in("anything")


def test_basic_is_utf_8() -> None:
    assert base64.b64decode(basic_value("ü", Secret("€")).reveal()).decode() == "ü:€"


def test_a_real_helper_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "docker-credential-echoing"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nread server\nprintf \'{"ServerURL":"%s","Username":"%s","Secret":"p"}\' "$server" "$1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    docker(tmp_path, {"credsStore": "echoing"})
    found = Credentials(surroundings(tmp_path)).lookup(HOST)
    assert found == Credential("get", Secret("p"))
    docker(tmp_path, {"credsStore": "of-nobody"})
    with pytest.raises(UnavailableError, match="docker-credential-of-nobody is not installed"):
        Credentials(surroundings(tmp_path)).lookup(HOST)
