"""Finds out from the logs of sealers where rollouts are."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import (
    DeadLetter,
    Event,
    Flushed,
    Retired,
    Retried,
    SealedSegments,
    Settlements,
)
from rollstream.schemas.ids import PartitionAddress, trajectory_digest
from rollstream.schemas.ingest.entry import SEGMENT_KINDS
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.broker import EARLIEST, Broker
from rollstream.streams.dead_letters import Source, open_letters, source_of
from rollstream.streams.errors import CorruptLog, UnreadableLog
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import CLOCKS_APART_US, find_start
from rollstream.streams.owned.follow import ConfirmedEvent, fold_logs
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between
from rollstream.streams.topics.layout import Layout

RETIRED = "its file was retired: it is served no more, and its rows may be gone"
# Before a rollout was created, by its producer's clock, nothing of it was published: with this much
# for clocks that differ, and for the other rollouts of its trajectory.
MARGIN_US = 86_400_000_000
BACK_GROWTH = 4
PENDING, SEALED, DEAD_LETTER, RETRIED = "pending", "sealed", "dead_letter", "retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOrigin:
    """A row of a sealed group, and where it came from.

    Attributes:
        index: in the group, from 0.
        row: in the group's file, from 0.
        offset, entry: in the ingest log of the group's partition.
        replica_id: the env replica that published it.
    """

    rollout_uid: str
    segment_idx: int
    index: int
    row: int
    offset: int
    entry: int
    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrigin:
    """A sealed group: its flush, its file and its rows.

    Attributes:
        group_uid: as its producer named it; of steps it is the prompt's. Empty: it named none.
        flush_offset, index: its event in the seal log of the partition, and which group of it.
        path: of its file, below the store's root.
        sealed_ts: log time up to which its partition was read when it was sealed, microseconds.
        failures: members of it that never came, by the reason that their producer gave.
    """

    group_id: str
    group_uid: str
    environment: str
    generation: int
    partition: int
    flush_offset: int
    index: int
    example_id: str
    policy_version: str
    weight_step: int
    split: str
    sealed_ts: int
    path: str
    segments: tuple[SegmentOrigin, ...]
    failures: Mapping[str, int]

    @property
    def ref(self) -> GroupRef:
        """Returns the name that decisions have for it."""
        address = (self.environment, self.generation, self.partition)
        return GroupRef(*address, self.flush_offset, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedEntry:
    """What became of an entry of an ingest log.

    Attributes:
        rollout_uid: the uid under which it counts.
        offset, entry: in the ingest log of the partition.
        state: ``pending``, ``sealed``, a ``SettleReason``, ``dead_letter``, or ``retried`` (a dead
            letter that was published again).
        detail: why it could not be read, or that the file of a sealed one was retired; else empty.
        replica_id: the env replica; None: the log does not name it any more.
        group: its group, with this entry's row alone; None: it is not sealed.
    """

    environment: str
    generation: int
    partition: int
    offset: int
    entry: int
    rollout_uid: str
    segment_idx: int
    state: str
    detail: str = ""
    replica_id: str | None = None
    group: GroupOrigin | None = None


class Traced(NamedTuple):
    """What the logs have of a rollout.

    Attributes:
        entries: by environment, partition and offset.
        since_us: log time from which on seal logs were read: an older entry of the same uid is not
            among ``entries``. 0: they were read whole.
    """

    entries: list[TracedEntry]
    since_us: int


def group_origin(
    log: PartitionAddress, offset: int, event: Flushed, index: int, rollout_uid: str | None = None
) -> GroupOrigin:
    """Returns the group with this index of the flush at ``offset``.

    Args:
        rollout_uid: the group has the rows of this rollout alone; None: it has all rows.
    """
    group, segments = event.groups[index], event.segments
    first = int(event.groups.rows[:index].sum())
    rows = tuple(
        SegmentOrigin(
            rollout_uid=segments.uids[at],
            segment_idx=int(segments.segment_idxs[at]),
            index=at - first,
            row=group.row_start + at - first,
            offset=int(segments.offsets[at]),
            entry=int(segments.entries[at]),
            replica_id=segments.replicas[segments.replica_idxs[at]],
        )
        for at in range(first, first + group.rows)
        if rollout_uid in (None, segments.uids[at])
    )
    return GroupOrigin(
        group_id=group.group_id,
        group_uid=group.group_uid,
        **log._asdict(),
        flush_offset=offset,
        index=index,
        example_id=group.example_id,
        policy_version=group.policy_version,
        weight_step=group.weight_step,
        split=group.split,
        sealed_ts=event.now_ts,
        path=event.files[group.file].path,
        segments=rows,
        failures={
            failed.reason: int(failed.members[number])
            for failed in event.failed
            for number, group_uid in enumerate(failed.group_uids)
            if group_uid == group.group_uid != ""
        },
    )


def origins_of(
    broker: Broker, layout: Layout, refs: Iterable[GroupRef], deadline: Deadline
) -> dict[GroupRef, GroupOrigin]:
    """Returns the groups that decisions name. Only the events of these groups are read.

    Raises:
        CorruptLog: an event named is no flush. OffsetLost: it is no longer in the log.
        BrokerUnavailable: they were not read by the deadline.
    """
    wanted: defaultdict[PartitionAddress, defaultdict[int, list[GroupRef]]]
    wanted = defaultdict(lambda: defaultdict(list))
    for ref in refs:
        wanted[ref.log][ref.offset].append(ref)
    found: dict[GroupRef, GroupOrigin] = {}
    for log, flushes in wanted.items():
        where = layout._replace(generation=log.generation).groups_log(log)
        with closing(broker.reader({where: EARLIEST})) as reader:
            for offset, there in sorted(flushes.items()):
                for record in read_between(reader, where, offset, offset + 1, deadline):
                    event = event_in(record)
                    if not isinstance(event, Flushed):
                        raise CorruptLog(f"{where}: the event at {offset} is no flush")
                    for ref in there:
                        found[ref] = group_origin(log, offset, event, ref.index_in_flush)
    return found


def trace(
    broker: Broker,
    layout: Layout,
    environments: Mapping[str, int],
    rollout_uid: str,
    deadline: Deadline,
    *,
    since_us: int | None = None,
) -> Traced:
    """Returns where each entry of a rollout is now. The uid of a trajectory names its rollouts in
    all prompts.

    Reads the seal logs of all partitions from their ends back, the unsettled records of the ingest
    logs, and the dead letters. Seal logs are read back to ``MARGIN_US`` before the rollout was
    created, as its oldest entry that was settled says. They are read whole if none is found.

    Args:
        environments: name to number of partitions.
        since_us: log time before which nothing of it was published. Only newer events and letters
            are read. None: it is not known.

    Raises:
        BrokerUnavailable: not read in time.
    """
    wanted = _Wanted(rollout_uid, trajectory_digest(rollout_uid))
    letters = list(_dead_letters(broker, layout, wanted, deadline, since_us))
    told = {_place(letter) for letter in letters}
    logs = [_SealLog(broker, layout, one, wanted) for one in layout.addresses(environments)]
    now_us, since, is_whole = deadline.clock.now_us(), 0, False
    for since in _further_back(now_us) if since_us is None else [since_us]:
        for log in logs:
            log.read_since(since, deadline)
        oldest_us = min(log.oldest_us for log in logs)
        is_whole = not any(log.read_from for log in logs)
        if is_whole or since + MARGIN_US <= oldest_us < math.inf:
            break
    # A letter says more than the settlement as `unreadable`.
    others = [entry for log in logs for entry in log.entries() if _place(entry) not in told]
    return Traced(sorted([*others, *letters], key=_place), 0 if is_whole else since)


def _further_back(now_us: int) -> Iterator[int]:
    """Yields times that are ever longer ago; the last one is the beginning of time."""
    age_us = MARGIN_US
    while age_us < now_us:
        yield now_us - age_us
        age_us *= BACK_GROWTH
    yield 0


class _Wanted(NamedTuple):
    """The rollouts that are looked for: the rollout of this uid, and those whose uid ends with the
    digest of a trajectory of this uid."""

    uid: str
    digest: str

    def among(self, uids: Iterable[str]) -> list[tuple[int, str]]:
        """Returns those of these uids that are looked for, with their indexes."""
        uid, digest = self
        return [(at, one) for at, one in enumerate(uids) if one == uid or one.endswith(digest)]


def _place(entry: TracedEntry) -> tuple[str, int, int, int, int]:
    return (entry.environment, entry.generation, entry.partition, entry.offset, entry.entry)


class _SealLog:
    """What the seal log of one partition says of the wanted rollouts, from its end back.

    Attributes:
        oldest_us: when the oldest of them was created, or settled if nothing says when it was
            created. A repetition says nothing, nor does what is pending, which may be one: what
            it repeats may be older.
        read_from: everything from this offset on was read.
    """

    def __init__(
        self, broker: Broker, layout: Layout, address: PartitionAddress, wanted: _Wanted
    ) -> None:
        self.oldest_us = math.inf
        self._broker = broker
        self._address = address
        self._wanted = wanted
        self._where, self._ingest = layout.groups_log(address), layout.rollouts_log(address)
        self._settled: list[TracedEntry] = []
        self._pending: list[TracedEntry] = []
        self._retired: set[tuple[int, str]] = set()
        self.read_from: int | None = None
        self._unknown = ""  # Why it cannot be read on.

    def read_since(self, since_us: int, deadline: Deadline) -> None:
        """Reads what was not read of the events since then, and at first what is unsettled."""
        start, stop = 0, self.read_from
        with closing(self._broker.reader({self._where: 0})) as reader, suppress(UnreadableLog):
            start = find_start(reader, self._where, None, deadline, since_us=since_us)
        fold = SealFold(dedupe_horizon=0) if stop is None else None
        if stop is None or start < stop:
            self.read_from = start
            self._read(start, math.inf if stop is None else stop, fold, deadline)
        if fold is not None:
            self._look_for_pending(fold, deadline)

    def entries(self) -> Iterator[TracedEntry]:
        """Yields those that were found."""
        for entry in self._settled:
            group = entry.group
            gone = group is not None and (group.flush_offset, group.path) in self._retired
            yield replace(entry, detail=RETIRED) if gone else entry
        for entry in self._pending:
            yield replace(entry, detail=self._unknown)

    def _read(self, start: int, stop: float, fold: SealFold | None, deadline: Deadline) -> None:
        def look(one: ConfirmedEvent) -> None:
            if fold is not None:
                fold.apply(one.offset, one.timestamp_us, one.event)
            if one.offset < stop:
                self._look_at(one.offset, one.timestamp_us, one.event)

        aside = fold_logs(self._broker, {self._where: start}, look, deadline).aside
        if self._where in aside:
            self._unknown = f"or settled since: {aside[self._where].error}"

    def _look_at(self, offset: int, timestamp_us: int, event: Event) -> None:
        if isinstance(event, Retired):
            self._retired.update((file.offset, file.path) for file in event.files)
        if not isinstance(event, Flushed):
            return
        found = list(_in_flush(self._address, offset, event, self._wanted))
        self._settled += found
        if any(one.state != SettleReason.DUPLICATE for one in found):
            rows = [at for at, _ in self._wanted.among(event.segments.uids)]
            created = event.segments.created_ts[rows].tolist()
            self.oldest_us = min(self.oldest_us, timestamp_us, *created)

    def _look_for_pending(self, fold: SealFold, deadline: Deadline) -> None:
        with closing(self._broker.reader({self._ingest: EARLIEST})) as reader:
            first, end = bounds_in_time(reader, self._ingest, deadline)
            start = max(first, fold.watermark)
            for record in read_between(reader, self._ingest, start, end, deadline):
                for entry in _in_record(self._address, record.offset, record.value, self._wanted):
                    if not fold.settled(entry.offset, entry.entry):
                        self._pending.append(entry)


def _in_flush(
    address: PartitionAddress, offset: int, event: Flushed, wanted: _Wanted
) -> Iterator[TracedEntry]:
    segments, ends = event.segments, np.cumsum(event.groups.rows).tolist()
    for at, uid in wanted.among(segments.uids):
        yield replace(
            _settled(address, segments, at, uid, SEALED),
            replica_id=segments.replicas[segments.replica_idxs[at]],
            group=group_origin(address, offset, event, bisect_right(ends, at), uid),
        )
    for part in event.settled:
        for at, uid in wanted.among(part.uids):
            yield _settled(address, part, at, uid, part.reason)


def _settled(
    address: PartitionAddress, part: SealedSegments | Settlements, at: int, uid: str, state: str
) -> TracedEntry:
    return TracedEntry(
        **address._asdict(),
        offset=int(part.offsets[at]),
        entry=int(part.entries[at]),
        rollout_uid=uid,
        segment_idx=int(part.segment_idxs[at]),
        state=state,
    )


def _in_record(
    address: PartitionAddress, offset: int, value: bytes | None, wanted: _Wanted
) -> Iterator[TracedEntry]:
    """Yields the wanted segments of a record of an ingest log, as pending; none if its frame is
    broken."""
    try:
        record = decode_record(value or b"")
    except UnreadableEvent:
        return
    segment_idxs, replicas = record.values("segment_idx"), record.values("replica_id")
    for entry, uid in wanted.among(record.values("rollout_uid")):
        if record.kinds[entry] in SEGMENT_KINDS:
            yield TracedEntry(
                **address._asdict(),
                offset=offset,
                entry=entry,
                rollout_uid=uid,
                segment_idx=segment_idxs[entry],
                state=PENDING,
                replica_id=replicas[entry],
            )


def _dead_letters(
    broker: Broker, layout: Layout, wanted: _Wanted, deadline: Deadline, since_us: int | None
) -> Iterator[TracedEntry]:
    letters: dict[Source, TracedEntry] = {}
    retried: set[Source] = set()
    with open_letters(broker, layout, deadline) as log:
        start = log.first
        if since_us is not None:
            start = log.since(since_us - CLOCKS_APART_US)
        for _, _, event in log.records(start):
            if isinstance(event, Retried):
                retried.add(source_of(event))
            if not isinstance(event, DeadLetter):
                continue
            *_, environment, generation = event.topic.split(".")
            address = PartitionAddress(environment, int(generation), event.partition)
            detail = f"{event.reason}: {event.detail}"
            for found in _in_record(address, event.offset, event.value, wanted):
                letters[source_of(event)] = replace(
                    found, entry=event.entry, state=DEAD_LETTER, detail=detail
                )
    for source, letter in letters.items():
        yield replace(letter, state=RETRIED) if source in retried else letter
