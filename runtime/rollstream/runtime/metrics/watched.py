"""What a process shows, and the one server of its address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rollstream.runtime.extras import how_to_install
from rollstream.runtime.metrics.metric import Sample
from rollstream.schemas.errors import MissingExtra

if TYPE_CHECKING:
    from rollstream.runtime.metrics.server import MetricsServer

LOOPBACK = "127.0.0.1"


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """An object whose figures the process shows. Each function is called by the server's threads
    and by the one that ends it, and may wait for a second.

    Attributes:
        name: of the part: `sealer`, `sampler NAME`, `gateway`, `producers`.
        samples: its figures.
        stalled: why it is not alive, in words; empty: it is.
        unready: why it does not serve, in words; empty: it does.
    """

    name: str
    samples: Callable[[], Iterable[Sample]]
    stalled: Callable[[], str] = _nothing
    unready: Callable[[], str] = _nothing


_servers: dict[tuple[str, int], MetricsServer] = {}
_lock = threading.Lock()


def expose(host: str, port: int | None, watched: Watched) -> Callable[[], None]:
    """Shows it at the address, beside whatever else this process shows there; returns what ends
    that. An address that is taken is logged, and tried again until it is free.

    Args:
        port: None: nothing is shown. 0: any that is free; the log names it.

    Raises:
        MissingExtra: ``prometheus_client`` is not installed.
    """
    if port is None:
        return lambda: None
    if find_spec("prometheus_client") is None:
        raise MissingExtra(
            f"metrics.port is {port} and prometheus_client is not installed: "
            f"{how_to_install('metrics')}, or leave metrics.port out"
        )
    # Only who shows metrics needs what it loads.
    from rollstream.runtime.metrics.server import MetricsServer  # noqa: PLC0415

    with _lock:
        server = _servers.get((host, port))
        if server is None or server.is_of_parent:
            server = _servers[host, port] = MetricsServer(host, port)
        server.exposition.add(watched)

    def end() -> None:
        if server.is_of_parent:
            return  # Another thread of the parent may have held what the figures need.
        with _lock:
            if server.exposition.remove(watched):
                _servers.pop((host, port), None)
                server.close()

    return end
