"""registries.conf, certs.d, proxies, and how a host is spoken to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.reference import parse_repository
from imagebuild.registry.proxies import Proxies, Proxy, is_loopback, parse_proxy
from imagebuild.registry.registries_conf import parse_registries
from imagebuild.registry.settings import RegistryOptions, RegistrySettings, wire_host
from imagebuild.testing.registry_client import surroundings

CONF = """
unqualified-search-registries = ["docker.io"]

[[registry]]
location = "docker.io"
[[registry.mirror]]
location = "mirror.example:5000/hub"
[[registry.mirror]]
location = "second.example"
pull-from-mirror = "digest-only"
insecure = true

[[registry]]
prefix = "docker.io/secret"
location = "internal.example/moved"

[[registry]]
location = "bad.example"
blocked = true

[[registry]]
prefix = "*.corp.example"
insecure = true

[[registry]]
location = "plain.example"
insecure = true
"""


def settings(
    folder: Path, conf: str | None = CONF, variables: dict[str, str] | None = None, **options: Any
) -> RegistrySettings:
    if conf is not None:
        path = folder / "etc" / "containers" / "registries.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(conf)
    return RegistrySettings(RegistryOptions(surroundings=surroundings(folder, variables), **options))


def places(made: RegistrySettings, name: str, by_digest: bool = True) -> list[tuple[str, bool]]:
    return [(str(p.repository), p.mirror) for p in made.pull_locations(parse_repository(name), by_digest)]


def test_mirrors_come_first_and_the_registry_last(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert places(made, "vllm/vllm-openai") == [
        ("mirror.example:5000/hub/vllm/vllm-openai", True),
        ("second.example/vllm/vllm-openai", True),
        ("docker.io/vllm/vllm-openai", False),
    ]
    assert places(made, "vllm/vllm-openai", by_digest=False) == [
        ("mirror.example:5000/hub/vllm/vllm-openai", True),
        ("docker.io/vllm/vllm-openai", False),
    ]
    assert places(made, "other.example/a/b") == [("other.example/a/b", False)]


def test_the_longest_prefix_counts_and_moves(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert places(made, "docker.io/secret/x") == [("internal.example/moved/x", False)]
    assert places(made, "docker.io/secrets/x")[-1] == ("docker.io/secrets/x", False)


def test_blocked(tmp_path: Path) -> None:
    made = settings(tmp_path)
    for ask in (made.push_location, lambda repository: made.pull_locations(repository, True)):
        with pytest.raises(RefusedError) as caught:
            ask(parse_repository("bad.example/x"))
        assert caught.value.code == "registry.blocked"


def test_security_of_hosts(tmp_path: Path) -> None:
    made = settings(tmp_path, plain_http=frozenset({"p.example"}), insecure=frozenset({"i.example"}))
    words = {
        host: made.security(host).word
        for host in (
            "p.example",
            "i.example",
            "plain.example",
            "second.example",
            "other.example",
            "127.0.0.1:5000",
            "localhost",
        )
    }
    assert words == {
        "p.example": "plain-http",
        "i.example": "tls-unverified",
        "plain.example": "tls-unverified",
        "second.example": "tls-unverified",
        "other.example": "tls",
        "127.0.0.1:5000": "loopback",
        "localhost": "loopback",
    }


def test_insecure_by_wildcard_is_for_the_hosts_below(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert made.security("a.corp.example").word == "tls-unverified"
    assert made.security("a.corp.example:5000").word == "tls-unverified"
    assert made.security("corp.example").word == "tls"
    assert places(made, "a.corp.example/x") == [("a.corp.example/x", False)]


def test_the_users_file_replaces_the_machines_and_drop_ins_add(tmp_path: Path) -> None:
    user = tmp_path / "home" / ".config" / "containers"
    (user / "registries.conf.d").mkdir(parents=True)
    (user / "registries.conf").write_text('[[registry]]\nlocation = "u.example"\nblocked = true\n')
    (user / "registries.conf.d" / "50.conf").write_text('[[registry]]\nlocation = "v.example"\nblocked = true\n')
    made = settings(tmp_path)
    made.push_location(parse_repository("bad.example/x"))
    for name in ("u.example/x", "v.example/x"):
        with pytest.raises(RefusedError):
            made.push_location(parse_repository(name))


def test_a_variable_names_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other.conf"
    other.write_text('[[registry]]\nlocation = "o.example"\nblocked = true\n')
    made = settings(tmp_path, variables={"CONTAINERS_REGISTRIES_CONF": str(other)})
    with pytest.raises(RefusedError):
        made.push_location(parse_repository("o.example/x"))
    made.push_location(parse_repository("bad.example/x"))


@pytest.mark.parametrize(
    "text",
    [
        "[[registry]",
        "registry = 1",
        "[[registry]]\ninsecure = true",
        '[[registry]]\nlocation = "x"\ninsecure = "yes"',
        '[[registry]]\nlocation = "https://x"',
        '[[registry]]\nlocation = "x"\nmirror = 1',
        '[[registry]]\nlocation = "x"\n[[registry.mirror]]\ninsecure = true',
        '[[registry]]\nlocation = "x"\n[[registry.mirror]]\nlocation = "y"\npull-from-mirror = "never"',
    ],
)
def test_a_bad_file_is_said(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_registries(text.encode(), "registries.conf")
    assert caught.value.code == "registry.bad-settings"
    assert "registries.conf" in caught.value.message


def test_mirrors_by_digest_only() -> None:
    text = '[[registry]]\nlocation = "x"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = "y"'
    mirror = parse_registries(text.encode(), "f")[0].mirrors[0]
    assert mirror.serves(by_digest=True)
    assert not mirror.serves(by_digest=False)


def test_certificates_are_found_by_host(tmp_path: Path) -> None:
    first = tmp_path / "etc" / "docker" / "certs.d" / "r.example:5000"
    second = tmp_path / "home" / ".config" / "containers" / "certs.d" / "r.example:5000"
    for folder, names in ((first, ["ca.crt"]), (second, ["other.crt", "client.cert", "client.key"])):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("")
    found = settings(tmp_path).certificates("r.example:5000")
    assert found.authorities == (first / "ca.crt", second / "other.crt")
    assert found.clients == ((second / "client.cert", second / "client.key"),)
    assert settings(tmp_path).certificates("r.example").authorities == ()
    (second / "client.key").unlink()
    with pytest.raises(InputError, match="no key"):
        settings(tmp_path).certificates("r.example:5000")


def test_a_missing_bundle_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CA bundle"):
        settings(tmp_path, ca_bundle=tmp_path / "none.pem")


def test_docker_hub_answers_under_another_host() -> None:
    assert wire_host("docker.io") == "registry-1.docker.io"
    assert wire_host("r.example:5000") == "r.example:5000"


PROXY = Proxy("http://proxy.example:3128")


@pytest.mark.parametrize(
    ("listed", "netloc", "direct"),
    [
        ("", "r.example", False),
        ("*", "r.example", True),
        ("r.example", "r.example:5000", True),
        ("example", "r.example", True),
        (".example", "r.example", True),
        (".r.example", "r.example", False),
        ("*.example", "r.example", True),
        ("xample", "r.example", False),
        ("r.example:443", "r.example", True),
        ("r.example:5000", "r.example", False),
        ("10.0.0.0/8", "10.1.2.3:5000", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.0.0.0/8", "r.example", False),
        ("a.example, r.example", "r.example", True),
        ("fd00::/8", "[fd00::1]:5000", True),
        ("", "127.0.0.1:5000", True),
        ("", "localhost", True),
    ],
)
def test_no_proxy(listed: str, netloc: str, direct: bool) -> None:
    made = Proxies.load({"HTTPS_PROXY": PROXY.url, "no_proxy": listed}.get)
    assert made.choose("https", netloc) == (None if direct else PROXY)
    assert made.choose("http", netloc) is None


def test_a_proxy_with_a_login_keeps_it_to_itself() -> None:
    made = parse_proxy("http://us%20er:p%40ss@proxy.example:3128/", "HTTPS_PROXY")
    assert (made.url, made.user) == ("http://proxy.example:3128", "us er")
    assert made.password is not None
    assert made.password.reveal() == "p@ss"
    assert "p@ss" not in repr(made)
    assert "us er" not in repr(made)
    assert parse_proxy("proxy.example", "HTTP_PROXY") == Proxy("http://proxy.example")


@pytest.mark.parametrize("text", ["socks5://secret@x", "http://", "http://x:port-secret", "http://:1"])
def test_a_bad_proxy_is_said_and_not_shown(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_proxy(text, "HTTPS_PROXY")
    assert "HTTPS_PROXY" in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("netloc", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST:5000", True),
        ("127.8.8.8", True),
        ("[::1]:5000", True),
        ("x.localhost", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_loopback(netloc: str, loopback: bool) -> None:
    assert is_loopback(netloc) is loopback
