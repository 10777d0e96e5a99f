"""Connections over which a test sends bytes of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from harness.served_gateway import TIMEOUT_S


@contextmanager
def connection(port: int, sent: bytes = b"") -> Iterator[socket.socket]:
    """One to that port of this machine; ``sent`` at once."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connected:
        connected.sendall(sent)
        yield connected


def received(connected: socket.socket) -> bytes:
    """All that came until the other side ended the connection."""
    parts = []
    while part := connected.recv(65_536):
        parts.append(part)
    return b"".join(parts)
