"""Which stage is stuck first, in the order in which data flows. Pure."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from rollstream.runtime.config.sections import EnvironmentConfig, RollstreamConfig, SamplerConfig
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.sampler.remedies import describe_waiting, why_dropped, why_waiting
from rollstream.streams.status.figures import Figures, PartitionFigures, SamplerFigures

QUIET_S = 60.0  # A stage that has work and did nothing for this long counts as stuck.


class Verdict(NamedTuple):
    """The stage that is stuck, empty where none is; the likely reason, with what to do."""

    stage: str
    reason: str


def first_stuck(figures: Figures, config: RollstreamConfig) -> Verdict:
    """The first stage that is stuck, in the order topics, env workers, sealers, sampler, trainer.

    Stages after a stuck one wait for it, so only the first is named.
    """
    if figures.missing_topics:
        missing = ", ".join(figures.missing_topics)
        return Verdict("topics", f"{missing} missing; run `rollstream topics create`")
    for partition in figures.partitions:
        if partition.lost:
            return Verdict(
                "sealers",
                f"retention deleted {partition.lost} records of {_name(partition)} before they "
                "were settled; run `rollstream audit`, and raise kafka.retention_hours",
            )
    if not any(partition.ingest_end for partition in figures.partitions):
        return Verdict("env workers", "nothing was ever published; start the env workers")
    verdicts = chain(
        (_sealing(p, config.environments[p.environment]) for p in figures.partitions),
        (_sampling(s, figures, config.samplers[s.name]) for s in figures.samplers),
    )
    return next(filter(None, verdicts), Verdict("", "nothing is stuck"))


def _sealing(partition: PartitionFigures, config: EnvironmentConfig) -> Verdict | None:
    if not partition.backlog:
        return None
    if not partition.owner:
        return Verdict(
            "sealers",
            f"{partition.backlog} records of {_name(partition)} wait and no sealer ever claimed "
            "it; run `rollstream seal`",
        )
    allowed_s = config.expire_after_s + QUIET_S
    newest_s = partition.published_age_s or 0.0
    idle_s = newest_s if partition.flush_age_s is None else min(newest_s, partition.flush_age_s)
    if idle_s > allowed_s:
        return Verdict(
            "sealers",
            f"{partition.backlog} records of {_name(partition)} wait for {idle_s:.0f} s, longer "
            f"than any group may; is its sealer ({partition.owner}) still running?",
        )
    return None


def _sampling(sampler: SamplerFigures, figures: Figures, config: SamplerConfig) -> Verdict | None:
    name = sampler.name
    if not sampler.owner:
        return Verdict("sampler", f"sampler {name} was never started; attach a trainer to it")
    if sampler.open_batches >= config.max_open_batches:
        return Verdict(
            "trainer",
            f"{sampler.open_batches} batches of {name} are open, as many as max_open_batches "
            "allows; call checkpointed(step) after saving",
        )
    if (sampler.decision_age_s or 0.0) <= QUIET_S:
        return None
    # What exceeds the capacity goes unasked; the rest is dropped only where a trainer asks.
    asked = any(reason != DropReason.CAPACITY for reason in sampler.dropped_since)
    if sampler.ready and not asked:
        return Verdict(
            "trainer",
            f"{sampler.ready} groups are ready for {name} and none was served for "
            f"{sampler.decision_age_s:.0f} s; is the trainer still running, or does it ask for "
            "more than that?",
        )
    if sampler.dropped_since or sampler.waiting_since:
        return _unserved(sampler, config)
    ages = [
        partition.published_age_s
        for partition in figures.partitions
        if partition.environment in sampler.environments and partition.published_age_s is not None
    ]
    if ages and min(ages) > QUIET_S:
        return Verdict(
            "env workers",
            f"nothing was published to {', '.join(sampler.environments)} for {min(ages):.0f} s "
            f"and {name} has no group ready{_waiting(sampler, config)}; are the env workers still "
            "running?",
        )
    return None


def _unserved(sampler: SamplerFigures, config: SamplerConfig) -> Verdict:
    """Names the commonest reason why no group that came could be served."""
    ends = [
        (
            count,
            f"were dropped as {reason}",
            "sampler" if reason == DropReason.CAPACITY else "env workers",
            why_dropped(reason, sampler.name, config, sampler.policy_epoch),
        )
        for reason, count in sampler.dropped_since.items()
    ]
    ends += [
        (
            count,
            "are eval groups" if why == "eval" else "wait",
            "env workers",
            why_waiting(why, sampler.name, config),
        )
        for why, count in sampler.waiting_since.items()
    ]
    count, end, stage, remedy = max(ends)
    return Verdict(
        stage,
        f"{sampler.name} served nothing for {sampler.decision_age_s:.0f} s; of "
        f"{sum(one[0] for one in ends)} groups {count} {end}: {remedy}",
    )


def _waiting(sampler: SamplerFigures, config: SamplerConfig) -> str:
    waiting = describe_waiting(sampler.waiting, sampler.name, config)
    return f" ({'; '.join(waiting)})" if waiting else ""


def _name(partition: PartitionFigures) -> str:
    return f"{partition.environment}[{partition.partition}]"
