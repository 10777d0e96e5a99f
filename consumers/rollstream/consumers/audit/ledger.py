"""Accounts for every entry that one partition's seal log settles. Pure, and deliberately a second
implementation of the fold that sealers use, so that a mistake in one does not hide in the other."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rollstream.consumers.audit.repeats import Repeats
from rollstream.schemas.events import (
    NOT_INGESTED,
    Event,
    Flushed,
    Retired,
    SealedSegments,
    Settlements,
)
from rollstream.schemas.reasons import SettleReason

SEGMENT, GROUP, FILE = range(3)  # What is told of in `Repeats`.
_KIND_BITS = 2
_OFFSET_BITS = 44
NAMED_MAX = 5  # What a problem names one by one; the rest is counted.


class Ledger:
    """Accounts for every event that counts, in order.

    Attributes:
        name: of the partition, in problems.
        problems: what no sound sealer writes, in words.
        sealed: how many segments are in groups.
        imported: how many of them came otherwise than through the ingest log.
        groups: how many.
        settled: by reason, how many entries ended without a group.
        files: how many are named, and were not retired.
        retired_at: offset of the newest event that retired any; -1: none did.

    Args:
        number: of the partition.
        repeats: is told of every segment, group and file, of all partitions of an environment.
    """

    def __init__(self, name: str, number: int, repeats: Repeats) -> None:
        self.name = name
        self.problems: list[str] = []
        self.watermark = 0
        self.sealed = 0
        self.imported = 0
        self.settled: Counter[str] = Counter()
        self.files = 0
        self.retired_at = -1
        self.groups = 0
        self._number = number
        self._repeats = repeats
        self._before = 0  # Entries that were settled before the event.
        self._published = 0  # Entries of touched offsets, and offsets of ranges.
        self._open: dict[int, _Offset] = {}  # Touched offsets that are not below the watermark.
        self._ranges: list[tuple[int, int]] = []  # Unread offsets, the same; rising.
        # What the watermark passed since `forget_passed`.
        self._passed: dict[int, _Offset] = {}
        self._passed_ranges: list[tuple[int, int]] = []
        self._alive: list[tuple[int, int]] = []  # Of all ranges those that producers' lives take.
        self._deleted: list[tuple[int, int]] = []
        self._untouched = self._untouched_entries = 0  # Records of which nothing is settled.
        self._differing = Named()
        self._lost = Named()
        self._lost_last = -1  # An offset's entries may be in several events.

    def apply(self, offset: int, event: Event) -> None:
        """The next event that counts."""
        if isinstance(event, Flushed):
            self._flush(f"{self.name} event {offset}", event, offset)
        elif isinstance(event, Retired) and event.files:
            if event.previous != self.retired_at:
                self.problems.append(
                    f"{self.name} event {offset}: names {event.previous} as the event that retired "
                    f"files before it, not {self.retired_at}"
                )
            self.files -= len(event.files)
            self.retired_at = offset

    def add_problem(self, what: str) -> None:
        """Adds a problem of the partition as a whole."""
        self.problems.append(f"{self.name}: {what}")

    def check_record(self, offset: int, count: int) -> None:
        """A record that is in the ingest log has so many entries. Rising offsets; those at or above
        the watermark once all events are known."""
        said = self._passed.get(offset) or self._open.get(offset)
        if said is not None:
            # A sealer of an older version may have read nothing of it, which is one entry.
            if said.count != count and not (said.count == 1 and said.unreadable):
                self._differing.add(f"{offset} has {count}, not {said.count}")
        elif _has(self._alive, offset):
            if count != 1:
                self._differing.add(f"{offset} has {count}, and is settled as alive")
        elif _has(self._passed_ranges, offset) or _has(self._ranges, offset):
            self._differing.add(f"{offset} has {count}, and is settled as no record or lost")
        elif offset >= self.watermark:
            self._untouched += 1
            self._untouched_entries += count

    def forget_passed(self) -> None:
        """Every record below the watermark was checked."""
        self._passed.clear()
        self._passed_ranges.clear()
        self._alive = [span for span in self._alive if span[1] > self.watermark]

    def add_deleted(self, first: int, stop: int) -> None:
        """Retention deleted these offsets before they were checked."""
        self._deleted.append((first, stop))

    def close(self, end: int) -> tuple[int, int]:
        """Adds the problems that show only once all events and all records are known; the ingest
        log ends at ``end``.

        Returns:
            How many entries were ever published, and how many of them are pending. An offset
            without a record counts as one.
        """
        tops = [self.watermark, *(offset + 1 for offset in self._open)]
        if max(tops + [stop for _, stop in self._ranges]) > end:
            self.add_problem(f"settles offsets beyond the end of the ingest log, {end}")
        if self._differing.count:
            self.add_problem(
                f"records whose number of entries is another than events say {self._differing}"
            )
        deleted, firsts = 0, list[int]()
        for first, stop in self._deleted:
            first = max(first, self.watermark)  # noqa: PLW2901
            gap = _first_gap(first, stop, [*_single(self._open), *self._ranges])
            untouched = self._untouched_between(first, stop)
            partly = [o for o, of in self._open.items() if first <= o < stop and of.left]
            deleted += untouched + len(partly)
            firsts += partly if gap is None else [*partly, gap]
        if deleted:
            self.add_problem(
                f"retention deleted records that are not settled ({deleted}, from {min(firsts)} "
                "on); a sealer will settle them as lost"
            )
        if self._lost.count:
            self.add_problem(
                f"records lost ({self._lost.count}; one that nobody read counts as one entry): "
                f"{self._lost.names}"
            )
        # Deleted, or markers of transactions that no sealer has come to yet.
        lacking = self._untouched_between(self.watermark, end) - self._untouched
        pending = sum(of.left for of in self._open.values()) + self._untouched_entries + lacking
        return self._published + self._untouched_entries + lacking, pending

    def _place(self, offset: int, kind: int) -> int:
        return (self._number << _OFFSET_BITS | offset) << _KIND_BITS | kind

    def _flush(self, where: str, event: Flushed, event_offset: int) -> None:
        self._settle(where, event)
        self._check_rows(where, event)
        segments, place = event.segments, self._place
        for uid, idx in zip(segments.uids, segments.segment_idxs.tolist(), strict=True):
            self._repeats.add(f"{idx}/{uid}", place(event_offset, SEGMENT), self._before)
        self._before += len(segments.offsets) + sum(len(one.offsets) for one in event.settled)
        for group_id in event.groups.group_ids:
            self._repeats.add(group_id, place(event_offset, GROUP))
        self.groups += len(event.groups)
        self.sealed += len(segments.offsets)
        self.imported += int((segments.offsets < 0).sum())
        for part in event.settled:
            self.settled[part.reason] += len(part.offsets)
            if part.reason == SettleReason.LOST:
                for lost in np.unique(part.offsets).tolist():
                    if lost > self._lost_last:
                        self._lost.add(str(lost))
                        self._lost_last = lost
        for ranges in event.unread:
            for first, stop in zip(ranges.firsts.tolist(), ranges.stops.tolist(), strict=True):
                self.settled[ranges.reason] += stop - first
                if ranges.reason == SettleReason.LOST:
                    self._lost.add(f"{first} to {stop - 1}", stop - first)
        for file in (*event.files, *event.incomplete):
            self._repeats.add(file.path, place(event_offset, FILE))
        self.files += len(event.files) + len(event.incomplete)

    def _settle(self, where: str, event: Flushed) -> None:
        touched = zip(event.touched.offsets.tolist(), event.touched.counts.tolist(), strict=True)
        for offset, count in touched:
            if offset < self.watermark:
                continue  # Its entries are named below.
            known = self._open.setdefault(offset, _Offset(count))
            if known.count != count:
                self.problems.append(
                    f"{where}: offset {offset} has {count} entries, by an earlier event "
                    f"{known.count}"
                )
            elif not known.settled:
                self._published += count
        twice: list[object] = []
        unknown = []
        parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
        for part in parts:
            unreadable = getattr(part, "reason", "") == SettleReason.UNREADABLE
            for ref in zip(part.offsets.tolist(), part.entries.tolist(), strict=True):
                offset, entry = ref
                if offset == NOT_INGESTED and part is event.segments:
                    continue
                of = self._open.get(offset)
                if offset < self.watermark or (of is not None and entry in of.settled):
                    twice.append(ref)
                elif of is None or not 0 <= entry < of.count:
                    unknown.append(ref)
                else:
                    of.settled.add(entry)
                    of.unreadable |= unreadable
        twice += self._settle_ranges(event)
        if twice:
            self.problems.append(f"{where}: (offset, entry) settled twice: {Named(twice).names}")
        if unknown:
            self.problems.append(
                f"{where}: (offset, entry) that it does not touch: {Named(unknown).names}"
            )
        self._move_watermark(where, event.watermark)

    def _settle_ranges(self, event: Flushed) -> list[tuple[int, int]]:
        """Returns those of which something is settled already."""
        twice = []
        for ranges in event.unread:
            for span in zip(ranges.firsts.tolist(), ranges.stops.tolist(), strict=True):
                self._published += span[1] - span[0]
                if span[0] < self.watermark or self._touches(*span):
                    twice.append(span)
                    continue
                insort(self._ranges, span)
                if ranges.reason == SettleReason.ALIVE:
                    insort(self._alive, span)
        return twice

    def _move_watermark(self, where: str, watermark: int) -> None:
        """What the watermark passes must be settled whole."""
        before = f"{where}: below the watermark {watermark}"
        if watermark < self.watermark:
            self.problems.append(
                f"{where}: the watermark goes back, {self.watermark} to {watermark}"
            )
            return
        passed = {o: self._open.pop(o) for o in [o for o in self._open if o < watermark]}
        ranges = [(first, min(stop, watermark)) for first, stop in self._ranges]
        ranges = [span for span in ranges if span[0] < watermark]
        untouched = watermark - self.watermark - len(passed) - _length(ranges)
        if untouched:
            first = _first_gap(self.watermark, watermark, [*_single(passed), *ranges])
            self.problems.append(f"{before} nothing settled {untouched} offsets, from {first} on")
        self._passed |= passed
        self._passed_ranges += ranges
        self._ranges = [(max(f, watermark), s) for f, s in self._ranges if s > watermark]
        short = [
            f"{offset} ({len(of.settled)} of {of.count})"
            for offset, of in passed.items()
            if of.left
        ]
        if short:
            self.problems.append(f"{before} not all entries are settled: {Named(short).names}")
        self.watermark = watermark

    def _touches(self, first: int, stop: int) -> bool:
        """Whether anything of these offsets is settled, by what is not below the watermark."""
        if any(low < stop and first < high for low, high in self._ranges):
            return True
        return any(first <= offset < stop for offset in self._open)

    def _untouched_between(self, first: int, stop: int) -> int:
        """How many offsets no event settles anything of; not below the watermark."""
        if first >= stop:
            return 0
        touched = sum(first <= offset < stop for offset in self._open)
        return stop - first - touched - _length(_clipped(self._ranges, first, stop))

    def _check_rows(self, where: str, event: Flushed) -> None:
        """Groups cover their files' rows exactly, in the order of segments."""
        next_rows = [0] * len(event.files)
        for group in event.groups:
            if not 0 <= group.file < len(event.files):
                self.problems.append(f"{where}: group {group.group_id} is in file {group.file}")
                continue
            if group.row_start != next_rows[group.file]:
                self.problems.append(
                    f"{where}: group {group.group_id} begins at row {group.row_start}, not "
                    f"{next_rows[group.file]}"
                )
            next_rows[group.file] = group.row_start + group.rows
        for file, rows in zip(event.files, next_rows, strict=True):
            if file.rows != rows:
                self.problems.append(f"{where}: groups name {rows} of {file.rows} in {file.path}")
        rows = int(event.groups.rows.sum())
        if rows != len(event.segments.offsets):
            self.problems.append(
                f"{where}: {rows} rows in groups, {len(event.segments.offsets)} segments"
            )


@dataclass(slots=True)
class _Offset:
    """How many entries a source offset has, which of them are settled, and whether one of them
    could not be read."""

    count: int
    settled: set[int] = field(default_factory=set)
    unreadable: bool = False

    @property
    def left(self) -> int:
        return self.count - len(self.settled)


class Named:
    """Counts things, and keeps the names of the first."""

    def __init__(self, names: Iterable[object] = ()) -> None:
        self.count = 0
        self._named: list[str] = []
        self._named_count = 0
        for name in names:
            self.add(str(name))

    def add(self, name: str, count: int = 1) -> None:
        self.count += count
        if len(self._named) < NAMED_MAX:
            self._named.append(name)
            self._named_count += count

    @property
    def names(self) -> str:
        more = self.count - self._named_count
        return ", ".join(self._named) + (f" and {more} more" if more else "")

    def __str__(self) -> str:
        return f"({self.count}): {self.names}"


def _single(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((offset, offset + 1) for offset in offsets)


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in spans)


def _clipped(spans: Iterable[tuple[int, int]], first: int, stop: int) -> Iterator[tuple[int, int]]:
    for low, high in spans:
        if low < stop and high > first:
            yield max(low, first), min(high, stop)


def _first_gap(first: int, stop: int, spans: Iterable[tuple[int, int]]) -> int | None:
    """The first of these offsets that no span has."""
    for low, high in sorted(_clipped(spans, first, stop)):
        if low > first:
            break
        first = max(first, high)
    return first if first < stop else None


def _has(ranges: Sequence[tuple[int, int]], offset: int) -> bool:
    index = bisect_right(ranges, (offset, math.inf)) - 1
    return index >= 0 and offset < ranges[index][1]


class Repeated(NamedTuple):
    """What the ledgers of one environment told of twice, in words.

    Attributes:
        problems: what no sound sealer writes.
        mistakes: what only producers can have done: no sealer knows the uids of other partitions,
            nor those that its dedupe horizon has passed.
    """

    problems: list[str]
    mistakes: list[str]


_TWICE = {
    SEGMENT: "segments are in two groups",
    GROUP: "groups were sealed twice",
    FILE: "files are named twice",
}
_MISTAKES = (
    "segments were published to two partitions under one rollout_uid, and each counts; give every "
    "rollout a uid of its own, and all of its entries one group",
    "segments were published again after more entries than dedupe_horizon, and each counts; raise "
    "it, or give every rollout a uid of its own",
)


def repeated(environment: str, repeats: Repeats, dedupe_horizon: int) -> Repeated:
    """What came twice.

    Args:
        dedupe_horizon: so many entries of a partition may be settled before a uid is forgotten.
    """
    found = {what: Named() for what in (*_TWICE.values(), *_MISTAKES)}
    for again in repeats.find():
        before, own = map(_of_place, again.places)
        what = _TWICE[own.kind]
        if own.kind == SEGMENT and before.partition != own.partition:
            what = _MISTAKES[0]
        elif own.kind == SEGMENT and again.between >= dedupe_horizon:
            what = _MISTAKES[1]
        events = (f"{environment}[{one.partition}] event {one.event}" for one in (before, own))
        found[what].add(" and ".join(events))

    def told(whats: Iterable[str]) -> list[str]:
        return [
            f"{environment}: {found[what].count} {what}: {found[what].names}"
            for what in whats
            if found[what].count
        ]

    return Repeated(told(_TWICE.values()), told(_MISTAKES))


class _Told(NamedTuple):
    partition: int
    event: int
    kind: int


def _of_place(place: int) -> _Told:
    rest, kind = place >> _KIND_BITS, place & (1 << _KIND_BITS) - 1
    return _Told(rest >> _OFFSET_BITS, rest & (1 << _OFFSET_BITS) - 1, kind)
