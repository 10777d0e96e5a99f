"""Reads the figures of every stage.

It costs the dedupe horizon of each partition's seal log (as adopting it does), the scores that may
be of groups in it, and of decision logs what no hint has. Payloads are never read, but for two
records a partition and the newest dead letters. What a group sealed before that horizon waits for
is therefore not known, only that it exists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf

from rollstream.folds.choosing import choosing_of, early_scores_s
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.status.admission import measure_admission
from rollstream.status.decided import RECENT_US, DecisionLog
from rollstream.status.figures import AdmissionFigures, Figures
from rollstream.status.letters import measure_letters
from rollstream.status.partitions import PartitionSources, read_partitions
from rollstream.status.sampling import SamplerReading
from rollstream.streams.broker import Broker, GroupMembers, LogReader, TopicPartition
from rollstream.streams.errors import UnreadableLog
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.owned.adoption import find_starts
from rollstream.streams.owned.follow import Follower, PutAside
from rollstream.streams.owned.reading import score_in
from rollstream.streams.reading import read_windows
from rollstream.streams.reports import Reports
from rollstream.streams.topics.check import Difference, differences, joined
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, root_differences
from rollstream.streams.topics.specs import specs_for
from rollstream.streams.troubles import CommitNote, note_in


def measure(
    broker: Broker,
    config: RollstreamConfig,
    deadline: Deadline,
    *,
    root: StoreRoot | None = None,
) -> Figures:
    """Returns the figures as the logs hold them now. Writes to no log, and joins no consumer group.
    In the store's root it leaves hints, so that the next call reads less.

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
    other_root: list[Difference] = []
    if root is not None:
        other_root = root_differences(broker, layout, config.environments, root, deadline)
    now_us = deadline.clock.now_us()
    sealers = {
        name: broker.admin().group(layout.sealer_group(name), deadline.left_s())
        for name in sorted(config.environments)
    }
    addresses = layout.addresses(counts)
    notes = _notes(broker, layout, addresses, sealers, deadline)
    logs = {layout.groups_log(one): one for one in addresses}
    hints = {where: notes[layout.rollouts_log(one)].claim for where, one in logs.items()}
    found = find_starts(broker, hints, deadline)
    starts = {address: found[where] for where, address in logs.items()}
    samplers = []
    for name, section in sorted(config.samplers.items()):
        reading = SamplerReading(name, choosing_of(section, config.environments), starts)
        _read_decisions(reading, broker, layout.sampler_log(name), root, deadline)
        samplers.append(reading)
    reported = _reported(broker, layout, starts, deadline)
    sources = PartitionSources(
        broker, layout, deadline, now_us, notes, sealers, reported, samplers, starts
    )
    partitions = list(read_partitions(sources))
    since = {address: since_us for address, (_, since_us) in zip(starts, partitions, strict=True)}
    scores_aside = _read_scores(samplers, broker, config, since, present, deadline)
    registered = layout.sampler_names(broker.admin(), deadline.left_s())
    return Figures(
        topics_off=tuple(map(str, joined(absent))),
        partitions=tuple(figures for figures, _ in partitions),
        samplers=tuple(sampler.figures(now_us) for sampler in samplers),
        sealers={name: group.members for name, group in sealers.items()},
        admission=tuple(_admission(broker, layout, samplers, reported, present, now_us, deadline)),
        other_root=tuple(map(str, joined(other_root))),
        dead_letters=measure_letters(broker, layout, now_us, deadline),
        unnamed_samplers=tuple(sorted({*registered} - {*config.samplers})),
        scores_aside=scores_aside,
    )


def _read_decisions(
    reading: SamplerReading,
    broker: Broker,
    log: TopicPartition,
    root: StoreRoot | None,
    deadline: Deadline,
) -> None:
    """Feeds its decision log to ``reading``."""
    written = hint = None
    if root is not None:
        written = root.followed.newest_batch(reading.name)  # Before it is read.
        hint = root.followed.decisions(reading.name, log.topic, "status")
    root_id = "" if root is None else root.root_id
    with closing(DecisionLog(broker, log, reading.decided, hint, root_id)) as decided:
        try:
            decided.read(deadline)
        except UnreadableLog as error:
            reading.aside = str(error)
            reading.decided.begin_groups()
        else:
            reading.end_decisions(log, written)


def _read_scores(
    samplers: Sequence[SamplerReading],
    broker: Broker,
    config: RollstreamConfig,
    since: Mapping[PartitionAddress, int],
    present: Collection[str],
    deadline: Deadline,
) -> dict[str, str]:
    """Feeds the late scores that may belong to the groups that were read to ``samplers``, if their
    topics exist; returns the logs that cannot be read on, each with the reason.

    Args:
        since: the log time of the oldest event that was read of each seal log; 0: of all.
    """
    for sampler in samplers:
        sampler.end_groups()
    layout = Layout.of(config.kafka)
    logs = {
        layout.scores_log(log): log for log in since if layout.scores(log.environment) in present
    }
    if not logs or not samplers:
        return {}
    offsets: dict[TopicPartition, int] = {}
    with closing(broker.reader({})) as reader:
        firsts: dict[TopicPartition, int] = {}
        for name, section in config.environments.items():
            here = [where for where, log in logs.items() if log.environment == name]
            bounds = reader.all_bounds(here, deadline.left_s())
            firsts |= {where: first for where, (first, _) in bounds.items()}
            ends = {where: end for where, (_, end) in bounds.items()}
            oldest_us = min((since[logs[where]] for where in here), default=0)
            waited_us = round(early_scores_s(section) * 1e6)
            offsets |= reader.offsets_at(ends, max(0, oldest_us - waited_us), deadline.left_s())
        kept = {where: (first, offsets[where]) for where, first in firsts.items()}
        aside = _where_samplers_stopped(reader, samplers, logs, kept, deadline)
    with closing(Follower(broker, offsets, scores=offsets, aside=aside)) as follower:
        for confirmed in follower.read_to_end(deadline):
            for sampler in samplers:
                sampler.apply_scores(logs[confirmed.where], confirmed)
    return {str(where): str(one.error) for where, one in sorted(aside.items())}


def _where_samplers_stopped(
    reader: LogReader,
    samplers: Sequence[SamplerReading],
    logs: Mapping[TopicPartition, PartitionAddress],
    kept: Mapping[TopicPartition, tuple[int, int]],
    deadline: Deadline,
) -> dict[TopicPartition, PutAside]:
    """Logs of scores of which the next record for a sampler cannot be read: it is older than what
    ``_read_scores`` reads where the sampler stopped there long ago.

    Args:
        kept: of each log the first offset that it holds, and that from which on scores are read.
    """
    windows: dict[TopicPartition, tuple[int, int]] = {}
    for read in [sampler.scores_read for sampler in samplers]:
        for where, (first, stop) in kept.items():
            at = read.get(logs[where], stop)
            if first <= at < stop:
                windows[where] = at, at + 1
    aside = {}
    for record in read_windows(reader, windows, deadline):
        try:
            score_in(record)
        except UnreadableLog as error:
            aside[TopicPartition(record.topic, record.partition)] = PutAside(record.offset, error)
    return aside


def _notes(
    broker: Broker,
    layout: Layout,
    addresses: Collection[PartitionAddress],
    sealers: Mapping[str, GroupMembers],
    deadline: Deadline,
) -> defaultdict[TopicPartition, CommitNote]:
    """Returns what sealers committed beside the offsets of ingest logs. The trouble that a dead
    sealer named is left out."""
    notes: defaultdict[TopicPartition, CommitNote] = defaultdict(lambda: CommitNote(None))
    for name, group in sealers.items():
        asked = [layout.rollouts_log(one) for one in addresses if one.environment == name]
        found = broker.admin().committed(layout.sealer_group(name), asked, deadline.left_s())
        for where, committed in found.items():
            note = note_in(committed.metadata)
            notes[where] = note if where in group.owners else note._replace(trouble="")
    return notes


def _reported(
    broker: Broker,
    layout: Layout,
    addresses: Collection[PartitionAddress],
    deadline: Deadline,
) -> ReportedNow:
    """Returns what sealers report, of the environments whose topic exists."""
    logs = {layout.reports_log(one): one for one in addresses}
    with closing(Reports(broker, logs, deadline.clock)) as reports:
        reports.load(lambda _: inf, deadline)
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
    """Yields the figures of each environment that a sampler serves, if its topic exists."""
    for name in sorted({name for reading in samplers for name in reading.environments}):
        # Each partition of the second generation has the records that count here.
        topics = [one for one in (layout.admission(name), layout.shares(name)) if one in present]
        if topics:
            # What is said once a run is over, or its sealers ended, does not hold for ever.
            living = reported.in_flight.standings(name, now_us, now_us - RECENT_US)
            logs = [TopicPartition(topic, 0) for topic in topics]
            yield measure_admission(broker, logs, name, living, now_us, deadline)
