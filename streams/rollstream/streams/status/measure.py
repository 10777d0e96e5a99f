"""Reads the figures of every stage. It costs the dedupe horizon of each partition's seal log (as
adopting it does) and the decision logs; payloads are never read, but for one record a partition.
What a group sealed before that horizon waits for is therefore not known, only that it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_start
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.reading import read_between
from rollstream.streams.status.figures import Figures, PartitionFigures, SamplerFigures
from rollstream.streams.status.groups import (
    SamplerSources,
    Sealed,
    SealLog,
    sealed_groups,
    standing,
)
from rollstream.streams.status.progress import SamplerProgress
from rollstream.streams.topics.layout import Layout


class _Ingest(NamedTuple):
    """One partition of the ingest log."""

    first: int
    end: int
    newest_ts: int | None


def measure(
    broker: Broker,
    layout: Layout,
    environments: Mapping[str, int],
    samplers: Mapping[str, SamplerSources],
    *,
    clock: Clock,
    deadline: Deadline,
) -> Figures:
    """The figures as the logs have them now. Nothing is written and no group is joined.

    Args:
        broker: where.
        layout: names of the topics.
        environments: name to number of partitions.
        samplers: name to what it draws.
        clock: for ages.
        deadline: for all of it.

    Raises:
        BrokerUnavailable, NotAuthorised; CorruptLog, UnreadableEvent: a seal log breaks its rules.
    """
    wanted = [name(e) for e in sorted(environments) for name in (layout.rollouts, layout.groups)]
    wanted += [layout.sampler(name) for name in sorted(samplers)]
    present = broker.admin().describe(wanted, deadline.left_s())
    missing = tuple(topic for topic in wanted if topic not in present)
    if missing:
        return Figures(missing_topics=missing)
    now_us = clock.now_us()
    partitions: list[PartitionFigures] = []
    logs: dict[PartitionAddress, SealLog] = {}
    for environment, count in sorted(environments.items()):
        for partition in range(count):
            log = PartitionAddress(environment, layout.generation, partition)
            figures, logs[log] = _partition(broker, layout, log, now_us, deadline)
            partitions.append(figures)
    return Figures(
        partitions=tuple(partitions),
        samplers=tuple(
            _sampler(
                broker,
                TopicPartition(layout.sampler(name), 0),
                name,
                draws,
                logs,
                now_us,
                deadline,
            )
            for name, draws in sorted(samplers.items())
        ),
    )


def _partition(
    broker: Broker, layout: Layout, log: PartitionAddress, now_us: int, deadline: Deadline
) -> tuple[PartitionFigures, SealLog]:
    environment, _, partition = log
    ingest = _ingest(broker, TopicPartition(layout.rollouts(environment), partition), deadline)
    fold = SealFold(dedupe_horizon=0)
    owner, flushed_ts = "", None
    groups: dict[GroupRef, Sealed] = {}
    confirmed = _events(broker, TopicPartition(layout.groups(environment), partition), deadline)
    for _, offset, timestamp_us, event in confirmed:
        fold.apply(offset, timestamp_us, event)
        if isinstance(event, Claimed):
            owner = event.owner
        elif isinstance(event, Flushed):
            flushed_ts = timestamp_us
            groups.update(sealed_groups(log, offset, timestamp_us, event))
    count = fold.counts.get("groups", 0)
    figures = PartitionFigures(
        environment=environment,
        partition=partition,
        kept_from=ingest.first,
        ingest_end=ingest.end,
        published_age_s=_age_s(now_us, ingest.newest_ts),
        owner=owner,
        watermark=fold.watermark,
        groups=count,
        rollouts=fold.counts.get("sealed", 0),
        flush_age_s=_age_s(now_us, flushed_ts),
    )
    return figures, SealLog(confirmed[0].offset if confirmed else 0, count - len(groups), groups)


def _sampler(
    broker: Broker,
    where: TopicPartition,
    name: str,
    draws: SamplerSources,
    logs: Mapping[PartitionAddress, SealLog],
    now_us: int,
    deadline: Deadline,
) -> SamplerFigures:
    progress = SamplerProgress()
    for confirmed in _events(broker, where, deadline, from_claim=False):
        progress.apply(confirmed.timestamp_us, confirmed.event)
    stand = standing(logs, draws, progress.taken, progress.decided_ts)
    return SamplerFigures(
        name=name,
        environments=draws.environments,
        owner=progress.owner,
        ready=stand.ready,
        waiting=stand.waiting,
        older=stand.older,
        batches=progress.batches,
        acked=progress.acked,
        open_batches=len(progress.open),
        next_step=progress.next_step,
        policy_step=progress.policy_step,
        decision_age_s=_age_s(now_us, progress.decided_ts),
        dropped_since=dict(progress.dropped_since),
        waiting_since=stand.waiting_since,
    )


def _ingest(broker: Broker, where: TopicPartition, deadline: Deadline) -> _Ingest:
    reader = broker.reader({where: EARLIEST})
    try:
        first, end = reader.bounds(where, deadline.left_s())
        newest = list(read_between(reader, where, max(first, end - 1), end, deadline))
    finally:
        reader.close()
    return _Ingest(first, end, newest[-1].timestamp_us if newest else None)


def _events(
    broker: Broker, where: TopicPartition, deadline: Deadline, *, from_claim: bool = True
) -> list[ConfirmedEvent]:
    """The events that count, from the claim at which a fold is whole, or from the beginning."""
    start = 0
    if from_claim:
        reader = broker.reader({where: EARLIEST})
        try:
            start = find_start(reader, where, None, deadline)
        finally:
            reader.close()
    follower = Follower(broker, {where: start})
    try:
        return list(follower.read_to_end(deadline))
    finally:
        follower.close()


def _age_s(now_us: int, then_us: int | None) -> float | None:
    return None if then_us is None else max(0.0, (now_us - then_us) / 1e6)
