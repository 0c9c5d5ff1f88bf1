"""A proxy on loopback that holds each request back for a while before it passes it on, and writes down when each began
and ended.  Its own program, so that its work is not the measured program's.

    python delaying_proxy.py --to 127.0.0.1:5000 --delay 0.05 --log FILE      prints its port
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import TextIO

CHUNK = 1 << 18
_TLS = b"\x16"
"""How a TLS handshake begins: a server of plain HTTP refuses it at once."""


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(
    reader: asyncio.StreamReader, write: Callable[[bytes], None], writer: asyncio.StreamWriter, headers: dict[str, str]
) -> int:
    """Passes one body on as it is framed (RFC 9112, 6.3); the number of its bytes."""
    count = 0
    if "chunked" in headers.get("transfer-encoding", ""):
        while True:
            line = await reader.readuntil(b"\r\n")
            write(line)
            size = int(line.split(b";")[0], 16)
            write(await reader.readexactly(size + 2))
            await writer.drain()
            count += size
            if size == 0:
                return count
    left = int(headers.get("content-length", "0"))
    while left:
        data = await reader.read(min(CHUNK, left))
        if not data:
            raise asyncio.IncompleteReadError(data, left)
        write(data)
        await writer.drain()
        left -= len(data)
        count += len(data)
    return count


class Proxy:
    def __init__(self, host: str, port: int, delay: float, log: TextIO) -> None:
        self.host, self.port, self.delay, self.log = host, port, delay, log

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = None
        try:
            far, upstream = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
            while await self._exchange(reader, writer, far, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            if upstream is not None:
                upstream.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        first = await reader.readexactly(1)
        if first == _TLS:
            return False
        head = first + await reader.readuntil(b"\r\n\r\n")
        begun = time.monotonic()
        await asyncio.sleep(self.delay)
        method, target = head.split(b" ", 2)[:2]
        asked = _headers(head)
        upstream.write(head)
        sending = asyncio.create_task(_body(reader, upstream.write, upstream, asked))
        try:
            while True:
                answer = await far.readuntil(b"\r\n\r\n")
                writer.write(answer)
                status = int(answer.split(b" ", 2)[1])
                if status >= 200:
                    break
            told = _headers(answer)
            empty = method == b"HEAD" or status in (204, 304)
            down = 0 if empty else await _body(far, writer.write, writer, told)
            await writer.drain()
            up = await sending
        finally:
            sending.cancel()
        line = {
            "method": method.decode(),
            "target": target.decode(),
            "status": status,
            "begun": begun,
            "ended": time.monotonic(),
            "up": up,
            "down": down,
        }
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        return "close" not in (asked.get("connection", "") + told.get("connection", "")).lower()


def rounds(requests: list[tuple[float, float]]) -> int:
    """The length of the longest chain of requests that each began after the one before had ended."""
    count, free_at = 0, float("-inf")
    for begun, ended in sorted(requests, key=lambda pair: pair[1]):
        if begun >= free_at:
            count, free_at = count + 1, ended
    return count


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--log", required=True)
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    with open(options.log, "a", encoding="utf-8") as log:
        proxy = Proxy(host, int(port), options.delay, log)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
