"""Reads the figures of every stage.

It costs the dedupe horizon of each partition's seal log (as adopting it does) and the decision
logs; payloads are never read, but for one record a partition. What a group sealed before that
horizon waits for is therefore not known, only that it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_start
from rollstream.streams.owned.follow import Follower
from rollstream.streams.reading import read_between
from rollstream.streams.status.figures import Figures, PartitionFigures
from rollstream.streams.status.sampling import SamplerReading, age_s
from rollstream.streams.topics.layout import Layout


def measure(broker: Broker, config: RollstreamConfig, deadline: Deadline) -> Figures:
    """Returns the figures as the logs hold them now. Writes nothing and joins no consumer group.

    Args:
        broker: has the logs.
        config: which environments and samplers.
        deadline: for all of it; ages are measured by its clock.

    Raises:
        BrokerUnavailable, NotAuthorised; CorruptLog: a log breaks its rules.
    """
    layout = Layout.of(config.kafka)
    wanted = [
        name(e) for e in sorted(config.environments) for name in (layout.rollouts, layout.groups)
    ]
    wanted += [layout.sampler(name) for name in sorted(config.samplers)]
    present = broker.admin().describe(wanted, deadline.left_s())
    missing = tuple(topic for topic in wanted if topic not in present)
    if missing:
        return Figures(missing_topics=missing)
    now_us = deadline.clock.now_us()
    starts: dict[PartitionAddress, int] = {}
    for address in layout.addresses({e: s.partitions for e, s in config.environments.items()}):
        where = layout.groups_log(address)
        with closing(broker.reader({where: EARLIEST})) as reader:
            starts[address] = find_start(reader, where, None, deadline)
    samplers = []
    for name, section in sorted(config.samplers.items()):
        samplers.append(SamplerReading(name, section, starts))
        with closing(Follower(broker, {layout.sampler_log(name): 0})) as follower:
            for confirmed in follower.read_to_end(deadline):
                samplers[-1].apply_decision(confirmed)
    partitions = [
        _partition(broker, layout, address, start, samplers, now_us, deadline)
        for address, start in starts.items()
    ]
    return Figures(
        partitions=tuple(partitions),
        samplers=tuple(sampler.figures(now_us) for sampler in samplers),
    )


def _partition(
    broker: Broker,
    layout: Layout,
    address: PartitionAddress,
    start: int,
    samplers: Sequence[SamplerReading],
    now_us: int,
    deadline: Deadline,
) -> PartitionFigures:
    """Figures of one partition; feeds its seal log to ``samplers`` on the way."""
    published_from, published_end, published_ts = _ends(
        broker, layout.rollouts_log(address), deadline
    )
    fold = SealFold(dedupe_horizon=0)
    owner, flushed_ts = "", None
    with closing(Follower(broker, {layout.groups_log(address): start})) as follower:
        for confirmed in follower.read_to_end(deadline):
            fold.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
            for sampler in samplers:
                sampler.apply_groups(address, confirmed)
            if isinstance(confirmed.event, Claimed):
                owner = confirmed.event.owner
            elif isinstance(confirmed.event, Flushed):
                flushed_ts = confirmed.timestamp_us
    groups = fold.counts.get("groups", 0)
    touched, touched_entries = fold.touched
    for sampler in samplers:
        sampler.end_log(address, groups)
    return PartitionFigures(
        environment=address.environment,
        partition=address.partition,
        kept_from=published_from,
        ingest_end=published_end,
        published_age_s=age_s(now_us, published_ts),
        owner=owner,
        watermark=fold.watermark,
        settled=fold.settled_count,
        touched=touched,
        touched_entries=touched_entries,
        groups=groups,
        segments=fold.counts.get("segments", 0),
        flush_age_s=age_s(now_us, flushed_ts),
    )


def _ends(broker: Broker, where: TopicPartition, deadline: Deadline) -> tuple[int, int, int | None]:
    """The oldest offset that is kept, the next one to be written, and the newest record's time."""
    with closing(broker.reader({where: EARLIEST})) as reader:
        first, end = reader.bounds(where, deadline.left_s())
        newest = list(read_between(reader, where, max(first, end - 1), end, deadline))
    return first, end, newest[-1].timestamp_us if newest else None
