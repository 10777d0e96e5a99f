"""Accounts for every entry that one partition's seal log settles. Pure, and deliberately a second
implementation of the fold that sealers use, so that a mistake in one does not hide in the other."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.events import Event, Flushed, SealedFile, SealedSegments, Settlements
from rollstream.schemas.reasons import SettleReason

NAMED_MAX = 5  # What a problem names one by one; the rest is counted.


class Balance(NamedTuple):
    """Entries that were ever published, and those of them that nothing has settled yet. A record
    that nobody read before retention deleted it counts as one."""

    published: int
    pending: int


class SegmentHashes:
    """The sealed segments of all partitions of an environment, as 16-byte hashes."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def add(self, rollout_uid: str, segment_idx: int) -> bool:
        """Adds a segment; False where it was added before."""
        key = xxhash.xxh3_128_digest(f"{segment_idx}/{rollout_uid}".encode())
        if key in self._known:
            return False
        self._known.add(key)
        return True


class Ledger:
    """Accounts for every event that counts, in order.

    Attributes:
        name: of the partition, in problems.
        problems: what no sound sealer writes, in words.
        sealed: how many segments are in groups.
        settled: by reason, how many entries ended without a group.
        files: that events name, by path.
    """

    def __init__(self, name: str, sealed_before: SegmentHashes) -> None:
        self.problems: list[str] = []
        self.watermark = 0
        self.sealed = 0
        self.groups = 0
        self.flushes = 0
        self.settled: Counter[str] = Counter()
        self.files: dict[str, SealedFile] = {}
        self.name = name
        self._sealed_before = sealed_before
        # Of touched offsets that are not below the watermark: settled entries, and how many it has.
        self._open: dict[int, set[int]] = {}
        self._counts: dict[int, int] = {}
        # Every offset that an event touched, and how many entries it says it has.
        self._touched = array("q")
        self._touched_counts = array("i")
        self._known: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None  # Both, sorted.
        self._unread = 0  # Entries of records that no event touched, and of those the pending ones.
        self._unread_pending = 0
        self._found: set[int] = set()  # Those records.
        self._differing: list[str] = []
        self._lost: set[int] = set()
        self._group_ids: set[str] = set()

    def apply(self, offset: int, event: Event) -> None:
        """The next event that counts."""
        if isinstance(event, Flushed):
            self._flush(f"{self.name} event {offset}", event)

    def add_problem(self, what: str) -> None:
        """Adds a problem of the partition as a whole."""
        self.problems.append(f"{self.name}: {what}")

    def check_records(self, offsets: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        """Counts records that are in the ingest log, once all events are known, each once.

        Args:
            offsets: int64 [n].
            counts: how many entries each has, int32 [n].
        """
        if self._known is None:
            touched = np.array(self._touched, np.int64)
            order = np.argsort(touched, kind="stable")
            # One more at the end, so that there is one at every index that `searchsorted` returns.
            self._known = (
                np.append(touched[order], np.iinfo(np.int64).max),
                np.append(np.array(self._touched_counts, np.int32)[order], 0),
            )
        known, known_counts = self._known
        at = np.searchsorted(known, offsets)
        touched_here = known[at] == offsets
        for index in np.flatnonzero(touched_here & (known_counts[at] != counts)).tolist():
            said = known_counts[at[index]]
            self._differing.append(f"{offsets[index]} has {counts[index]}, not {said}")
        self._unread += int(counts[~touched_here].sum())
        pending = ~touched_here & (offsets >= self.watermark)
        self._unread_pending += int(counts[pending].sum())
        self._found.update(offsets[pending].tolist())

    def close(self, first: int, end: int) -> Balance:
        """Adds the problems that show only once all events and all records that are kept are known;
        the ingest log has those of [first, end)."""
        if self.watermark > end or any(offset >= end for offset in self._open):
            self.add_problem(f"settles offsets beyond the end of the ingest log, {end}")
        if self._differing:
            self.add_problem(
                "records whose number of entries is another than events say "
                f"({len(self._differing)}): {_some(self._differing)}"
            )
        unread = [
            offset
            for offset in range(self.watermark, end)
            if offset not in self._open and offset not in self._found
        ]
        rest = {
            offset: self._counts.get(offset, 1) - len(settled)
            for offset, settled in self._open.items()
        }
        deleted = [offset for offset in unread if offset < first]
        deleted += [offset for offset, left in rest.items() if left and offset < first]
        if deleted:
            self.add_problem(
                f"retention deleted records that are not settled ({len(deleted)}, from "
                f"{min(deleted)} on); a sealer will settle them as lost"
            )
        absent = [offset for offset in unread if offset >= first]
        if absent:
            self.add_problem(
                f"offsets that nothing settled are not in the log ({len(absent)}, from "
                f"{absent[0]} on)"
            )
        if self._lost:
            self.add_problem(
                f"records lost, how many entries nobody read is not known ({len(self._lost)}): "
                f"{_some(sorted(self._lost))}"
            )
        return Balance(
            published=sum(self._touched_counts) + self._unread + len(unread),
            pending=sum(rest.values()) + self._unread_pending + len(unread),
        )

    def _flush(self, where: str, event: Flushed) -> None:
        self.flushes += 1
        self._settle(where, event)
        self._check_rows(where, event)
        segments = event.segments
        for uid, idx in zip(segments.uids, segments.segment_idxs.tolist(), strict=True):
            if not self._sealed_before.add(uid, idx):
                self.problems.append(f"{where}: segment {idx} of {uid!r} is in two groups")
        for group in event.groups:
            if group.group_id in self._group_ids:
                self.problems.append(f"{where}: group {group.group_id} was sealed before")
            self._group_ids.add(group.group_id)
        self.sealed += len(segments.offsets)
        self.groups += len(event.groups)
        for part in event.settled:
            self.settled[part.reason] += len(part.offsets)
            if part.reason == SettleReason.LOST:
                self._lost.update(part.offsets.tolist())
        for file in (*event.files, *event.incomplete):
            if file.path in self.files:
                self.problems.append(f"{where}: {file.path} was named before")
            self.files[file.path] = file

    def _settle(self, where: str, event: Flushed) -> None:
        touched = dict(
            zip(event.touched.offsets.tolist(), event.touched.counts.tolist(), strict=True)
        )
        for offset, count in touched.items():
            if offset >= self.watermark and offset not in self._counts:
                self._counts[offset] = count
                self._open[offset] = set()
                self._touched.append(offset)
                self._touched_counts.append(count)
            said = self._counts.get(offset, count)
            if said != count:
                self.problems.append(
                    f"{where}: offset {offset} has {count} entries, by an earlier event {said}"
                )
        twice, unknown = [], []
        parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
        for part in parts:
            for ref in zip(part.offsets.tolist(), part.entries.tolist(), strict=True):
                offset, entry = ref
                settled = self._open.setdefault(offset, set()) if offset >= self.watermark else None
                if settled is None or entry in settled:
                    twice.append(ref)
                elif not 0 <= entry < touched.get(offset, 0):
                    unknown.append(ref)
                if settled is not None:
                    settled.add(entry)
        if twice:
            self.problems.append(f"{where}: (offset, entry) settled twice: {_some(twice)}")
        if unknown:
            self.problems.append(
                f"{where}: (offset, entry) that no touched offset has: {_some(unknown)}"
            )
        self._move_watermark(where, event.watermark)

    def _move_watermark(self, where: str, watermark: int) -> None:
        """What the watermark passes must be settled whole."""
        if watermark < self.watermark:
            self.problems.append(
                f"{where}: the watermark goes back, {self.watermark} to {watermark}"
            )
            return
        span, opened = range(self.watermark, watermark), self._open
        # Either may be much longer: a watermark that is wrong, or one that was pinned.
        passed = (
            [offset for offset in span if offset in opened]
            if len(span) <= len(opened)
            else [offset for offset in opened if offset < watermark]
        )
        if untouched := len(span) - len(passed):
            some = list(islice((o for o in span if o not in opened), NAMED_MAX))
            self.problems.append(
                f"{where}: below the watermark {watermark} nothing settled {_some(some, untouched)}"
            )
        short = []
        for offset in passed:
            count, settled = self._counts.pop(offset, 1), len(opened.pop(offset))
            if settled < count:
                short.append(f"{offset} ({settled} of {count})")
        if short:
            self.problems.append(
                f"{where}: below the watermark {watermark} not all entries are settled: "
                f"{_some(short)}"
            )
        self.watermark = watermark

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
        rows = sum(group.rows for group in event.groups)
        if rows != len(event.segments.offsets):
            self.problems.append(
                f"{where}: {rows} rows in groups, {len(event.segments.offsets)} segments"
            )


def _some(what: Iterable[object], count: int | None = None) -> str:
    """The first ones of ``what``, of which there are ``count``, by default as many as are given."""
    found = list(what)
    named, more = ", ".join(map(str, found[:NAMED_MAX])), (count or len(found)) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
