"""Pairs of unsigned integers in order, at about 20 bytes a pair. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from typing import NamedTuple

BLOCK_MAX = 1_024  # Pairs in a block before it is split.
NEWEST_MAX = 1_024  # Pairs beside the blocks: about 300 bytes each.
_Pair = tuple[int, int]


class _Block(NamedTuple):
    """Rising pairs, as two arrays that are equally long."""

    firsts: array[int]
    seconds: array[int]

    def place(self, first: int, second: int) -> int:
        """How many pairs are below this one."""
        start = bisect_left(self.firsts, first)
        if start == len(self.firsts) or self.firsts[start] != first:
            return start
        return bisect_left(self.seconds, second, start, bisect_right(self.firsts, first, start))


class SortedPairs:
    """A sorted set of pairs of integers from 0 to 2**64 - 1.

    Adding, removing and finding take a few microseconds among a million, and a fraction of one
    among the ``NEWEST_MAX`` that came last: a pair that goes again soon is put into no order. It
    must not change while it is iterated.
    """

    def __init__(self, pairs: Iterable[_Pair] = ()) -> None:
        self._size = 0
        self._blocks: list[_Block] = []
        self._lasts = _block()  # The greatest pair of each block.
        # Those that are in no block, by first integer.
        self._newest: dict[int, set[int]] = {}
        self._newest_size = 0
        ordered = sorted(pairs)
        for start in range(0, len(ordered), BLOCK_MAX // 2):
            part = ordered[start : start + BLOCK_MAX // 2]
            self._put(len(self._blocks), _block(part))
            self._size += len(part)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_Pair]:
        newest = self._sorted_newest()
        if not self._blocks:
            return iter(newest)
        older = chain.from_iterable(zip(*block, strict=True) for block in self._blocks)
        return merge(older, newest) if newest else older

    def __copy__(self) -> SortedPairs:
        """The same pairs, which change apart from these."""
        other = SortedPairs()
        other._size, other._newest_size = self._size, self._newest_size
        other._newest = {first: seconds.copy() for first, seconds in self._newest.items()}
        other._blocks = [_Block(firsts[:], seconds[:]) for firsts, seconds in self._blocks]
        other._lasts = _Block(self._lasts.firsts[:], self._lasts.seconds[:])
        return other

    def seconds(self, first: int) -> array[int]:
        """The second integers of all pairs with this first one; they rise."""
        found = array("Q")
        at = bisect_left(self._lasts.firsts, first)
        while at < len(self._blocks):
            firsts, seconds = self._blocks[at]
            start = bisect_left(firsts, first)
            stop = bisect_right(firsts, first, start)
            found.extend(seconds[start:stop])
            if stop < len(firsts):
                break
            at += 1
        newest = self._newest.get(first)
        if newest is None:
            return found
        return array("Q", newest if len(newest) == 1 and not found else sorted((*found, *newest)))

    def any_second(self, first: int) -> int | None:
        """The second integer of one of the pairs with this first one; None without any."""
        newest = self._newest.get(first)
        if newest is not None:
            return next(iter(newest))
        at = bisect_left(self._lasts.firsts, first)
        if at == len(self._blocks):
            return None
        firsts, seconds = self._blocks[at]
        start = bisect_left(firsts, first)
        return seconds[start] if firsts[start] == first else None

    def add(self, first: int, second: int) -> None:
        """It must not be there yet."""
        self._size += 1
        newest = self._newest.get(first)
        if newest is None:
            self._newest[first] = {second}
        else:
            newest.add(second)
        self._newest_size += 1
        if self._newest_size > NEWEST_MAX:
            for pair in self._sorted_newest():
                self._insert(*pair)
            self._newest, self._newest_size = {}, 0

    def remove(self, first: int, second: int) -> None:
        """It must be there."""
        self._size -= 1
        newest = self._newest.get(first)
        if newest is not None and second in newest:
            self._newest_size -= 1
            newest.discard(second)
            if not newest:
                del self._newest[first]
            return
        at = self._lasts.place(first, second)
        block = self._blocks[at]
        place = block.place(first, second)
        assert (block.firsts[place], block.seconds[place]) == (first, second)
        del block.firsts[place], block.seconds[place]
        if not block.firsts:
            self._take_out(at)
        elif place == len(block.firsts):
            self._lasts.firsts[at], self._lasts.seconds[at] = block.firsts[-1], block.seconds[-1]

    def _sorted_newest(self) -> list[_Pair]:
        return sorted((one, other) for one, others in self._newest.items() for other in others)

    def _insert(self, first: int, second: int) -> None:
        if not self._blocks:
            self._put(0, _block([(first, second)]))
            return
        at = min(self._lasts.place(first, second), len(self._blocks) - 1)
        block = self._blocks[at]
        place = block.place(first, second)
        block.firsts.insert(place, first)
        block.seconds.insert(place, second)
        count = len(block.firsts)
        if count > BLOCK_MAX:
            upper = _Block(block.firsts[count // 2 :], block.seconds[count // 2 :])
            lower = _Block(block.firsts[: count // 2], block.seconds[: count // 2])
            self._take_out(at)
            self._put(at, upper)
            self._put(at, lower)
        elif place == count - 1:
            self._lasts.firsts[at], self._lasts.seconds[at] = first, second

    def _put(self, at: int, block: _Block) -> None:
        self._blocks.insert(at, block)
        self._lasts.firsts.insert(at, block.firsts[-1])
        self._lasts.seconds.insert(at, block.seconds[-1])

    def _take_out(self, at: int) -> None:
        del self._blocks[at], self._lasts.firsts[at], self._lasts.seconds[at]


def _block(pairs: Iterable[_Pair] = ()) -> _Block:
    firsts, seconds = array("Q"), array("Q")
    for first, second in pairs:
        firsts.append(first)
        seconds.append(second)
    return _Block(firsts, seconds)
