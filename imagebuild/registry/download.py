"""Fetching a file from a web address, once, into a file on disk; its digest is the caller's to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from imagebuild.errors import UnavailableError
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.failure import DroppedConnection, show_url
from imagebuild.registry.transport import Request, ResponseStream

BLOCK = 1 << 20


def download(
    client: RegistryClient, url: str, out: BinaryIO, limit: int, progress: Callable[[int], None] | None = None
) -> int:
    """Writes the bytes at `url` into `out`, from its beginning, and gives their number; at most `limit` are taken.

    Proxies, certificates, redirects and repeats are the registry client's; no credentials are sent.  A connection that
    breaks is taken up where it broke where the server can (RFC 9110, 14), else from the beginning.  Raises what the
    transport raises, and UnavailableError `registry.download-too-large`.
    """
    transport = client.transport
    attempts = transport.attempts()
    done = 0
    validator: str | None = None
    while True:
        headers = {"Range": f"bytes={done}-", "If-Range": validator} if done and validator else {}
        if not headers:
            done = 0
            out.seek(0)
            out.truncate()
        request = Request("GET", url, None, headers=headers, accept=(200, 206), doing=f"fetching {show_url(url)}")
        stream = transport.open(request)
        if stream.status == 206 and not _continues(stream, done):
            stream.close()
            validator = None
            attempts.pause(
                UnavailableError(
                    "registry.unexpected-status", f"{show_url(url)} answered with another part of the file"
                )
            )
            continue
        if stream.status == 200 and done:
            done = 0
            out.seek(0)
            out.truncate()
        etag = stream.headers.get("ETag")
        validator = etag if etag and not etag.startswith("W/") else None
        try:
            with stream:
                while part := stream.read(BLOCK):
                    done += len(part)
                    if done > limit:
                        raise UnavailableError(
                            "registry.download-too-large",
                            f"{show_url(url)} gives more bytes than it may",
                            expected=f"at most {limit} bytes",
                        )
                    out.write(part)
                    if progress is not None:
                        progress(len(part))
            return done
        except DroppedConnection as error:
            attempts.pause(error)


def _continues(stream: ResponseStream, done: int) -> bool:
    return stream.headers.get("Content-Range", "").startswith(f"bytes {done}-")
