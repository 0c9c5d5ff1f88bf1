"""A scripted registry and a client for it, for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from imagebuild.registry.client import RegistryClient
from imagebuild.testing.registry_client import FakeTime, client_for
from imagebuild.testing.registry_double import RegistryDouble


@pytest.fixture
def start() -> Iterator[Callable[..., RegistryDouble]]:
    """Starts doubles, which end with the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(RegistryDouble(**settings))


@pytest.fixture
def double(start: Callable[..., RegistryDouble]) -> RegistryDouble:
    return start()


@pytest.fixture
def time(double: RegistryDouble) -> FakeTime:
    return FakeTime(double)


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., RegistryClient]]:
    """Makes clients whose machine is the test's folder; they are closed with the test."""
    with ExitStack() as stack:

        def made(**settings: Any) -> RegistryClient:
            client = client_for(tmp_path, **settings)
            stack.callback(client.close)
            return client

        yield made


@pytest.fixture
def client(connect: Callable[..., RegistryClient], time: FakeTime) -> RegistryClient:
    return connect(time=time)
