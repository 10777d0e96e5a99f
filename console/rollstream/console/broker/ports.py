"""Picks free ports for a broker once, and keeps them with its data."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollstream.console.broker.errors import EmbeddedKafkaError, PortTaken
from rollstream.console.broker.properties import LOOPBACK

# Below Linux' range for outgoing connections, in which a client that retries a dead broker may be
# given the broker's port and connect to itself. Above the ports that Ray's workers take.
FIRST_PORT = 20_000
LAST_PORT = 32_000


class Ports(NamedTuple):
    """The clients' port, and the port of the broker's controller."""

    broker: int
    controller: int


def settle_ports(data: Path, wanted: int | None) -> Ports:
    """The ports of a data folder: those of its earlier start, else free ones.

    Args:
        data: the data folder, held by this process.
        wanted: the clients' port that the user asked for, if any; later starts use it too.

    Raises:
        PortTaken: another process listens on one of them.
    """
    kept = data / "ports.json"
    if kept.exists():
        try:
            ports = Ports(**json.loads(kept.read_text()))
        except (ValueError, TypeError) as broken:
            raise EmbeddedKafkaError(
                f"{kept} holds {kept.read_text()!r} and not two ports: delete that file"
            ) from broken
        ports = ports._replace(broker=wanted or ports.broker)
    else:
        free = (port for port in free_ports() if port != wanted)
        ports = Ports(broker=wanted or next(free), controller=next(free))
    for port in ports:
        if not is_free(port):
            raise PortTaken(
                f"port {port} on {LOOPBACK} is in use by another process, and the broker over "
                f"{data} needs it: stop that process, ask for another port, or use another folder"
            )
    # Replaced atomically: a torn file would keep the broker from starting.
    fresh = kept.with_suffix(".new")
    fresh.write_text(json.dumps(ports._asdict()))
    os.replace(fresh, kept)
    return ports


def is_free(port: int) -> bool:
    """True where this process could listen on the port now."""
    with socket.socket() as probe:
        # As Java does. Otherwise connections that have just ended would count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports() -> Iterator[int]:
    """Yields ports on which no process listens at the moment, each once."""
    count = LAST_PORT - FIRST_PORT
    # Processes that start at the same moment begin with different ports.
    start = os.getpid() * 7919 % count
    for step in range(count):
        port = FIRST_PORT + (start + step) % count
        if is_free(port):
            yield port
    raise PortTaken(f"no port between {FIRST_PORT} and {LAST_PORT} is free on {LOOPBACK}")
