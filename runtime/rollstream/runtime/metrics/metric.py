"""A metric, and a sample of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

# Seconds: from a cached page to a store that hangs.
BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class Kind(StrEnum):
    """What Prometheus makes of a metric."""

    COUNTER = "counter"  # Since the process began.
    GAUGE = "gauge"  # Now.
    HISTOGRAM = "histogram"  # Durations in seconds, since the process began.


@dataclass(frozen=True, slots=True, eq=False)  # Each is one object, and found by that.
class Metric:
    """One row of the catalogue.

    Attributes:
        name: as Prometheus has it; of a counter with ``_total``.
        help: a line for people.
        labels: their names, in the order of a sample's values.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def sample(self, value: float | Durations, *labels: str) -> Sample:
        """A sample with these values of the labels."""
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        assert isinstance(value, Durations) == (self.kind is Kind.HISTOGRAM), self.name
        return Sample(self, labels, value)


@dataclass(slots=True)
class Durations:
    """How many durations were at most so long as each bound of ``BUCKETS_S``, and longer.

    Attributes:
        counts: by bucket; the last one has those beyond all bounds.
        sum_s: of all, in seconds.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one more."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Durations:
        """As it is now."""
        return Durations([*self.counts], self.sum_s)

    def __add__(self, other: Durations) -> Durations:
        both = zip(self.counts, other.counts, strict=True)
        return Durations([one + more for one, more in both], self.sum_s + other.sum_s)


class Sample(NamedTuple):
    """A metric's value now; ``labels`` are the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Durations
