"""What a sealer shows to Prometheus, and whether it is alive and ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollstream.consumers.sealing.stats import PartitionStats, SealerStats
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.liveness import Heartbeat
from rollstream.runtime.metrics.metric import Sample
from rollstream.runtime.metrics.timings import Observe, Timings, observe_nothing
from rollstream.runtime.metrics.watched import Watched, expose
from rollstream.store import Blobs
from rollstream.store.timed import TimedBlobs
from rollstream.streams.broker import Broker
from rollstream.streams.timed import TimedBroker


class SealerMetrics:
    """Shows a sealer's figures from ``show`` to ``close``, if ``metrics.port`` is set; else it
    costs nothing.

    Args:
        memory_max: ``sealers.memory_bytes``.

    Attributes:
        observe: takes durations.
    """

    def __init__(self, config: MetricsConfig, clock: Clock, memory_max: int) -> None:
        self._loop = Heartbeat(clock)
        self._hung = ""
        self._config = config
        self._clock = clock
        self._memory_max = memory_max
        self._timings = None if config.port is None else Timings()
        self.observe: Observe = observe_nothing if self._timings is None else self._timings.observe
        self._end: Callable[[], None] = lambda: None

    def timed_broker(self, broker: Broker) -> Broker:
        """The broker, timed where metrics are shown."""
        timings = self._timings
        return broker if timings is None else TimedBroker(broker, timings, self._clock)

    def timed_store(self, blobs: Blobs) -> Blobs:
        """The store, likewise."""
        timings = self._timings
        return blobs if timings is None else TimedBlobs(blobs, timings, self._clock)

    def came_round(self, hangs: Callable[[float], str]) -> None:
        """The sealer's loop came round.

        Args:
            hangs: which call of the store has not ended for so many seconds; empty: none.
        """
        self._loop.beat()
        if self._timings is not None:
            self._hung = hangs(self._config.stalled_after_s)

    def show(self, stats: Callable[[], SealerStats], unready: Callable[[], str]) -> None:
        """Opens the port. Both are called by other threads.

        Args:
            unready: why it seals nothing so far; empty: it does.
        """

        def stalled() -> str:
            age_s = self._loop.age_s()
            if age_s > self._config.stalled_after_s:
                return f"the loop has not come round for {age_s:.0f} s"
            return self._hung

        watched = Watched("sealer", lambda: self._samples(stats()), stalled, unready)
        self._end = expose(self._config.host, self._config.port, watched)

    def close(self) -> None:
        """Closes the port, if this process shows nothing else there. Idempotent."""
        self._end()

    def _samples(self, stats: SealerStats) -> Iterator[Sample]:
        yield of.SEALER_LOOP_AGE.sample(self._loop.age_s())
        yield of.SEALER_MEMORY_MAX.sample(self._memory_max)
        yield from samples(stats)
        if self._timings is not None:
            yield from self._timings.samples()


def samples(stats: SealerStats) -> Iterator[Sample]:
    """Yields the samples of a sealer's figures."""
    yield of.SEALER_DEAD_LETTERS.sample(stats.dead_letters)
    yield of.SEALER_MEMORY.sample(stats.memory_bytes)
    for name, one in stats.environments.items():
        yield of.SEALER_READ.sample(one.read, name)
        yield of.SEALER_READ_BYTES.sample(one.read_bytes, name)
        yield of.SEALER_SEGMENTS.sample(one.segments, name)
        yield of.SEALER_GROUPS.sample(one.groups, name)
        yield of.SEALER_FLUSHES.sample(one.flushes, name)
        yield of.SEALER_WRITTEN_BYTES.sample(one.written_bytes, name)
        yield of.SEALER_SEAL.sample(one.seal_times, name)
        yield of.SEALER_OWNED.sample(sum(p.environment == name for p in stats.partitions), name)
        for reason, entries in one.settled.items():
            yield of.SEALER_SETTLED.sample(entries, name, reason)
    for partition in stats.partitions:
        yield from _of_partition(partition)


def _of_partition(stats: PartitionStats) -> Iterator[Sample]:
    where = stats.environment, str(stats.partition)
    yield of.SEALER_POSITION.sample(stats.position, *where)
    yield of.SEALER_WATERMARK.sample(stats.watermark, *where)
    yield of.SEALER_PENDING.sample(stats.pending, *where)
    yield of.SEALER_PENDING_BYTES.sample(stats.pending_bytes, *where)
    yield of.SEALER_PENDING_GROUPS.sample(stats.pending_groups, *where)
    yield of.SEALER_DECIDED.sample(stats.decided, *where)
    yield of.SEALER_BACKLOG.sample(stats.backlog_s, *where)
    yield of.SEALER_WAITS_FOR_ROOM.sample(stats.waits_for_room, *where)
    yield of.SEALER_FOREIGN.sample(stats.foreign, *where)
    yield of.SEALER_ASIDE.sample(bool(stats.aside), *where)
    yield of.SEALER_SCORES_ASIDE.sample(bool(stats.scores_aside), *where)
    yield of.SEALER_TROUBLE.sample(bool(stats.trouble), *where)
