"""Settled entries of source offsets, packed into numbers that sort by offset, then entry. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import Flushed, SealedSegments, Settlements
from rollstream.schemas.ingest.entry import ENTRIES_MAX
from rollstream.streams.errors import CorruptLog

_BITS = 16  # Of a number: those below the offset.
_LOW = (1 << _BITS) - 1
assert ENTRIES_MAX == 1 << _BITS


class Entries(NamedTuple):
    """Settled entries, and how many entries each of their offsets has. Nothing changes it, so that
    one thread may ask what another replaces.

    Attributes:
        settled: offset << 16 | entry, rising; int64.
        counts: offset << 16 | entries - 1, one an offset, rising; int64.
    """

    settled: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def unsettled(self) -> int:
        """How many entries of these offsets are not among the settled ones."""
        return int((self.counts & _LOW).sum()) + len(self.counts) - len(self.settled)

    @property
    def next_offset(self) -> int:
        """One past the highest offset; 0 without any."""
        return (int(self.counts[-1]) >> _BITS) + 1 if len(self.counts) else 0

    def of(self, offset: int) -> NDArray[np.int64]:
        """The settled entries of an offset, rising."""
        bounds = (offset << _BITS, offset + 1 << _BITS)
        start, stop = np.searchsorted(self.settled, bounds)
        return self.settled[start:stop] & _LOW

    def count(self, offset: int) -> int:
        """How many entries the offset has; 0 where none of them is settled."""
        index = int(np.searchsorted(self.counts, offset << _BITS))
        if index == len(self.counts) or int(self.counts[index]) >> _BITS != offset:
            return 0
        return (int(self.counts[index]) & _LOW) + 1

    def split(self, offset: int) -> tuple[Entries, Entries]:
        """Those of offsets below ``offset``, and the others."""
        settled, counts = (int(np.searchsorted(keys, offset << _BITS)) for keys in self)
        return (
            Entries(self.settled[:settled], self.counts[:counts]),
            Entries(self.settled[settled:], self.counts[counts:]),
        )

    def joined(self, new: Entries) -> Entries:
        """These and the new ones.

        Raises:
            CorruptLog: both settle an entry, or an offset has another count here than there.
        """
        settled, counts = (_merged(*pair) for pair in zip(self, new, strict=True))
        twice = settled[1:][settled[1:] == settled[:-1]]
        if len(twice):
            raise CorruptLog(f"{_named(twice[0])} is settled a second time")
        if len(counts):
            known = counts[1:] >> _BITS == counts[:-1] >> _BITS
            differing = np.flatnonzero(known & (counts[1:] != counts[:-1]))
            if len(differing):
                one, other = counts[differing[0] :][:2]
                raise CorruptLog(
                    f"source offset {one >> _BITS} has {(one & _LOW) + 1} entries by one event and "
                    f"{(other & _LOW) + 1} by another"
                )
            counts = np.concatenate((counts[:1], counts[1:][~known]))
        return Entries(settled, counts)


NO_ENTRIES = Entries(np.empty(0, np.int64), np.empty(0, np.int64))


def entries_of(event: Flushed) -> Entries:
    """The entries that an event settles.

    Raises:
        CorruptLog: their offsets are not those that it touches, or one of them is not below its
            offset's count.
    """
    parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
    entries = np.concatenate([part.entries for part in parts])
    settled = np.concatenate([part.offsets for part in parts]) << _BITS | entries
    settled.sort()
    touched, counts = event.touched.offsets, event.touched.counts
    is_last = np.ones(len(settled), np.bool_)  # Of its offset.
    is_last[:-1] = settled[1:] >> _BITS != settled[:-1] >> _BITS
    last = settled[is_last]
    if (entries >> _BITS).any() or not np.array_equal(last >> _BITS, touched):
        raise CorruptLog("the offsets of its entries are not those that it says it touches")
    if (last & _LOW >= counts).any() or (counts > ENTRIES_MAX).any():
        at = int(np.flatnonzero((last & _LOW >= counts) | (counts > ENTRIES_MAX))[0])
        raise CorruptLog(f"{_named(last[at])} is settled; it says of {counts[at]} entries")
    return Entries(settled, touched << _BITS | counts - 1)


def _named(key: np.int64) -> str:
    return f"entry {key & _LOW} of source offset {key >> _BITS}"


def _merged(known: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both, rising; in linear time, since a stable sort merges what is sorted."""
    merged = np.concatenate((known, new))
    merged.sort(kind="stable")
    return merged
