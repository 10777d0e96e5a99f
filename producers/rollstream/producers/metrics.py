"""Shows producers' figures to Prometheus, for a worker that asks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

from rollstream.producers.engine.producer import Connected
from rollstream.producers.errors import InvalidSettings
from rollstream.runtime.metrics.metric import Kind, Sample
from rollstream.runtime.metrics.watched import LOOPBACK, Watched, expose

PORT_MAX = 65_535


def serve_metrics(*producers: Connected, port: int, host: str = LOOPBACK) -> Callable[[], None]:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` of these producers; returns what ends that.

    Producers of one process share an address, and their figures are added up. A producer that is
    closed is not alive; of one that is collected its counts stay. Nothing is served in a forked
    child.
    Needs the ``metrics`` extra.

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
    watched = [weakref.ref(one) for one in producers]
    counts: list[list[Sample]] = [[] for _ in producers]  # A sum that falls would look like a rise.

    def samples() -> Iterator[Sample]:
        for number, known in enumerate(watched):
            producer = known()
            if producer is not None:
                found = [*producer.stats().samples()]
                counts[number] = [one for one in found if one.metric.kind is Kind.COUNTER]
            yield from counts[number] if producer is None else found

    def stalled() -> str:
        living = [one for known in watched if (one := known()) is not None]
        return next((str(why) for one in living if (why := one.refusal) is not None), "")

    return expose(host, port, Watched("producers", samples, stalled))
