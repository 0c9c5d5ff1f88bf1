"""Keys for the tests of evidence: made once, since nothing depends on which they are."""

from __future__ import annotations

import pytest

from imagebuild.attest.keys import KeySigner
from imagebuild.attest.public_key import ED25519


@pytest.fixture(scope="session")
def signer() -> KeySigner:
    return KeySigner.make()


@pytest.fixture(scope="session")
def other() -> KeySigner:
    """A second key, of the other algorithm."""
    return KeySigner.make(ED25519)


@pytest.fixture(scope="session")
def stranger() -> KeySigner:
    return KeySigner.make()
