"""Figures of a deployment for Prometheus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.metric import Sample
from rollstream.status.figures import Figures, PartitionFigures
from rollstream.status.verdict import Verdict


def samples(figures: Figures, stuck: Iterable[Verdict]) -> Iterator[Sample]:
    """Yields a sample for each kind of stage that is stuck, and the figures by environment. What
    never happened has no age."""
    counts = Counter((one.stage, one.alarm.value, one.level) for one in stuck)
    for labels, count in counts.items():
        yield of.STUCK.sample(count, *labels)
    for name, members in figures.sealers.items():
        yield of.SEALERS.sample(members, name)
    for name in sorted({one.environment for one in figures.partitions}):
        mine = [one for one in figures.partitions if one.environment == name]
        yield of.BACKLOG.sample(sum(one.backlog for one in mine), name)
        yield of.BACKLOG_AGE.sample(_of(max, mine, lambda one: one.oldest_age_s) or 0.0, name)
        yield of.LOST.sample(sum(one.lost for one in mine), name)
        published_s = _of(min, mine, lambda one: one.published_age_s)
        if published_s is not None:
            yield of.PUBLISHED_AGE.sample(published_s, name)
        flushed_s = _of(min, mine, lambda one: one.flush_age_s)
        if flushed_s is not None:
            yield of.FLUSH_AGE.sample(flushed_s, name)
    for sampler in figures.samplers:
        if sampler.decision_age_s is not None:
            yield of.DECISION_AGE.sample(sampler.decision_age_s, sampler.name)
    yield of.LETTERS_KEPT.sample(figures.dead_letters.kept)


def _of(
    choose: Callable[[list[float]], float],
    partitions: Sequence[PartitionFigures],
    age: Callable[[PartitionFigures], float | None],
) -> float | None:
    ages = [value for one in partitions if (value := age(one)) is not None]
    return choose(ages) if ages else None
