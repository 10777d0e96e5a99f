"""Samples as families of ``prometheus_client``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.metric import BUCKETS_S, Durations, Kind, Metric, Sample
from rollstream.runtime.metrics.watched import Watched

_BOUNDS = (*map(str, BUCKETS_S), "+Inf")
_log = logging.getLogger("rollstream.metrics")


class Exposition(Collector):
    """All that one process shows. Samples of one metric with equal labels are added up: several
    producers of a process count as one.

    Attributes:
        registry: of ``prometheus_client``; it also has the process's own figures.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._failures = 0
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def add(self, watched: Watched) -> None:
        """Shows it from now on."""
        with self._lock:
            self._watched.append(watched)

    def remove(self, watched: Watched) -> bool:
        """Shows it no more; whether nothing is left. Idempotent."""
        with self._lock:
            self._watched = [one for one in self._watched if one is not watched]
            return not self._watched

    def stalled(self) -> str:
        """Why the process is not alive, in words; empty: it is."""
        return "; ".join(f"{one.name}: {why}" for one in self._now() if (why := one.stalled()))

    def unready(self) -> str:
        """Why the process does not serve, in words; empty: it does."""
        return "; ".join(f"{one.name}: {why}" for one in self._now() if (why := one.unready()))

    def describe(self) -> list[Family]:
        """Nothing: a registry would else collect everything once, to learn the names."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yields a family for each metric that has samples now."""
        found: dict[Metric, dict[tuple[str, ...], float | Durations]] = {}
        for sample in self._samples():
            of = found.setdefault(sample.metric, {})
            before = of.get(sample.labels)
            of[sample.labels] = sample.value if before is None else _sum(before, sample.value)
        for metric, values in found.items():
            yield _family(metric, values)

    def _samples(self) -> Iterator[Sample]:
        alive, ready = dict[str, bool](), dict[str, bool]()
        for one in self._now():
            try:
                stalled, unready = one.stalled(), one.unready()
                alive[one.name] = alive.get(one.name, True) and not stalled
                ready[one.name] = ready.get(one.name, True) and not unready
                samples = [*one.samples()]
            except Exception:  # noqa: BLE001 - one part never hides the others.
                self._failures += 1
                _log.exception("the figures of %s cannot be read", one.name)
                continue
            yield from samples
        for name in alive:
            yield catalogue.ALIVE.sample(alive[name], name)
            yield catalogue.READY.sample(ready[name], name)
        yield catalogue.SCRAPE_FAILURES.sample(self._failures)

    def _now(self) -> list[Watched]:
        with self._lock:
            return [*self._watched]


def _sum(one: float | Durations, other: float | Durations) -> float | Durations:
    if isinstance(one, Durations):
        assert isinstance(other, Durations), "samples of one metric"
        return one + other
    assert not isinstance(other, Durations), "samples of one metric"
    return one + other


def _family(metric: Metric, values: dict[tuple[str, ...], float | Durations]) -> Family:
    match metric.kind:
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                assert isinstance(value, Durations), metric.name
                counts = map(float, accumulate(value.counts))
                histogram.add_metric(labels, [*zip(_BOUNDS, counts, strict=True)], value.sum_s)
            return histogram
        case Kind.COUNTER:
            family: Family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case Kind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, Durations), metric.name
        family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family
