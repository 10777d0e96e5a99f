"""Accounts for every entry that one partition's seal log settles. Pure, and deliberately a second
implementation of the fold that sealers use, so that a mistake in one does not hide in the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import xxhash

from rollstream.schemas.events import Event, Flushed, SealedFile, SealedSegments, Settlements
from rollstream.schemas.reasons import SettleReason

NAMED_MAX = 5  # What a problem names one by one; the rest is counted.


class Ledger:
    """Accounts for every event that counts, in order.

    Attributes:
        name: of the partition, in problems.
        problems: what no sound sealer writes, in words.
        sealed: how many segments are in groups.
        settled: by reason, how many entries ended without a group.
        flushes: offsets of the events.
        files: that events name, by path.

    Args:
        segments: hashes of the sealed segments of all partitions of an environment; it adds its
            own.
    """

    def __init__(self, name: str, segments: set[bytes]) -> None:
        self.name = name
        self.problems: list[str] = []
        self.watermark = 0
        self.sealed = 0
        self.settled: Counter[str] = Counter()
        self.flushes: list[int] = []
        self.files: dict[str, SealedFile] = {}
        self.group_ids: set[str] = set()
        self._segments = segments
        self._counts: dict[int, int] = {}  # Of each touched offset, how many entries it has.
        self._open: dict[int, set[int]] = {}  # Of those not below the watermark, settled entries.
        self._unread: dict[int, int] = {}  # Of records that no event touched, how many they have.
        self._differing: list[str] = []
        self._lost: set[int] = set()
        self._unreadable: set[int] = set()  # Offsets with entries that end so.

    def apply(self, offset: int, event: Event) -> None:
        """The next event that counts."""
        if isinstance(event, Flushed):
            self.flushes.append(offset)
            self._flush(f"{self.name} event {offset}", event)

    def add_problem(self, what: str) -> None:
        """Adds a problem of the partition as a whole."""
        self.problems.append(f"{self.name}: {what}")

    def check_record(self, offset: int, count: int) -> None:
        """A record that is in the ingest log has so many entries; once all events are known."""
        said = self._counts.get(offset)
        if said is None:
            self._unread[offset] = count
        elif said != count and not (said == 1 and offset in self._unreadable):
            # A sealer of an older version may have read nothing of it, which is one entry.
            self._differing.append(f"{offset} has {count}, not {said}")

    def close(self, first: int, end: int) -> tuple[int, int]:
        """Adds the problems that show only once all events and all records are known; the ingest
        log has those of [first, end).

        Returns:
            How many entries were ever published, and how many of them are pending. A record that
            retention deleted before anybody read it counts as one.
        """
        if max([self.watermark, *(offset + 1 for offset in self._open)]) > end:
            self.add_problem(f"settles offsets beyond the end of the ingest log, {end}")
        if self._differing:
            self.add_problem(
                "records whose number of entries is another than events say "
                f"({len(self._differing)}): {_some(self._differing)}"
            )
        pending = {
            offset: self._counts[offset] - len(settled)
            if (settled := self._open.get(offset)) is not None
            else self._unread.get(offset)
            for offset in range(self.watermark, end)
        }
        deleted = [o for o, count in pending.items() if count != 0 and o < first]
        if deleted:
            self.add_problem(
                f"retention deleted records that are not settled ({len(deleted)}, from "
                f"{deleted[0]} on); a sealer will settle them as lost"
            )
        absent = [o for o, count in pending.items() if count is None]
        kept = [offset for offset in absent if offset >= first]
        if kept:
            self.add_problem(
                f"offsets that nothing settled are not in the log ({len(kept)}, from {kept[0]} on)"
            )
        if self._lost:
            self.add_problem(
                f"records lost ({len(self._lost)}; one that nobody read counts as one entry): "
                f"{_some(sorted(self._lost))}"
            )
        known = sum(self._counts.values()) + sum(self._unread.values())
        return known + len(absent), sum(filter(None, pending.values())) + len(absent)

    def _flush(self, where: str, event: Flushed) -> None:
        self._settle(where, event)
        self._check_rows(where, event)
        segments = event.segments
        for uid, idx in zip(segments.uids, segments.segment_idxs.tolist(), strict=True):
            segment = xxhash.xxh3_128_digest(f"{idx}/{uid}".encode())
            if segment in self._segments:
                self.problems.append(f"{where}: segment {idx} of {uid!r} is in two groups")
            self._segments.add(segment)
        for group in event.groups:
            if group.group_id in self.group_ids:
                self.problems.append(f"{where}: group {group.group_id} was sealed before")
            self.group_ids.add(group.group_id)
        self.sealed += len(segments.offsets)
        for part in event.settled:
            self.settled[part.reason] += len(part.offsets)
            if part.reason == SettleReason.LOST:
                self._lost.update(part.offsets.tolist())
            elif part.reason == SettleReason.UNREADABLE:
                self._unreadable.update(part.offsets.tolist())
        for file in (*event.files, *event.incomplete):
            if file.path in self.files:
                self.problems.append(f"{where}: {file.path} was named before")
            self.files[file.path] = file

    def _settle(self, where: str, event: Flushed) -> None:
        touched = zip(event.touched.offsets.tolist(), event.touched.counts.tolist(), strict=True)
        for offset, count in touched:
            said = self._counts.setdefault(offset, count)
            if said != count:
                self.problems.append(
                    f"{where}: offset {offset} has {count} entries, by an earlier event {said}"
                )
            if offset >= self.watermark:
                self._open.setdefault(offset, set())
        twice, unknown = [], []
        parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
        for part in parts:
            for ref in zip(part.offsets.tolist(), part.entries.tolist(), strict=True):
                offset, entry = ref
                settled = self._open.get(offset)
                if offset < self.watermark or (settled is not None and entry in settled):
                    twice.append(ref)
                elif settled is None or not 0 <= entry < self._counts[offset]:
                    unknown.append(ref)
                else:
                    settled.add(entry)
        if twice:
            self.problems.append(f"{where}: (offset, entry) settled twice: {_some(twice)}")
        if unknown:
            self.problems.append(
                f"{where}: (offset, entry) that it does not touch: {_some(unknown)}"
            )
        self._move_watermark(where, event.watermark)

    def _move_watermark(self, where: str, watermark: int) -> None:
        """What the watermark passes must be settled whole."""
        before = f"{where}: below the watermark {watermark}"
        if watermark < self.watermark:
            self.problems.append(
                f"{where}: the watermark goes back, {self.watermark} to {watermark}"
            )
            return
        passed = {o: self._open.pop(o) for o in [o for o in self._open if o < watermark]}
        untouched = watermark - self.watermark - len(passed)
        if untouched:
            first = next(o for o in range(self.watermark, watermark) if o not in passed)
            self.problems.append(f"{before} nothing settled {untouched} offsets, from {first} on")
        short = [
            f"{offset} ({len(settled)} of {self._counts[offset]})"
            for offset, settled in passed.items()
            if len(settled) < self._counts[offset]
        ]
        if short:
            self.problems.append(f"{before} not all entries are settled: {_some(short)}")
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


def _some(what: Sequence[object]) -> str:
    named = ", ".join(map(str, what[:NAMED_MAX]))
    return named if len(what) <= NAMED_MAX else f"{named} and {len(what) - NAMED_MAX} more"
