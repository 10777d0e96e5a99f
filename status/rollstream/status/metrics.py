"""Figures of a deployment for Prometheus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.metric import Sample
from rollstream.status.figures import Figures
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
        yield of.BACKLOG_AGE.sample(max(one.oldest_age_s or 0.0 for one in mine), name)
        yield of.LOST.sample(sum(one.lost for one in mine), name)
        published_s = [one.published_age_s for one in mine]
        flushed_s = [one.flush_age_s for one in mine]
        for metric, ages_s in ((of.PUBLISHED_AGE, published_s), (of.FLUSH_AGE, flushed_s)):
            known_s = [age_s for age_s in ages_s if age_s is not None]
            if known_s:
                yield metric.sample(min(known_s), name)
    for sampler in figures.samplers:
        if sampler.decision_age_s is not None:
            yield of.DECISION_AGE.sample(sampler.decision_age_s, sampler.name)
    yield of.LETTERS_KEPT.sample(figures.dead_letters.kept)
