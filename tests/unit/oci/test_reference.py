"""The grammar of references, rule by rule, and hostile text."""

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.oci.reference import (
    DaemonReference,
    DigestReference,
    PathReference,
    Reference,
    Repository,
    TagReference,
    is_pinned,
    parse_reference,
    parse_registry_reference,
    parse_repository,
)

HEX = "0123456789abcdef" * 4
PIN = Digest(HEX)
LIBRARY = Repository("docker.io", "library/debian")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("debian", TagReference(LIBRARY, "latest")),
        ("docker.io/debian", TagReference(LIBRARY, "latest")),
        ("index.docker.io/debian:12", TagReference(LIBRARY, "12")),
        ("registry-1.docker.io/library/debian", TagReference(LIBRARY, "latest")),
        ("docker://debian:12", TagReference(LIBRARY, "12")),
        ("vllm/vllm-openai:v1", TagReference(Repository("docker.io", "vllm/vllm-openai"), "v1")),
        (f"debian@sha256:{HEX}", DigestReference(LIBRARY, PIN)),
        (f"debian:12@sha256:{HEX}", DigestReference(LIBRARY, PIN, "12")),
        (f"debian:sha256:{HEX}", DigestReference(LIBRARY, PIN)),
        (f"docker://nvcr.io#nvidia/cuda:sha256:{HEX}", DigestReference(Repository("nvcr.io", "nvidia/cuda"), PIN)),
        ("nvcr.io#nvidia/cuda:12", TagReference(Repository("nvcr.io", "nvidia/cuda"), "12")),
        ("localhost/x", TagReference(Repository("localhost", "x"), "latest")),
        ("localhost:5000/x/y:z", TagReference(Repository("localhost:5000", "x/y"), "z")),
        ("localhost:5000", TagReference(Repository("docker.io", "library/localhost"), "5000")),
        ("[::1]:5000/x", TagReference(Repository("[::1]:5000", "x"), "latest")),
        ("[::1]/x:t", TagReference(Repository("[::1]", "x"), "t")),
        ("10.0.0.1:65535/x", TagReference(Repository("10.0.0.1:65535", "x"), "latest")),
        ("Host/x", TagReference(Repository("Host", "x"), "latest")),
        ("foo/bar", TagReference(Repository("docker.io", "foo/bar"), "latest")),
        ("a.b/c__d/e-f/g---h/i.j", TagReference(Repository("a.b", "c__d/e-f/g---h/i.j"), "latest")),
        ("docker:27", TagReference(Repository("docker.io", "library/docker"), "27")),
        ("oci:build/T", PathReference("oci", "build/T")),
        ("oci:/d/l:name", PathReference("oci", "/d/l", "name")),
        ("oci:/d/l:docker.io/x/y:t", PathReference("oci", "/d/l", "docker.io/x/y:t")),
        ("oci:/d/l:v1:t", PathReference("oci", "/d/l", "v1:t")),
        ("oci:/with space/ü:n", PathReference("oci", "/with space/ü", "n")),
        ("oci:d:", PathReference("oci", "d")),
        (f"oci:d@sha256:{HEX}", PathReference("oci", "d", None, PIN)),
        (f"oci:d:n@sha256:{HEX}", PathReference("oci", "d", "n", PIN)),
        ("oci:a@b", PathReference("oci", "a@b")),
        ("oci-archive:f.tar:n", PathReference("oci-archive", "f.tar", "n")),
        ("docker-archive:f.tar:repo:tag", PathReference("docker-archive", "f.tar", "repo:tag")),
        ("docker-archive:f.tar:h.io/a/b:tag", PathReference("docker-archive", "f.tar", "h.io/a/b:tag")),
        ("docker-daemon:x:1", DaemonReference("x:1")),
        ("dir:/root:fs", PathReference("dir", "/root:fs")),
    ],
)
def test_parse(text: str, found: Reference) -> None:
    assert parse_reference(text) == found
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a b",
        "a\nb",
        "a\x00b",
        "Debian",
        "döbian",
        "debian:",
        "debian:-x",
        "debian:.x",
        "debian:a/b:c d",
        "debian:" + "t" * 129,
        "debian@",
        "debian@sha256:12",
        f"debian@sha256:{HEX.upper()}",
        f"debian@sha512:{HEX}{HEX}",
        f"debian@sha256:{HEX}@sha256:{HEX}",
        f"debian:sha256:{HEX}@sha256:{HEX}",
        f"user@host.io/x@sha256:{HEX}",
        "http://h.io/x",
        "docker://https://h.io/x",
        "docker://",
        "h.io/",
        "h.io//x",
        "/x",
        "x/",
        "h.io/x/../y",
        "h.io/./x",
        "h.io/x..y",
        "h.io/-x",
        "h.io/x-",
        "h.io/_x",
        "h.io/x___y",
        "h.io:/x",
        "h.io:0/x",
        "h.io:65536/x",
        "h.io:99999999999999999999/x",
        "h.io:5a/x",
        "-h.io/x",
        "h_.io/x",
        "h..io/x",
        "h.io?q/x",
        "h.io/x?y=z",
        "h.io/x#y",
        "[::1/x",
        "[gg::1]/x",
        "u:p@h.io/x",
        "h.io/" + "a" * 256,
        "a" * 5000,
        "oci:",
        "oci::name",
        "oci:d:-x",
        "oci:d:a b",
        "oci:d:a//b",
        "oci:d:../x",
        "oci:d\x1b[2J",
        "oci:d@sha256:zz",
        f"oci:d@sha256:{HEX}x",
        f"oci:d@sha256:{HEX}:name",
        "oci:" + "d" * 5000,
        f"docker-archive:f@sha256:{HEX}",
        f"docker-archive:f:x@sha256:{HEX}",
        "docker-archive:f:Bad",
        "dir:",
        "docker-daemon:",
        "docker-daemon:A",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_reference(text)
    assert caught.value.code in ("oci.bad-reference", "content.bad-digest")
    assert len(caught.value.message) < 2100


def test_long_hostile_text_takes_no_time() -> None:
    """Quadratic or worse matching would show as minutes here."""
    for text in (
        "h-" * 200_000 + "!/x",
        "h.io/" + "a-" * 200_000 + "!",
        "x:" + "t" * 1_000_000,
        "oci:d:" + "a." * 200_000,
    ):
        with pytest.raises(InputError):
            parse_reference(text)


@pytest.mark.parametrize(
    ("host", "path"),
    [("plain", "x"), ("docker.io", "debian"), ("h.io", "X"), ("h.io", ""), ("", "x"), ("h.io:70000", "x")],
)
def test_a_repository_validates_itself(host: str, path: str) -> None:
    with pytest.raises(InputError):
        Repository(host, path)


def test_values_validate_themselves() -> None:
    with pytest.raises(InputError):
        TagReference(LIBRARY, "a b")
    with pytest.raises(InputError):
        DigestReference(LIBRARY, PIN, "")
    with pytest.raises(InputError):
        PathReference("tar", "x")
    with pytest.raises(InputError):
        PathReference("dir", "x", "name")
    with pytest.raises(InputError):
        PathReference("oci", "a:b")
    with pytest.raises(InputError):
        PathReference("oci", "a@sha256", "name")
    with pytest.raises(InputError):
        PathReference("oci", "a\x7f")
    with pytest.raises(InputError):
        PathReference("oci", "a", f"n@sha256:{HEX}")


def test_only_digests_pin() -> None:
    assert is_pinned(parse_reference(f"debian@sha256:{HEX}"))
    assert is_pinned(parse_reference(f"oci:d@sha256:{HEX}"))
    for text in ("debian:12", "oci:d:n", "docker-daemon:x", "dir:/x"):
        assert not is_pinned(parse_reference(text))


def test_repository_and_registry_forms() -> None:
    assert parse_repository("debian") == LIBRARY
    assert str(parse_registry_reference("debian")) == "docker.io/library/debian:latest"
    with pytest.raises(InputError):
        parse_repository("h.io/a:b")
