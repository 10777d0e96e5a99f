"""Shows producers' figures to Prometheus, for a worker that asks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from rollstream.producers.engine.producer import Connected
from rollstream.producers.errors import InvalidSettings
from rollstream.runtime.metrics.metric import Sample
from rollstream.runtime.metrics.watched import LOOPBACK, Watched, expose

PORT_MAX = 65_535


def serve_metrics(*producers: Connected, port: int, host: str = LOOPBACK) -> Callable[[], None]:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` of these producers; returns what ends that.

    Producers of one process share an address, and their figures are added up. A producer that is
    closed is not alive. The counts of a producer that is collected, or whose handle ends while
    others are shown, stay in the sums: do not serve it again, or they count twice. Nothing is
    served in a forked child. Needs the ``metrics`` extra.

    Args:
        producers: one or more.
        port: 0: any that is free; the log names it.
        host: there are no tokens: on another address than loopback everybody who reaches it may
            read.

    Raises:
        InvalidSettings: the port is none.
        MissingExtra: ``prometheus_client`` is not installed.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= PORT_MAX:
        raise InvalidSettings("port", port, f"give a whole number from 0 to {PORT_MAX}")
    ends = [expose(host, port, _watched(weakref.ref(one))) for one in producers]

    def end() -> None:
        for one in ends:
            one()

    return end


def _watched(known: weakref.ref[Connected]) -> Watched:
    """A producer that metrics do not keep."""

    def samples() -> Iterable[Sample]:
        producer = known()
        return () if producer is None else producer.stats().samples()

    def stalled() -> str:
        producer = known()
        return "" if producer is None or producer.refusal is None else str(producer.refusal)

    return Watched("producers", samples, stalled)
