"""Digests: one algorithm, one spelling."""

import hashlib

import pytest

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.errors import InputError


def test_of_bytes_is_their_sha256() -> None:
    assert str(Digest.of(b"abc")) == "sha256:" + hashlib.sha256(b"abc").hexdigest()


def test_parse_is_the_inverse_of_text() -> None:
    digest = Digest.of(b"x")
    assert Digest.parse(str(digest)) == digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "a" * 63,
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 64 + "\n",
        "sha512:" + "a" * 128,
        "a" * 64,
    ],
)
def test_every_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Digest.parse(text)
    assert caught.value.code == "content.bad-digest"


def test_git_blob_id_is_gits() -> None:
    # `printf 'hello\n' | git hash-object --stdin`, a value that every git prints
    assert git_blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert git_blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
