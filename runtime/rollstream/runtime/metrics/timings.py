"""Counts durations and failures, where a process shows them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rollstream.runtime.clock import Clock
from rollstream.runtime.metrics.metric import Durations, Metric, Sample

_Key = tuple[Metric, tuple[str, ...]]


class Observe(Protocol):
    """Takes one duration of a histogram."""

    def __call__(self, metric: Metric, seconds: float, *labels: str) -> None: ...


def observe_nothing(metric: Metric, seconds: float, *labels: str) -> None:
    """Forgets it: the process shows no metrics."""


class Timings:
    """What happened since the process began. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._durations: defaultdict[_Key, Durations] = defaultdict(Durations)
        self._counts: Counter[_Key] = Counter()

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """An ``Observe``."""
        with self._lock:
            self._durations[metric, labels].add(max(0.0, seconds))

    def count(self, metric: Metric, *labels: str, times: int = 1) -> None:
        """It happened so many times more. 0 shows that it did not happen so far: Prometheus sees no
        rise of what it sees first."""
        with self._lock:
            self._counts[metric, labels] += times

    def samples(self) -> Iterator[Sample]:
        """Yields a sample for each metric and its labels."""
        with self._lock:
            durations = [(key, one.copy()) for key, one in self._durations.items()]
            counts = [*self._counts.items()]
        for (metric, labels), duration in durations:
            yield metric.sample(duration, *labels)
        for (metric, labels), count in counts:
            yield metric.sample(count, *labels)


@contextmanager
def timed(observe: Observe, clock: Clock, metric: Metric, *labels: str) -> Iterator[None]:
    """Observes how long the block lasts, however it ends."""
    begun_s = clock.monotonic_s()
    try:
        yield
    finally:
        observe(metric, clock.monotonic_s() - begun_s, *labels)
