"""Samples as families of ``prometheus_client``."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

_Values = dict[tuple[Metric, tuple[str, ...]], float | Durations]

_BOUNDS = (*map(str, BUCKETS_S), "+Inf")
_log = logging.getLogger("rollstream.metrics")


class Exposition(Collector):
    """All that one process shows. Samples of one metric with equal labels are added up: several
    producers of a process count as one.

    Counts and durations stay in their sums when a part ends, fails, or does not show them any
    more: Prometheus would take a sum that falls for a restart.

    Attributes:
        registry: of ``prometheus_client``; it also has the process's own figures.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._watched: dict[Watched, _Values] = {}  # Each with its newest counts.
        self._ended: _Values = {}
        self._failures = 0
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def add(self, watched: Watched) -> None:
        """Shows it from now on."""
        with self._lock:
            self._watched[watched] = {}

    def remove(self, watched: Watched) -> bool:
        """Keeps its counts, and shows no more of it; returns whether nothing else is shown.
        Idempotent."""
        with self._lock:
            counts = self._watched.get(watched) if len(self._watched) > 1 else None
        if counts is not None:
            with self._failures_of(watched):
                self._with_counts([*watched.samples()], counts)
        with self._lock:
            _add(self._ended, _samples_of(self._watched.pop(watched, {})))
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
        found: _Values = {}
        _add(found, self._samples())
        families: defaultdict[Metric, dict[tuple[str, ...], float | Durations]] = defaultdict(dict)
        for (metric, labels), value in found.items():
            families[metric][labels] = value
        for metric, values in families.items():
            yield _family(metric, values)

    def _samples(self) -> Iterator[Sample]:
        with self._lock:  # Both at once: what ends meanwhile counts once.
            ended, watched = _samples_of(self._ended), [*self._watched.items()]
        yield from ended
        alive, ready = dict[str, bool](), dict[str, bool]()
        for one, counts in watched:
            samples = list[Sample]()
            with self._failures_of(one):
                stalled, unready = one.stalled(), one.unready()
                samples = [*one.samples()]
                alive[one.name] = alive.get(one.name, True) and not stalled
                ready[one.name] = ready.get(one.name, True) and not unready
            yield from self._with_counts(samples, counts)
        for name in alive:
            yield catalogue.ALIVE.sample(alive[name], name)
            yield catalogue.READY.sample(ready[name], name)
        yield catalogue.SCRAPE_FAILURES.sample(self._failures)

    @contextmanager
    def _failures_of(self, one: Watched) -> Iterator[None]:
        """Counts and logs what fails in the block: one part never hides the others."""
        try:
            yield
        except Exception:  # noqa: BLE001 - figures end nothing.
            self._failures += 1
            _log.exception("the figures of %s cannot be read", one.name)

    def _with_counts(self, samples: Sequence[Sample], counts: _Values) -> list[Sample]:
        """The gauges among a part's samples, and its counts, which are brought up to date."""
        gauges = [one for one in samples if one.metric.kind is Kind.GAUGE]
        newest: _Values = {}
        _add(newest, (one for one in samples if one.metric.kind is not Kind.GAUGE))
        with self._lock:
            counts |= newest
            return [*gauges, *_samples_of(counts)]

    def _now(self) -> list[Watched]:
        with self._lock:
            return [*self._watched]


def _samples_of(values: _Values) -> list[Sample]:
    return [Sample(metric, labels, value) for (metric, labels), value in values.items()]


def _add(values: _Values, samples: Iterable[Sample]) -> None:
    """Adds each sample to the value of its metric and labels."""
    for metric, labels, value in samples:
        before = values.get((metric, labels))
        values[metric, labels] = value if before is None else _sum(before, value)


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
