"""Reads the figures of every stage.

It costs the dedupe horizon of each partition's seal log (as adopting it does), the scores that may
be of groups in it, and the decision logs. Payloads are never read, but for two records a partition
and the newest dead letters. What a group sealed before that horizon waits for is therefore not
known, only that it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from typing import NamedTuple

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Continuation, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.broker import (
    EARLIEST,
    Broker,
    GroupMembers,
    LogReader,
    TopicPartition,
)
from rollstream.streams.errors import UnreadableLog
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.folds.sampler.choosing import choosing_of, early_scores_s
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_start
from rollstream.streams.owned.follow import Follower, PutAside
from rollstream.streams.reading import read_between
from rollstream.streams.reports import Reports
from rollstream.streams.status.admission import measure_admission
from rollstream.streams.status.figures import (
    AdmissionFigures,
    ContinuationFigures,
    Figures,
    PartitionFigures,
)
from rollstream.streams.status.letters import measure_letters
from rollstream.streams.status.sampling import RECENT_US, SamplerReading, age_s
from rollstream.streams.topics.check import differences, joined
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import CREATOR, StoreRoot, root_differences
from rollstream.streams.topics.specs import specs_for
from rollstream.streams.troubles import note_in


def measure(
    broker: Broker,
    config: RollstreamConfig,
    deadline: Deadline,
    *,
    root: StoreRoot | None = None,
) -> Figures:
    """Returns the figures as the logs hold them now. Writes nothing and joins no consumer group.

    Args:
        broker: has the logs.
        config: which environments and samplers.
        deadline: for all of it; ages are measured by its clock.
        root: the store's root as this machine has it, compared with the deployment's; None: it is
            not.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer.
    """
    layout = Layout.of(config.kafka)
    counts = {name: section.partitions for name, section in config.environments.items()}
    wanted = specs_for(layout, counts, config.samplers)
    present = broker.admin().describe([spec.name for spec in wanted], deadline.left_s())
    absent = [one for spec in wanted if spec.name not in present for one in differences(spec, None)]
    missing = tuple(one.topic for one in absent if not one.off)
    if missing:
        return Figures(missing_topics=missing)
    other_root = (
        []
        if root is None
        else root_differences(broker, layout, config.environments, root, deadline)
    )
    now_us = deadline.clock.now_us()
    starts: dict[PartitionAddress, int] = {}
    for address in layout.addresses(counts):
        starts[address] = _start_of(broker, layout.groups_log(address), deadline)
    samplers = []
    for name, section in sorted(config.samplers.items()):
        reading = SamplerReading(name, choosing_of(section, config.environments), starts)
        _read_decisions(reading, broker, layout.sampler_log(name), root, deadline)
        samplers.append(reading)
    sealers = {
        name: broker.admin().group(layout.sealer_group(name), deadline.left_s())
        for name in sorted(config.environments)
    }
    troubles = _troubles(broker, layout, sealers, deadline)
    reported = _reported(broker, layout, starts, deadline)
    partitions = [
        _partition(
            _Read(broker, layout, address, deadline, now_us, troubles, reported),
            start,
            sealers[address.environment],
            samplers,
        )
        for address, start in starts.items()
    ]
    _read_scores(samplers, broker, config, starts, present, deadline)
    registered = layout.sampler_names(broker.admin(), deadline.left_s())
    return Figures(
        topics_off=tuple(map(str, joined(absent))),
        partitions=tuple(partitions),
        samplers=tuple(sampler.figures(now_us) for sampler in samplers),
        sealers={name: group.members for name, group in sealers.items()},
        admission=tuple(_admission(broker, layout, samplers, reported, present, now_us, deadline)),
        other_root=tuple(map(str, joined(other_root))),
        dead_letters=measure_letters(broker, layout, now_us, deadline),
        unnamed_samplers=tuple(sorted({*registered} - {*config.samplers})),
    )


def _read_decisions(
    reading: SamplerReading,
    broker: Broker,
    log: TopicPartition,
    root: StoreRoot | None,
    deadline: Deadline,
) -> None:
    """Feeds its decision log to ``reading``."""
    name = reading.name
    written = None if root is None else root.followed.newest_batch(name)  # Before it is read.
    aside: dict[TopicPartition, PutAside] = {}
    with closing(Follower(broker, {log: 0}, aside=aside)) as follower:
        for confirmed in follower.read_to_end(deadline):
            reading.apply_decision(confirmed)
    if log in aside:
        reading.aside = str(aside[log].error)
    else:
        reading.end_decisions(log, written)


def _start_of(broker: Broker, where: TopicPartition, deadline: Deadline) -> int:
    """The offset from which a seal log is read; its beginning where no later one can be found."""
    with closing(broker.reader({where: EARLIEST})) as reader:
        try:
            return find_start(reader, where, None, deadline)
        except UnreadableLog:
            return 0


def _read_scores(
    samplers: Sequence[SamplerReading],
    broker: Broker,
    config: RollstreamConfig,
    starts: Mapping[PartitionAddress, int],
    present: Collection[str],
    deadline: Deadline,
) -> None:
    """Feeds the late scores to ``samplers``, where their topics are there: those that may be of the
    groups that were read."""
    for sampler in samplers:
        sampler.end_groups()
    layout = Layout.of(config.kafka)
    logs = {
        layout.scores_log(log): log for log in starts if layout.scores(log.environment) in present
    }
    if not logs:
        return
    since = _groups_since(broker, config, starts, deadline)
    with closing(broker.reader(dict.fromkeys(logs, EARLIEST))) as reader:
        offsets = {
            where: reader.offset_at(where, since[log.environment], deadline.left_s())
            for where, log in logs.items()
        }
    with closing(Follower(broker, offsets, scores=offsets)) as follower:
        for confirmed in follower.read_to_end(deadline):
            for sampler in samplers:
                sampler.apply_scores(logs[confirmed.where], confirmed)


def _groups_since(
    broker: Broker,
    config: RollstreamConfig,
    starts: Mapping[PartitionAddress, int],
    deadline: Deadline,
) -> dict[str, int]:
    """By environment the log time from which on scores may be of groups that were read."""
    layout = Layout.of(config.kafka)
    since: dict[str, int] = {}
    for log, start in starts.items():
        where = layout.groups_log(log)
        first_ts = 0
        if start:
            with closing(broker.reader({where: start})) as reader:
                first_ts = _time_of(reader, where, start, start + 1, deadline) or 0
        of = since.get(log.environment, first_ts)
        waited_us = round(early_scores_s(config.environments[log.environment]) * 1e6)
        since[log.environment] = min(of, max(0, first_ts - waited_us))
    return since


def _troubles(
    broker: Broker, layout: Layout, sealers: Mapping[str, GroupMembers], deadline: Deadline
) -> dict[TopicPartition, str]:
    """What hinders partitions, as their sealers say; one that died says nothing any more."""
    troubles = {}
    for name, group in sealers.items():
        found = broker.admin().committed(layout.sealer_group(name), deadline.left_s())
        for where in found.keys() & group.owners.keys():
            troubles[where] = note_in(found[where].metadata).trouble
    return troubles


def _reported(
    broker: Broker,
    layout: Layout,
    addresses: Collection[PartitionAddress],
    deadline: Deadline,
) -> ReportedNow:
    """What sealers report, of environments whose topic is there."""
    logs = {layout.reports_log(one): one for one in addresses}
    reports = Reports(broker, logs, deadline.clock)
    try:
        reports.load(lambda _: inf, deadline)
    finally:
        reports.close()
    return reports.reported


def _admission(
    broker: Broker,
    layout: Layout,
    samplers: Sequence[SamplerReading],
    reported: ReportedNow,
    present: Collection[str],
    now_us: int,
    deadline: Deadline,
) -> Iterator[AdmissionFigures]:
    """Of each environment that a sampler serves, where its topic is there."""
    for name in sorted({name for reading in samplers for name in reading.environments}):
        # Each partition of the second generation has the records that count here.
        topics = [one for one in (layout.admission(name), layout.shares(name)) if one in present]
        if topics:
            # What is said once a run is over, or its sealers ended, does not hold for ever.
            living = reported.in_flight.standings(name, now_us, now_us - RECENT_US)
            logs = [TopicPartition(topic, 0) for topic in topics]
            yield measure_admission(broker, logs, name, living, now_us, deadline)


class _Read(NamedTuple):
    """What the figures of one partition are read with."""

    broker: Broker
    layout: Layout
    address: PartitionAddress
    deadline: Deadline
    now_us: int
    troubles: Mapping[TopicPartition, str]
    reported: ReportedNow


class _Ingest(NamedTuple):
    """One ingest log: what it holds, when its newest record and the one at the watermark came."""

    first: int
    end: int
    newest_ts: int | None
    oldest_ts: int | None
    recent: int


def _partition(
    read: _Read, start: int, sealers: GroupMembers, samplers: Sequence[SamplerReading]
) -> PartitionFigures:
    """Figures of one partition; feeds its seal log to ``samplers`` on the way."""
    address, now_us = read.address, read.now_us
    fold = SealFold(dedupe_horizon=0)
    owner, flush_ts = "", None
    newest: list[_Settled] = []  # Within the last minute.
    begun_ts = 0
    log = read.layout.groups_log(address)
    aside: dict[TopicPartition, PutAside] = {}
    with closing(Follower(read.broker, {log: start}, aside=aside)) as follower:
        for confirmed in follower.read_to_end(read.deadline):
            try:
                fold.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
            except UnreadableLog as error:
                follower.put_aside(log, confirmed.offset, error)
                break
            for sampler in samplers:
                sampler.apply_groups(address, confirmed)
            if start and not begun_ts:
                begun_ts = confirmed.timestamp_us
            read.reported.apply_sealed(address, confirmed.offset, confirmed.event)
            if isinstance(confirmed.event, Claimed):
                owner = "" if confirmed.event.owner == CREATOR else confirmed.event.owner
            elif isinstance(confirmed.event, Flushed):
                flush_ts = confirmed.timestamp_us
                if flush_ts >= now_us - RECENT_US:
                    newest.append(_settled(confirmed.event))
        foreign = follower.foreign[log]
    if log in aside:
        read.reported.in_flight.aside |= {address}
    waiting = read.reported.waiting.get(address)
    groups = fold.counts.get("groups", 0)
    touched, touched_entries = fold.touched
    for sampler in samplers:
        sampler.end_log(address, groups)
    # A log that is read from within the last minute shows less than that.
    seconds = max(1.0, min(RECENT_US, now_us - begun_ts) / 1e6)
    ingest = _ingest(read, fold.watermark)
    where = read.layout.rollouts_log(address)
    return PartitionFigures(
        environment=address.environment,
        partition=address.partition,
        kept_from=ingest.first,
        ingest_end=ingest.end,
        published_age_s=age_s(now_us, ingest.newest_ts),
        oldest_age_s=age_s(now_us, ingest.oldest_ts),
        records_per_s=ingest.recent * 1e6 / RECENT_US,
        held=where in sealers.owners if sealers.settled or where in sealers.owners else None,
        owner=owner,
        watermark=fold.watermark,
        settled=fold.settled_count,
        touched=touched,
        touched_entries=touched_entries,
        groups=groups,
        segments=fold.counts.get("segments", 0),
        groups_per_s=sum(flush.groups for flush in newest) / seconds,
        segments_per_s=sum(flush.segments for flush in newest) / seconds,
        flush_age_s=age_s(now_us, flush_ts),
        recent_settled=sum(flush.segments + flush.others for flush in newest),
        recent_unreadable=sum(flush.unreadable for flush in newest),
        foreign=foreign,
        aside=str(aside[log].error) if log in aside else "",
        trouble=read.troubles.get(where, ""),
        continuations=0 if waiting is None else waiting.trajectories,
        continuing=() if waiting is None else _continuing(waiting.examples, now_us),
    )


def _continuing(examples: Sequence[Continuation], now_us: int) -> tuple[ContinuationFigures, ...]:
    return tuple(
        ContinuationFigures(*one[:-1], max(0.0, (now_us - one.since_ts) / 1e6)) for one in examples
    )


class _Settled(NamedTuple):
    """What one flush settled: groups with their segments, and entries without a group."""

    groups: int
    segments: int
    others: int
    unreadable: int


def _settled(event: Flushed) -> _Settled:
    others: Counter[str] = Counter()
    for part in event.settled:
        others[part.reason] += len(part.offsets)
    unreadable = others[SettleReason.UNREADABLE]
    return _Settled(len(event.groups), len(event.segments.offsets), others.total(), unreadable)


def _ingest(read: _Read, watermark: int) -> _Ingest:
    """The ingest log; a few records of it are read."""
    where, deadline = read.layout.rollouts_log(read.address), read.deadline
    with closing(read.broker.reader({where: EARLIEST})) as reader:
        first, end = reader.bounds(where, deadline.left_s())
        oldest = max(first, watermark)
        newest_ts = _time_of(reader, where, max(first, end - 1), end, deadline)
        oldest_ts = _time_of(reader, where, oldest, end, deadline)
        minute = reader.offset_at(where, read.now_us - RECENT_US, deadline.left_s())
    return _Ingest(first, end, newest_ts, oldest_ts, max(0, end - minute))


def _time_of(
    reader: LogReader, where: TopicPartition, offset: int, end: int, deadline: Deadline
) -> int | None:
    """The log time of the record at ``offset``, or of the next one there is below ``end``."""
    records = read_between(reader, where, offset, end, deadline)
    return next((record.timestamp_us for record in records), None)
