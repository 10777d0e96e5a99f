"""What a sampler shows to Prometheus, and whether it is alive and ready."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.liveness import HeldLock
from rollstream.runtime.metrics.metric import Sample
from rollstream.runtime.metrics.timings import Observe, Timings, observe_nothing
from rollstream.runtime.metrics.watched import Watched, expose
from rollstream.sampler.decide.command import Unread
from rollstream.sampler.decide.queries.looks import SamplerStats
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.engine.ownership import Ownership
from rollstream.store.blobs import Blobs
from rollstream.store.timed import TimedBlobs
from rollstream.streams.broker import Broker
from rollstream.streams.timed import TimedBroker

LOOK_S = 1.0  # So long a scrape waits for a decision; then it shows only that one is under way.
QUANTILES = (0.0, 0.5, 1.0)


class SamplerMetrics:
    """Shows a sampler's figures from ``show`` to ``close``, if ``metrics.port`` is set; else it
    costs nothing.

    Attributes:
        deciding: held by the thread that decides.
        observe: takes durations.
    """

    def __init__(self, name: str, config: RollstreamConfig, clock: Clock) -> None:
        self.deciding = HeldLock(clock)
        self._name = name
        self._config = config
        self._clock = clock
        self._timings = None if config.metrics.port is None else Timings()
        self.observe: Observe = observe_nothing if self._timings is None else self._timings.observe
        self._hangs: Callable[[float], str] = lambda seconds: ""
        self._end: Callable[[], None] = lambda: None

    def timed_broker(self, broker: Broker) -> Broker:
        """The broker, timed where metrics are shown."""
        timings = self._timings
        return broker if timings is None else TimedBroker(broker, timings, self._clock)

    def timed_store(self, blobs: Blobs) -> Blobs:
        """The store, likewise."""
        timings = self._timings
        if timings is None:
            return blobs
        timed = TimedBlobs(blobs, timings, self._clock)
        self._hangs = timed.hangs
        return timed

    def show(
        self,
        stats: Callable[[], Unread[SamplerStats]],
        waiting: Callable[[], Iterable[Shortage | None]],
        ownership: Callable[[], Ownership],
        folding: Callable[[], str],
    ) -> None:
        """Opens the port.

        Args:
            stats: called by a thread that holds ``deciding``.
            waiting: what calls wait for; likewise. The others are called by any thread.
            folding: how far logs are folded that are read to their ends just now; empty: none are.
        """
        settings = self._config.metrics

        def stalled() -> str:
            if hung := self._hangs(settings.stalled_after_s):
                return hung
            held_s = self.deciding.held_s()
            if held_s <= settings.stalled_after_s or folding():  # Logs may be long.
                return ""
            return f"a decision has not ended for {held_s:.0f} s"

        def unready() -> str:
            now = ownership()
            if now.is_over:
                return now.why
            return folding() or ("" if now.state == "owner" else "no call has claimed its log")

        def all_samples() -> Iterator[Sample]:
            yield of.SAMPLER_BUSY.sample(self.deciding.held_s(), self._name)
            yield of.SAMPLER_OWNS.sample(ownership().state == "owner", self._name)
            if self._timings is not None:
                yield from self._timings.samples()
            if self.deciding.acquire(timeout=LOOK_S):
                try:
                    causes = Counter(map(_cause, waiting()))
                    figures = stats()
                finally:
                    self.deciding.release()
                yield from self._samples(figures.read(), causes)

        watched = Watched(f"sampler {self._name}", all_samples, stalled, unready)
        self._end = expose(settings.host, settings.port, watched)

    def close(self) -> None:
        """Closes the port, if this process shows nothing else there. Idempotent."""
        self._end()

    def _samples(self, stats: SamplerStats, causes: Mapping[str, int]) -> Iterator[Sample]:
        section = self._config.samplers[self._name]
        yield of.SAMPLER_OPEN_MAX.sample(section.max_open_batches, self._name)
        yield of.SAMPLER_CACHE_MAX.sample(section.cache_bytes, self._name)
        for cause, calls in causes.items():
            yield of.SAMPLER_CALLS.sample(calls, self._name, cause)
        yield from samples(stats, section.environments)


def _cause(shortage: Shortage | None) -> str:
    """Why a call waits, as a label's value."""
    if shortage is None:
        return "deciding"
    if shortage.held is not None:
        return "samples_per_insert"
    return "unfit" if shortage.unfit else "groups"


def samples(stats: SamplerStats, environments: Iterable[str]) -> Iterator[Sample]:
    """Yields the samples of a sampler's figures, but for those of the process that decides."""
    name = stats.name
    for environment in environments:
        here = name, environment
        yield of.SAMPLER_READY.sample(stats.ready.get(environment, 0), *here)
        yield of.SAMPLER_CAPACITY.sample(stats.capacity.get(environment, 0), *here)
        yield of.SAMPLER_PRODUCERS.sample(stats.producers.get(environment, 0), *here)
        waiting = stats.producers_waiting.get(environment, 0)
        yield of.SAMPLER_PRODUCERS_WAITING.sample(waiting, *here)
        yield of.SAMPLER_SCORES_BEHIND.sample(environment in stats.scores_behind, *here)
    for metric, value in (
        (of.SAMPLER_WAITING, stats.waiting),
        (of.SAMPLER_INSERTS, stats.inserts),
        (of.SAMPLER_USES, stats.uses),
        (of.SAMPLER_OPEN, stats.open_batches),
        (of.SAMPLER_OVERDUE, len(stats.overdue)),
        (of.SAMPLER_STEP, stats.next_step),
        (of.SAMPLER_POLICY, stats.newest_policy_step),
        (of.SAMPLER_READ, stats.groups_read),
        (of.SAMPLER_CACHED, stats.cached_bytes),
        (of.SAMPLER_DUPLICATES, stats.duplicates),
        (of.SAMPLER_DISPATCHED, stats.generator_queue_len),
        (of.SAMPLER_SCORES_EARLY, stats.scores_early),
        (of.SAMPLER_ASIDE, len(stats.aside)),
    ):
        yield metric.sample(value, name)
    yield of.SAMPLER_OVER_DELAY.sample(stats.over_step_delay, name, "max_rollout_step_delay")
    seconds = stats.over_timestamp_delay
    yield of.SAMPLER_OVER_DELAY.sample(seconds, name, "max_rollout_timestamp_delay")
    for outcome, groups in stats.outcomes.items():
        yield of.SAMPLER_OUTCOMES.sample(groups, name, outcome)
    for reason, scores in stats.scores_unused.items():
        yield of.SAMPLER_SCORES_UNUSED.sample(scores, name, reason)
    for quantile, lag in _quantiles(stats.policy_lag_histogram):
        yield of.SAMPLER_LAG.sample(lag, name, quantile)
    for quantile, ack_ms in (("0.5", stats.ack_latency_ms_p50), ("0.99", stats.ack_latency_ms_p99)):
        if ack_ms is not None:
            yield of.SAMPLER_ACK.sample(ack_ms / 1e3, name, quantile)
    if stats.verifier_latency_ms is not None:
        yield of.SAMPLER_VERIFIER.sample(stats.verifier_latency_ms / 1e3, name)


def _quantiles(counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    """Least, median and greatest value of a histogram whose keys rise."""
    values, below = [*counts], [*accumulate(counts.values())]
    for quantile in QUANTILES if below else ():
        yield f"{quantile:g}", values[bisect_left(below, quantile * below[-1])]
