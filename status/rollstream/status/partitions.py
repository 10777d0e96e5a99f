"""Reads the figures of partitions from their seal logs and a few records of their ingest logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason
from rollstream.status.decided import RECENT_US
from rollstream.status.figures import ContinuationFigures, PartitionFigures
from rollstream.status.sampling import SamplerReading, age_s
from rollstream.streams.broker import Broker, GroupMembers, TopicPartition
from rollstream.streams.folds.reported import NONE_WAITS, ReportedNow
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.follow import ConfirmedEvent, fold_logs
from rollstream.streams.reading import read_windows
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import CREATOR
from rollstream.streams.troubles import CommitNote

TOGETHER_MAX = 128  # Partitions that are folded at once: each fold has the uids of some flushes.


class PartitionSources(NamedTuple):
    """The sources of the figures of partitions.

    Attributes:
        notes: by ingest log.
        samplers: get the events of the seal logs, as ``reported`` does.
        starts: the offset from which each seal log is read.
    """

    broker: Broker
    layout: Layout
    deadline: Deadline
    now_us: int
    notes: Mapping[TopicPartition, CommitNote]
    sealers: Mapping[str, GroupMembers]
    reported: ReportedNow
    samplers: Sequence[SamplerReading]
    starts: Mapping[PartitionAddress, int]


class _Ingest(NamedTuple):
    """One ingest log: its bounds, the log times of its newest record and of the record at the
    watermark, and how many records came within the last minute."""

    first: int
    end: int
    newest_ts: int | None
    oldest_ts: int | None
    recent: int


class _SealReading:
    """One seal log, as far as it was read.

    Attributes:
        recent: counts of what was settled within the last minute, named as ``SealFold.counts``.
        since_us: log time of the oldest event that was read, if the log was not read whole; else 0.
        foreign: how many records no owner wrote.
        aside: why it cannot be read on; empty: it can.
    """

    def __init__(self, start: int, now_us: int) -> None:
        self.fold = SealFold(dedupe_horizon=0)
        self.owner = ""
        self.flush_ts: int | None = None
        self.recent: Counter[str] = Counter()
        self.since_us = 0
        self.foreign = 0
        self.aside = ""
        self._start = start
        self._now_us = now_us

    def apply(self, confirmed: ConfirmedEvent) -> None:
        """Folds the next event. Raises ``UnreadableLog``."""
        _, offset, timestamp_us, event = confirmed
        self.fold.apply(offset, timestamp_us, event)
        if self._start and not self.since_us:
            self.since_us = timestamp_us
        if isinstance(event, Claimed):
            self.owner = "" if event.owner == CREATOR else event.owner
        elif isinstance(event, Flushed):
            self.flush_ts = timestamp_us
            if timestamp_us >= self._now_us - RECENT_US:
                self.recent["groups"] += len(event.groups)
                self.recent["segments"] += len(event.segments.offsets)
                for part in event.settled:
                    self.recent[part.reason] += len(part.offsets)


def read_partitions(sources: PartitionSources) -> Iterator[tuple[PartitionFigures, int]]:
    """Yields the figures of each partition, in the order of ``starts``, each with the log time of
    the oldest event that was read of its seal log; 0 if the log was read whole.

    Raises:
        BrokerUnavailable: not read in time.
    """
    addresses = list(sources.starts)
    for at in range(0, len(addresses), TOGETHER_MAX):
        together = addresses[at : at + TOGETHER_MAX]
        sealed = _read_seal_logs(sources, together)
        ingest = _read_ingest_logs(
            sources, {address: read.fold.watermark for address, read in sealed.items()}
        )
        for address, read in sealed.items():
            for sampler in sources.samplers:
                sampler.end_log(address, read.fold.counts.get("groups", 0))
            figures = _figures(sources, address, read, ingest[address])
            yield figures, read.since_us


def _read_seal_logs(
    sources: PartitionSources, addresses: Sequence[PartitionAddress]
) -> dict[PartitionAddress, _SealReading]:
    logs = {sources.layout.groups_log(address): address for address in addresses}
    starts = {where: sources.starts[address] for where, address in logs.items()}
    found = {logs[where]: _SealReading(start, sources.now_us) for where, start in starts.items()}

    def apply(confirmed: ConfirmedEvent) -> None:
        address = logs[confirmed.where]
        found[address].apply(confirmed)
        for sampler in sources.samplers:
            sampler.apply_groups(address, confirmed)
        sources.reported.apply_sealed(address, confirmed.offset, confirmed.event)

    aside, foreign = fold_logs(sources.broker, starts, apply, sources.deadline)
    for where, address in logs.items():
        found[address].foreign = foreign[where]
        if where in aside:
            found[address].aside = str(aside[where].error)
            sources.reported.in_flight.aside |= {address}
    return found


def _read_ingest_logs(
    sources: PartitionSources, watermarks: Mapping[PartitionAddress, int]
) -> dict[PartitionAddress, _Ingest]:
    """Reads a few records of each ingest log."""
    deadline, recent_us = sources.deadline, sources.now_us - RECENT_US
    logs = {sources.layout.rollouts_log(address): address for address in watermarks}
    newest: dict[TopicPartition, tuple[int, int]] = {}
    oldest: dict[TopicPartition, tuple[int, int]] = {}
    with closing(sources.broker.reader({})) as reader:
        bounds = reader.all_bounds(logs, deadline.left_s())
        for where, (first, end) in bounds.items():
            newest[where] = max(first, end - 1), end
            oldest[where] = max(first, watermarks[logs[where]]), end
        ends = {where: end for where, (_, end) in bounds.items()}
        minute = reader.offsets_at(ends, recent_us, deadline.left_s())
        times = []
        for windows in (newest, oldest):
            found: dict[TopicPartition, int] = {}
            for record in read_windows(reader, windows, deadline):
                where = TopicPartition(record.topic, record.partition)
                found[where] = record.timestamp_us
                del windows[where]  # The first record of it is enough.
            times.append(found)
    return {
        address: _Ingest(
            *bounds[where],
            newest_ts=times[0].get(where),
            oldest_ts=times[1].get(where),
            recent=max(0, ends[where] - minute[where]),
        )
        for where, address in logs.items()
    }


def _figures(
    sources: PartitionSources, address: PartitionAddress, sealed: _SealReading, ingest: _Ingest
) -> PartitionFigures:
    now_us, fold, recent = sources.now_us, sealed.fold, sealed.recent
    where, sealers = sources.layout.rollouts_log(address), sources.sealers[address.environment]
    waiting, note = sources.reported.waiting.get(address, NONE_WAITS), sources.notes[where]
    touched, touched_entries = fold.touched
    # A log that is read from within the last minute shows less than that.
    seconds = max(1.0, min(RECENT_US, now_us - sealed.since_us) / 1e6)
    return PartitionFigures(
        environment=address.environment,
        partition=address.partition,
        kept_from=ingest.first,
        ingest_end=ingest.end,
        published_age_s=age_s(now_us, ingest.newest_ts),
        oldest_age_s=age_s(now_us, ingest.oldest_ts),
        records_per_s=ingest.recent * 1e6 / RECENT_US,
        held=where in sealers.owners if sealers.settled or where in sealers.owners else None,
        owner=sealed.owner,
        watermark=fold.watermark,
        settled=fold.settled_count,
        touched=touched,
        touched_entries=touched_entries,
        groups=fold.counts.get("groups", 0),
        segments=fold.counts.get("segments", 0) + fold.counts.get("imported", 0),
        groups_per_s=recent["groups"] / seconds,
        flush_age_s=age_s(now_us, sealed.flush_ts),
        recent_settled=recent.total() - recent["groups"],
        recent_unreadable=recent[SettleReason.UNREADABLE],
        foreign=sealed.foreign,
        aside=sealed.aside,
        trouble="" if note.beside else note.trouble,
        beside=note.beside,
        continuations=waiting.trajectories,
        continuing=tuple(
            ContinuationFigures(*one[:-1], max(0.0, (now_us - one.since_ts) / 1e6))
            for one in waiting.examples
        ),
    )
