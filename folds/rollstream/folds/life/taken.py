"""Which groups a decision took, so that they may not be served (again). Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

_ALL = -1  # A mask with a bit for each group, however many there are.


class TakenGroups:
    """One bit a group; of a run of flushes whose groups have all ended, its bounds alone. Where it
    is not known how many groups a flush has, about 20 bytes once those that were taken have ended.

    Also of logs that are not configured any more: what was decided stays decided.
    """

    def __init__(self) -> None:
        self._logs: dict[tuple[str, int, int], _OfLog] = {}

    def __contains__(self, ref: GroupRef) -> bool:
        found = self._logs.get(ref[:3])
        return found is not None and bool(found.taken_of(ref[3]) >> ref[4] & 1)

    def of_flush(self, log: PartitionAddress, offset: int) -> tuple[int, int]:
        """Of the flush a bit for each group that is taken, by its index there, and a bit for each
        that has not ended; -1: all. The latter has those that are not taken."""
        found = self._logs.get(log)
        return (0, _ALL) if found is None else (found.taken_of(offset), found.left_of(offset))

    def count_before(self, log: PartitionAddress, start: int) -> int:
        """How many groups of the flushes before ``start`` are taken, where the first event of the
        log that was applied is."""
        found = self._logs.get(log)
        return 0 if found is None else found.count_before(start)

    def add(self, log: tuple[str, int, int], refs: Sequence[GroupRef]) -> list[GroupRef]:
        """The groups of a log are taken from now on; returns those that were not."""
        return self._of(log).add(refs) if refs else []

    def remove(self, ref: GroupRef) -> bool:
        """The group may be served again; returns whether it was taken, and had not ended."""
        return self._of(ref[:3]).remove(ref[3], ref[4])

    def end(self, log: tuple[str, int, int], refs: Sequence[GroupRef]) -> None:
        """The groups of a log, which are taken, stay so for ever."""
        if refs:
            self._of(log).end(refs)

    def apply(self, log: PartitionAddress, first: int, offset: int, groups: int) -> None:
        """The event at this offset, the next one that counts, is applied; it sealed so many groups.

        Args:
            first: the offset after the event before it.
        """
        self._of(log).apply(first, offset, groups)

    def sorted_items(self) -> list[tuple[object, object]]:
        """For a digest."""
        return [(tuple(log), found.sorted_items()) for log, found in sorted(self._logs.items())]

    def _of(self, log: tuple[str, int, int]) -> _OfLog:
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = _OfLog()
        return found


class _OfLog:
    """Of one seal log. A flush is in the mappings, in a range, or in ``ended``, never in two.

    Attributes:
        taken: by offset of the flush, a bit for each group that is taken.
        left: by offset of the flush, a bit for each group that has not ended; while it is not
            known how many groups it has, for all beyond.
        starts, stops: of ranges of offsets in which every group has ended; they rise.
        ended: (offset, count) of flushes that are not applied: so many of the first groups are
            taken and have ended, and no other was named.
    """

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.starts = array("Q")
        self.stops = array("Q")
        self.ended = SortedRows(2)

    def taken_of(self, offset: int) -> int:
        mask = self.taken.get(offset)
        if mask is not None:
            return mask
        at = bisect_right(self.starts, offset)
        if at and offset < self.stops[at - 1]:
            return _ALL
        row = self.ended.least(offset)
        return 0 if row is None else (1 << row[1]) - 1

    def left_of(self, offset: int) -> int:
        taken = self.taken_of(offset)
        return self.left.get(offset, _ALL) if offset in self.taken or not taken else ~taken

    def count_before(self, start: int) -> int:
        assert not self.starts or start <= self.starts[0], (start, self.starts[0])
        return sum(mask.bit_count() for at, mask in self.sorted_items()[0] if at < start)

    def add(self, refs: Iterable[GroupRef]) -> list[GroupRef]:
        added = []
        for ref in refs:
            *_, offset, index = ref
            mask = self.taken.get(offset)
            if mask is None:
                self._open(offset)
                mask = self.taken_of(offset)
            if not mask >> index & 1:
                self.taken[offset] = mask | 1 << index
                added.append(ref)
        return added

    def remove(self, offset: int, index: int) -> bool:
        bit = 1 << index
        mask = self.taken.get(offset, 0)
        if not mask & bit or not self.left.get(offset, _ALL) & bit:
            return False
        if mask == bit:
            del self.taken[offset]
        else:
            self.taken[offset] = mask ^ bit
        return True

    def end(self, refs: Iterable[GroupRef]) -> None:
        for *_, offset, index in refs:
            mask = self.taken.get(offset)
            if mask is not None:  # Else it has ended.
                self._end(offset, mask, self.left.get(offset, _ALL) & ~(1 << index))

    def _end(self, offset: int, mask: int, left: int) -> None:
        if not left:
            self._end_all(offset, offset + 1)
        elif left == ~mask and not mask & mask + 1:
            self.taken.pop(offset)
            self.left.pop(offset, None)
            self.ended.add(offset, mask.bit_length())
        else:
            self.left[offset] = left

    def apply(self, first: int, offset: int, groups: int) -> None:
        self._open(offset)
        left = self.left.get(offset, _ALL) & (1 << groups) - 1
        if left:
            self.left[offset] = left
            self._put(first, offset)
        else:
            self._end_all(first, offset + 1)

    def sorted_items(self) -> tuple[list[tuple[int, int]], array[int], array[int]]:
        ended = ((offset, (1 << count) - 1) for offset, count in self.ended)
        return sorted([*self.taken.items(), *ended]), self.starts, self.stops

    def _open(self, offset: int) -> None:
        """The flush is in no row of ``ended``."""
        row = self.ended.least(offset) if len(self.ended) else None
        if row is not None:
            self.ended.remove(*row)
            self.taken[offset] = (1 << row[1]) - 1
            self.left[offset] = ~self.taken[offset]

    def _end_all(self, start: int, stop: int) -> None:
        self.taken.pop(stop - 1, None)
        self.left.pop(stop - 1, None)
        self._put(start, stop)

    def _put(self, start: int, stop: int) -> None:
        """These offsets, of which none is in a range, as one or as parts of their neighbours."""
        if start == stop:
            return
        at = bisect_left(self.starts, start)
        if at < len(self.starts) and self.starts[at] == stop:
            stop = self.stops[at]
            del self.starts[at], self.stops[at]
        if at and self.stops[at - 1] == start:
            self.stops[at - 1] = stop
            return
        self.starts.insert(at, start)
        self.stops.insert(at, stop)
