"""Ports for servers that must be told where to listen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, from below those that the system gives away.

    A port that the system picked (`bind` to 0) is one that it gives to the next who asks, before our server listens on it.
    """
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    out: list[int] = []
    for port in random.sample(range(_LOWEST, max(above, _LOWEST + 1000)), 1000):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        out.append(port)
        if len(out) == count:
            return out
    raise AssertionError("of a thousand ports none was free")
