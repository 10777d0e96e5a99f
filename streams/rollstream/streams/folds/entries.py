"""Settled entries of source offsets, packed into numbers that sort by offset, then entry; offsets
that nobody read, as ranges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
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
    """Settled entries, how many entries each of their offsets has, and ranges of offsets that were
    settled unread. Nothing changes it, so that one thread may ask what another replaces.

    Attributes:
        settled: offset << 16 | entry, rising; int64.
        counts: offset << 16 | entries - 1, one an offset, rising; int64.
        unread: first offset and the one after the last of each range, rising; int64 [ranges, 2].
            No offset of them is in ``counts``.
    """

    settled: NDArray[np.int64]
    counts: NDArray[np.int64]
    unread: NDArray[np.int64]

    @property
    def offsets(self) -> int:
        """Of how many offsets any entry is settled."""
        return len(self.counts) + int((self.unread[:, 1] - self.unread[:, 0]).sum())

    @property
    def unsettled(self) -> int:
        """How many entries of these offsets are not among the settled ones."""
        return int((self.counts & _LOW).sum()) + len(self.counts) - len(self.settled)

    @property
    def first_offset(self) -> int | float:
        """The lowest offset; infinity without any."""
        firsts = [*(self.counts[:1] >> _BITS).tolist(), *self.unread[:1, 0].tolist()]
        return min(firsts, default=inf)

    @property
    def next_offset(self) -> int:
        """One past the highest offset; 0 without any."""
        last = (int(self.counts[-1]) >> _BITS) + 1 if len(self.counts) else 0
        return max(last, int(self.unread[-1, 1])) if len(self.unread) else last

    def of(self, offset: int) -> NDArray[np.int64]:
        """The settled entries of an offset, rising."""
        if self._is_unread(offset):
            return np.zeros(1, np.int64)
        bounds = (offset << _BITS, offset + 1 << _BITS)
        start, stop = np.searchsorted(self.settled, bounds)
        return self.settled[start:stop] & _LOW

    def count(self, offset: int) -> int:
        """How many entries the offset has; 0 where none of them is settled."""
        if self._is_unread(offset):
            return 1
        index = int(np.searchsorted(self.counts, offset << _BITS))
        if index == len(self.counts) or int(self.counts[index]) >> _BITS != offset:
            return 0
        return (int(self.counts[index]) & _LOW) + 1

    def split(self, offset: int) -> tuple[Entries, Entries]:
        """Those of offsets below ``offset``, and the others."""
        packed = (self.settled, self.counts)
        settled, counts = (int(np.searchsorted(keys, offset << _BITS)) for keys in packed)
        firsts, stops = self.unread.T
        below, above = self.unread[firsts < offset], self.unread[stops > offset]
        return (
            Entries(self.settled[:settled], self.counts[:counts], np.minimum(below, offset)),
            Entries(self.settled[settled:], self.counts[counts:], np.maximum(above, offset)),
        )

    def between(self, first: int, stop: int) -> Iterator[Stretch]:
        """All offsets of [first, stop), in order."""
        inside = self.split(first)[1].split(stop)[0]
        known = [Stretch(int(start), int(end), 1, (0,)) for start, end in inside.unread]
        for key in inside.counts.tolist():
            offset = key >> _BITS
            settled = frozenset(inside.of(offset).tolist())
            known.append(Stretch(offset, offset + 1, (key & _LOW) + 1, settled))
        for stretch in sorted(known, key=_first):
            if first < stretch.first:
                yield Stretch(first, stretch.first, 0, ())
            yield stretch
            first = stretch.stop
        if first < stop:
            yield Stretch(first, stop, 0, ())

    def joined(self, new: Entries) -> Entries:
        """These and the new ones.

        Raises:
            CorruptLog: both settle an entry, or an offset has another count here than there.
        """
        settled = _merged(self.settled, new.settled)
        counts = _merged(self.counts, new.counts)
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
        return Entries(settled, counts, _with_ranges(self.unread, new.unread, counts))

    def _is_unread(self, offset: int) -> bool:
        index = int(np.searchsorted(self.unread[:, 0], offset, "right")) - 1
        return index >= 0 and offset < int(self.unread[index, 1])


class Stretch(NamedTuple):
    """Offsets [first, stop) of which the same is known.

    Attributes:
        entries: how many each has; 0 where none is settled, and so nobody said how many.
        settled: those that are settled.
    """

    first: int
    stop: int
    entries: int
    settled: Collection[int]


NO_ENTRIES = Entries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2), np.int64))


def packed_entry(offset: int, entry: int) -> int:
    """As ``Entries.settled`` has it."""
    return offset << _BITS | entry


def packed_entries(part: SealedSegments | Settlements) -> NDArray[np.int64]:
    """The same of all of these, in their order."""
    return part.offsets << _BITS | part.entries


def entries_of(event: Flushed) -> Entries:
    """The entries that an event settles; what was imported is none.

    Raises:
        CorruptLog: their offsets are not those that it touches, or one of them is not below its
            offset's count.
    """
    parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
    entries = np.concatenate([part.entries for part in parts])
    settled = np.concatenate(list(map(packed_entries, parts)))
    settled = settled[settled >= 0]
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
    found = [np.stack([part.firsts, part.stops], axis=1) for part in event.unread]
    unread = np.concatenate([NO_ENTRIES.unread, *found])
    unread = unread[unread[:, 0].argsort()]
    if (unread[:, 0] >= unread[:, 1]).any():
        raise CorruptLog(f"ranges of offsets that are none: {unread.tolist()[:8]}")
    return Entries(settled, touched << _BITS | counts - 1, unread)


def _with_ranges(
    known: NDArray[np.int64], new: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Both, those that touch as one. Raises ``CorruptLog`` where an offset is in two, or has
    entries."""
    if not len(new) and not len(known):
        return known
    ranges = np.concatenate((known, new))
    firsts, stops = ranges[ranges[:, 0].argsort(kind="stable")].T
    overlap = np.flatnonzero(firsts[1:] < stops[:-1])
    if len(overlap):
        raise CorruptLog(f"source offset {firsts[1:][overlap[0]]} is settled a second time")
    offsets = counts >> _BITS
    index = np.searchsorted(firsts, offsets, "right") - 1
    inside = offsets[(index >= 0) & (offsets < stops[index])]
    if len(inside):
        raise CorruptLog(f"source offset {inside[0]} is settled a second time")
    apart = firsts[1:] != stops[:-1]
    return np.stack(
        [firsts[np.concatenate(([True], apart))], stops[np.concatenate((apart, [True]))]], axis=1
    )


def _named(key: np.int64) -> str:
    return f"entry {key & _LOW} of source offset {key >> _BITS}"


def _first(stretch: Stretch) -> int:
    return stretch.first


def _merged(known: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both, rising; in linear time, since a stable sort merges what is sorted."""
    merged = np.concatenate((known, new))
    merged.sort(kind="stable")
    return merged
