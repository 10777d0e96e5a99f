"""Figures of a producer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.metric import Sample

if TYPE_CHECKING:
    from rollstream.producers.engine.failures import Failures
    from rollstream.producers.engine.gather import Gatherer
    from rollstream.producers.engine.topics import Topics
    from rollstream.producers.engine.waits import Waiting


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Figures of a producer since it was made.

    Attributes:
        outstanding: entries that are gathered or on their way.
        held_bytes: of them.
        delivered: entries that are in the log.
        failed: entries that are not, or perhaps not, in the log.
        waiting: calls that wait now, by cause: ``room`` in the buffer, ``topic`` to be known,
            ``flush`` until all is delivered, ``admission`` to begin groups.
    """

    outstanding: int
    held_bytes: int
    delivered: int
    failed: int
    waiting: Mapping[str, int]

    def samples(self) -> Iterator[Sample]:
        """Yields the same for Prometheus."""
        yield of.PRODUCER_OUTSTANDING.sample(self.outstanding)
        yield of.PRODUCER_HELD.sample(self.held_bytes)
        yield of.PRODUCER_SENT.sample(self.delivered)
        yield of.PRODUCER_FAILED.sample(self.failed)
        for cause, calls in self.waiting.items():
            yield of.PRODUCER_WAITS.sample(calls, cause)


def stats_of(
    gatherer: Gatherer, waiting: Waiting, topics: Topics, failures: Failures
) -> ProducerStats:
    """The figures of an engine. Any thread may ask: each is one that its owner sets at once."""
    return ProducerStats(
        outstanding=gatherer.entries,
        held_bytes=gatherer.held_bytes,
        delivered=failures.delivered,
        failed=failures.failed,
        waiting={
            "room": len(waiting.queue),
            "topic": sum(map(len, [*topics.asked.values()])),
            "flush": len(waiting.flushes),
        },
    )
