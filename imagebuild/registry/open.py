"""From a reference to a source or sink."""

from __future__ import annotations

import functools

from imagebuild.oci.reference import DigestReference, RegistryReference
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.credentials import Credentials
from imagebuild.registry.retry import RetryPolicy, Timing
from imagebuild.registry.settings import RegistryOptions, RegistrySettings
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.registry.transport import Transport


def make_client(
    options: RegistryOptions, *, policy: RetryPolicy | None = None, timing: Timing | None = None
) -> RegistryClient:
    """A client of its own: connections, tokens and memory are shared with no other.

    Raises InputError `registry.bad-settings` where registries.conf or a proxy variable cannot be read.
    """
    settings = RegistrySettings(options)
    return RegistryClient(Transport(settings, Credentials(options.surroundings), policy, timing))


@functools.lru_cache(maxsize=8)
def open_client(options: RegistryOptions) -> RegistryClient:
    """The client of this process for these options: sources and sinks that share it share tokens, connections and what
    they already know."""
    return make_client(options)


def open_source(
    reference: RegistryReference, options: RegistryOptions | None = None, *, client: RegistryClient | None = None
) -> RegistrySource:
    """The repository of a reference; `resolve(None)` then means the reference's digest, else its tag."""
    default = reference.digest if isinstance(reference, DigestReference) else reference.tag
    return RegistrySource(client or open_client(options or RegistryOptions()), reference.repository, default=default)


def open_sink(
    reference: RegistryReference, options: RegistryOptions | None = None, *, client: RegistryClient | None = None
) -> RegistrySink:
    """The repository of a reference, to push to."""
    options = options or RegistryOptions()
    return RegistrySink(
        client or open_client(options), reference.repository, allow_base_transfer=options.allow_base_transfer
    )
