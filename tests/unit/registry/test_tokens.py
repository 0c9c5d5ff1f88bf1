"""Challenges, tokens and where credentials go."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.registry.challenge import format_scopes, parse_challenges, parse_scopes, repository_scopes
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.registry_state import Tokens

IMAGE = make_image(ImageSpec(()))
PASSWORD = "pass-word-1"

Start = Callable[..., RegistryDouble]
Connect = Callable[..., RegistryClient]


@pytest.fixture
def begin(start: Start, connect: Connect) -> Callable[..., tuple[RegistryDouble, RegistrySource]]:
    """A double that asks for tokens or Basic, an image in it, and a source with these credentials."""

    def made(entry: dict[str, Any] | None = None, **settings: Any) -> tuple[RegistryDouble, RegistrySource]:
        double = start(**settings)
        double.put_image("a/b", IMAGE, "v1")
        auths = {"auths": {double.host: entry}} if entry is not None else None
        client = connect(time=FakeTime(double), docker_config=auths)
        return double, RegistrySource(client, repository_at(double, "a/b"))

    return made


LOGIN = {"username": "me", "password": PASSWORD}


def test_without_a_challenge_no_credential_is_shown(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN)
    source.resolve("v1")
    assert "authorization" not in double.log[0].headers


def test_a_token_is_asked_for_with_service_scope_and_login(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}))
    source.resolve("v1")
    asked = double.requests("token")[0]
    assert asked.query == "service=the+double&scope=repository%3Aa%2Fb%3Apull&client_id=imagebuild"
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    assert [r.headers.get("authorization") for r in double.requests("^HEAD")] == [None, "Bearer token-0-of-the-double"]


def test_a_token_is_kept_for_what_it_covers(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}))
    source.read_document(source.resolve("v1").digest)
    source.tags()
    assert len(double.requests("token")) == 1
    assert source.statistics.requests == 3
    assert source.client.statistics.snapshot().authentication == 2


def test_a_token_that_has_run_out_is_not_sent(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}, life=60))
    source.resolve("v1")
    double.advance(56)
    source.tags()
    assert [request.status for request in double.requests("tags")] == [200]
    assert len(double.requests("token")) == 2


def test_anonymous_tokens(begin: Callable[..., Any]) -> None:
    double, source = begin(tokens=Tokens())
    assert source.resolve("v1").digest == IMAGE.digest
    assert "authorization" not in double.requests("token")[0].headers


def test_a_token_that_serves_once_is_fetched_again_for_each_request(begin: Callable[..., Any]) -> None:
    """moby/moby#33558"""
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}, uses=1))
    source.resolve("v1")
    source.tags()
    assert [request.status for request in double.requests("tags")] == [401, 200]


def test_an_identity_token_is_exchanged_with_a_post(begin: Callable[..., Any]) -> None:
    tokens = Tokens(identity=frozenset({"identity-secret"}))
    double, source = begin({"username": "<token>", "password": "identity-secret"}, tokens=tokens)
    source.resolve("v1")
    asked = double.requests("token")[0]
    assert asked.method == "POST"
    assert asked.query == ""


def test_a_registry_token_is_sent_as_it_is(begin: Callable[..., Any]) -> None:
    tokens = Tokens()
    tokens.issue(["repository:a/b:pull"], 0)
    double, source = begin({"registrytoken": "token-0-of-the-double"}, tokens=tokens)
    source.resolve("v1")
    assert double.requests("token") == []


def test_basic(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, basic={"me": PASSWORD})
    source.resolve("v1")
    source.tags()
    assert [request.status for request in double.log] == [401, 200, 200]


@pytest.mark.parametrize("settings", [{"basic": {"me": "another"}}, {"tokens": Tokens(users={"me": "another"})}])
def test_a_wrong_password_is_refused_and_not_shown(begin: Callable[..., Any], settings: dict[str, Any]) -> None:
    double, source = begin(LOGIN, **settings)
    with pytest.raises(RefusedError) as caught:
        source.resolve("v1")
    assert caught.value.code == "registry.denied"
    assert PASSWORD not in str(caught.value)
    assert f"log in to {double.host} " in (caught.value.hint or "")
    assert caught.value.found == f"a credential for {double.host}, which did not suffice"
    assert len(double.log) <= 3


@pytest.mark.parametrize(
    "settings", [{"basic": {"me": "another"}}, {"tokens": Tokens(users={"me": "another"}, grants=lambda *_: False)}]
)
def test_who_never_logged_in_is_told_so(begin: Callable[..., Any], settings: dict[str, Any]) -> None:
    double, source = begin(**settings)
    with pytest.raises(RefusedError) as caught:
        source.resolve("v1")
    assert caught.value.code == "registry.denied"
    assert (caught.value.found or "").startswith(f"no credential for {double.host} ")


def test_a_right_that_one_does_not_have_is_not_asked_for_again_and_again(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}, grants=lambda resource, action: False))
    double.fault("token", skip=0, times=0)
    with pytest.raises(RefusedError) as caught:
        source.resolve("v1")
    assert caught.value.code == "registry.denied"
    assert len(double.requests("^HEAD")) <= 3


def test_insufficient_scope_ends_it_at_once(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}))
    scope = 'scope="repository:a/b:pull",error="insufficient_scope"'
    challenge = f'Bearer realm="http://{double.host}/token",service="the double",{scope}'
    double.fault("^HEAD", skip=1, times=99, status=401, headers={"WWW-Authenticate": challenge})
    with pytest.raises(RefusedError):
        source.resolve("v1")
    assert len(double.requests("^HEAD")) == 2


def test_basic_is_not_answered_by_a_token_and_bearer_comes_first(begin: Callable[..., Any]) -> None:
    double, source = begin(LOGIN, tokens=Tokens(users={"me": PASSWORD}))
    both = f'Basic realm="x", Bearer realm="http://{double.host}/token",scope="repository:a/b:pull"'
    double.fault("^HEAD", status=401, headers={"WWW-Authenticate": both})
    source.resolve("v1")
    assert double.requests("^HEAD")[-1].headers["authorization"].startswith("Bearer ")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"token": 7}',
        b'{"token": "with\\nnewline"}',
        b'{"token": ""}',
        b'{"token": "\\u20ac"}',
    ],
)
def test_an_unusable_token_is_said_without_showing_it(begin: Callable[..., Any], body: bytes) -> None:
    double, source = begin(tokens=Tokens())
    double.fault("token", status=200, body=body)
    with pytest.raises(UnavailableError) as caught:
        source.resolve("v1")
    assert caught.value.code == "registry.bad-token"
    assert "newline" not in str(caught.value)


def test_a_token_server_does_not_lead_to_another_host(begin: Callable[..., Any], start: Start) -> None:
    """The password would go along, or, with an identity token, the body."""
    elsewhere = start()
    for entry in (LOGIN, {"identitytoken": "identity-secret"}):
        double, source = begin(entry, tokens=Tokens(users={"me": PASSWORD}))
        double.fault("token", status=307, headers={"Location": f"http://{elsewhere.host}/token"})
        with pytest.raises(UnavailableError) as caught:
            source.resolve("v1")
        assert caught.value.code == "registry.bad-redirect"
    assert elsewhere.log == []


@pytest.mark.parametrize("realm", ["", "nothing", "file:///etc/passwd", "http://me:pw@host/token", "http://"])
def test_a_realm_that_cannot_be_asked(begin: Callable[..., Any], realm: str) -> None:
    double, source = begin(LOGIN)
    double.fault("^HEAD", times=9, status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
    with pytest.raises(ImagebuildError) as caught:
        source.resolve("v1")
    assert caught.value.code in ("registry.bad-challenge", "registry.denied")


def test_a_busy_token_server_is_waited_for(begin: Callable[..., Any]) -> None:
    double, source = begin(tokens=Tokens())
    double.fault("token", times=2, status=503)
    assert source.resolve("v1").digest == IMAGE.digest


def test_challenges_are_read_by_their_grammar() -> None:
    found = parse_challenges(
        ['Bearer realm="https://a/t?x=1,2" , service = "s \\"q\\"",scope="repository:a:pull"', "Basic realm=x, Digest"]
    )
    assert [(c.scheme, dict(c.parameters)) for c in found] == [
        ("bearer", {"realm": "https://a/t?x=1,2", "service": 's "q"', "scope": "repository:a:pull"}),
        ("basic", {"realm": "x"}),
        ("digest", {}),
    ]


@pytest.mark.parametrize("line", ["", ",", '"', 'Bearer realm="unfinished', "=x", "\x00", "Bearer a b c = d"])
def test_a_broken_challenge_is_no_fault(line: str) -> None:
    assert all(challenge.scheme for challenge in parse_challenges([line]))


def test_scopes_are_sets() -> None:
    scopes = repository_scopes("b", "push", "pull") | repository_scopes("a", "pull")
    assert format_scopes(scopes) == ["repository:a:pull", "repository:b:pull,push"]
    assert parse_scopes("repository:b:push,pull repository:a:pull nonsense x:y") == scopes


def test_credentials_of_a_part_of_a_registry(start: Start, connect: Connect) -> None:
    """podman's auth.json may name HOST/PATH."""
    double = start(basic={"team": PASSWORD})
    double.put_image("team/b", IMAGE, "v1")
    double.put_image("other/b", IMAGE, "v1")
    client = connect(docker_config={"auths": {f"{double.host}/team": {"username": "team", "password": PASSWORD}}})
    assert RegistrySource(client, repository_at(double, "team/b")).resolve("v1").digest == IMAGE.digest
    with pytest.raises(RefusedError):
        RegistrySource(client, repository_at(double, "other/b")).resolve("v1")
