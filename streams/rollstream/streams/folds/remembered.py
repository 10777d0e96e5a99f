"""Segments that were settled lately, compactly. Not stored: hashes are of this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.ids import SegmentId

RECENT_MAX = 8192  # Then they join the array, which copies it.


class Remembered:
    """Segments, and by which flush each was settled last: 12 bytes a segment, a hash of 64 bits
    and a number.

    A segment that was settled is always found. Another one is taken for it once in 2**64 pairs:
    with 262,144 remembered, one new segment in 7e13.

    One thread adds and forgets; others may ask meanwhile; they get what was so before or after.
    """

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}  # Hash to flush.
        # Sorted hashes, each once, and their flushes; replaced as a whole.
        self._old = np.empty(0, np.int64), np.empty(0, np.int32)
        self._first = 0

    def add(self, segments: Sequence[SegmentId], flush: int) -> None:
        """The flush of this number, which no older one follows, settled these."""
        self._recent.update(dict.fromkeys(map(hash, segments), flush))
        if len(self._recent) > RECENT_MAX:
            self._age()

    def forget(self, first: int) -> None:
        """Forgets what only flushes before this one settled."""
        self._first = first

    def among(self, segments: Sequence[SegmentId]) -> Sequence[int]:
        """The indexes of those that are remembered."""
        first, recent = self._first, self._recent  # First the recent ones: they only move on.
        hashes, flushes = self._old
        asked = [*map(hash, segments)]
        by = [recent.get(one, -1) for one in asked]  # Once: the other thread may be adding.
        found = [index for index, flush in enumerate(by) if flush >= first]
        if len(hashes):
            wanted = np.array(asked, np.int64)
            at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
            equal = hashes[at] == wanted
            if equal.any():
                old = np.flatnonzero(equal & (flushes[at] >= first)).tolist()
                found += [index for index in old if by[index] < 0]
        return found

    def _age(self) -> None:
        self._old = self._joined()
        self._recent = {}

    def _joined(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All of them, each with its newest flush, sorted."""
        count = len(self._recent)
        recent = np.fromiter(self._recent, np.int64, count)
        of_recent = np.fromiter(self._recent.values(), np.int32, count)
        by_hash = np.argsort(recent)
        old, of_old = self._old
        hashes = np.concatenate((old, recent[by_hash]))
        flushes = np.concatenate((of_old, of_recent[by_hash]))
        # Two sorted runs, which this merges; of equal ones the newer comes last.
        order = np.argsort(hashes, kind="stable")
        hashes, flushes = hashes[order], flushes[order]
        kept = flushes >= self._first
        kept[:-1] &= hashes[:-1] != hashes[1:]
        return hashes[kept], flushes[kept]
