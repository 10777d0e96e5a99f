"""Accounts for every offset that one partition's seal log settles. Pure, and deliberately a second
implementation of the fold that sealers use, so that a mistake in one does not hide in the other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.events import Event, Flushed, SealedFile
from rollstream.schemas.reasons import SettleReason

NAMED_MAX = 5  # Offsets that a problem names; the rest are counted.


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
        settled: by reason, how many offsets ended without a group.
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
        self._above: NDArray[np.int64] = np.empty(0, np.int64)
        self._lost: list[NDArray[np.int64]] = []
        self._group_ids: set[str] = set()

    def apply(self, offset: int, event: Event) -> None:
        """The next event that counts."""
        if isinstance(event, Flushed):
            self._flush(f"{self.name} event {offset}", event)

    def add_problem(self, what: str) -> None:
        """Adds a problem of the partition as a whole."""
        self.problems.append(f"{self.name}: {what}")

    def unsettled(self, end: int) -> NDArray[np.int64]:
        """Offsets below ``end`` that nothing settled; int64 [n], rising."""
        span = np.arange(self.watermark, max(end, self.watermark), dtype=np.int64)
        return span[~np.isin(span, self._above)]

    def close(self, end: int) -> None:
        """Adds the problems that show only once all events are known; the ingest log ends at
        ``end``."""
        beyond = self._above[self._above >= end]
        if len(beyond) or self.watermark > end:
            self.add_problem(f"settles offsets beyond the end of the ingest log, {end}")
        lost = np.concatenate(self._lost) if self._lost else np.empty(0, np.int64)
        if len(lost):
            self.add_problem(f"offsets lost ({len(lost)}): {_some(lost)}")

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
                self._lost.append(np.asarray(part.offsets))
        for file in (*event.files, *event.incomplete):
            if file.path in self.files:
                self.problems.append(f"{where}: {file.path} was named before")
            self.files[file.path] = file

    def _settle(self, where: str, event: Flushed) -> None:
        parts = [event.segments.offsets, *(part.offsets for part in event.settled)]
        new = np.concatenate(parts).astype(np.int64)
        again = new[(new < self.watermark) | np.isin(new, self._above)]
        once, counts = np.unique(new, return_counts=True)
        again = np.concatenate((again, once[counts > 1]))
        if len(again):
            self.problems.append(f"{where}: offsets settled twice: {_some(again)}")
        if event.watermark < self.watermark:
            self.problems.append(
                f"{where}: the watermark goes back, {self.watermark} to {event.watermark}"
            )
            return
        above = np.union1d(self._above, once[once >= self.watermark])
        span = np.arange(self.watermark, event.watermark, dtype=np.int64)
        holes = span[~np.isin(span, above)]
        if len(holes):
            self.problems.append(
                f"{where}: below the watermark {event.watermark} nothing settled {_some(holes)}"
            )
        self.watermark = event.watermark
        self._above = above[above >= event.watermark]

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


def _some(offsets: NDArray[np.int64]) -> str:
    named = ", ".join(map(str, offsets[:NAMED_MAX].tolist()))
    return named if len(offsets) <= NAMED_MAX else f"{named} and {len(offsets) - NAMED_MAX} more"
