"""Rows of unsigned integers in order, at about 10 bytes an integer. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain

BLOCK_MAX = 1_024  # Rows in a block before it is split.
NEWEST_MAX = 1_024  # Rows beside the blocks: about 300 bytes each.
_Row = tuple[int, ...]


class _Block:
    """Rising rows, as arrays that are equally long, one a column."""

    def __init__(self, columns: list[array[int]]) -> None:
        self.columns = columns
        self.firsts = columns[0]

    @classmethod
    def of(cls, width: int, rows: Iterable[_Row] = ()) -> _Block:
        block = cls([array("Q") for _ in range(width)])
        for row in rows:
            block.insert(len(block.firsts), row)
        return block

    def place(self, row: _Row) -> int:
        """How many rows are below this one."""
        start, stop = 0, len(self.firsts)
        for column, value in zip(self.columns, row, strict=True):
            start = bisect_left(column, value, start, stop)
            if start == stop or column[start] != value:
                return start
            stop = bisect_right(column, value, start, stop)
        return start

    def row(self, at: int) -> _Row:
        return tuple([column[at] for column in self.columns])

    def part(self, start: int, stop: int) -> _Block:
        return _Block([column[start:stop] for column in self.columns])

    def insert(self, at: int, row: _Row) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.insert(at, value)

    def delete(self, at: int) -> None:
        for column in self.columns:
            del column[at]

    def assign(self, at: int, row: _Row) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column[at] = value


class SortedRows:
    """A sorted set of rows of so many integers from 0 to 2**64 - 1.

    Adding, removing and finding take a few microseconds among a million, and a fraction of one
    among the ``NEWEST_MAX`` that came last: a row that goes again soon is put into no order. It
    must not change, nor be asked for ``lasts``, while it is iterated.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._size = 0
        self._blocks: list[_Block] = []
        self._greatest = _Block.of(width)  # The greatest row of each block.
        # Those that are in no block, by first integer.
        self._newest: dict[int, set[_Row]] = {}
        self._newest_size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_Row]:
        newest = self._sorted_newest()
        if not self._blocks:
            return iter(newest)
        older = chain.from_iterable(zip(*block.columns, strict=True) for block in self._blocks)
        return merge(older, newest) if newest else older

    def __copy__(self) -> SortedRows:
        """The same rows, which change apart from these."""
        other = SortedRows(self._width)
        other._size, other._newest_size = self._size, self._newest_size
        other._newest = {first: rows.copy() for first, rows in self._newest.items()}
        other._blocks = [block.part(0, len(block.firsts)) for block in self._blocks]
        other._greatest = self._greatest.part(0, len(self._blocks))
        return other

    def lasts(self, first: int) -> array[int]:
        """The last integers of all rows with this first one, in the order of the rows."""
        newest = self._newest.get(first)
        if newest is not None:
            if self._in_blocks(first) is None:
                return array("Q", [row[-1] for row in sorted(newest)])
            self._sort_in()
        found = array("Q")
        for block, start, stop in self._ranges(first):
            found.extend(block.columns[-1][start:stop])
        return found

    def count(self, first: int) -> int:
        """How many rows have this first integer."""
        older = sum(stop - start for _, start, stop in self._ranges(first))
        return older + len(self._newest.get(first, ()))

    def least(self, first: int) -> _Row | None:
        """The first of the rows with this first integer; None without any."""
        older, newest = self._in_blocks(first), self._newest.get(first)
        if newest is None:
            return older
        return min(newest) if older is None else min(older, *newest)

    def add(self, *row: int) -> None:
        """It must not be there yet."""
        self._size += 1
        newest = self._newest.get(row[0])
        if newest is None:
            self._newest[row[0]] = {row}
        else:
            newest.add(row)
        self._newest_size += 1
        if self._newest_size > NEWEST_MAX:
            self._sort_in()

    def remove(self, *row: int) -> None:
        """It must be there."""
        self._size -= 1
        newest = self._newest.get(row[0])
        if newest is not None and row in newest:
            self._newest_size -= 1
            newest.discard(row)
            if not newest:
                del self._newest[row[0]]
            return
        at = self._greatest.place(row)
        block = self._blocks[at]
        place = block.place(row)
        assert block.row(place) == row
        block.delete(place)
        if not block.firsts:
            self._take_out(at)
        elif place == len(block.firsts):
            self._greatest.assign(at, block.row(-1))

    def _ranges(self, first: int) -> Iterator[tuple[_Block, int, int]]:
        """Of each block that has rows with this first integer: from which to which."""
        for at in range(bisect_left(self._greatest.firsts, first), len(self._blocks)):
            firsts = self._blocks[at].firsts
            start = bisect_left(firsts, first)
            stop = bisect_right(firsts, first, start)
            if start < stop:
                yield self._blocks[at], start, stop
            if stop < len(firsts):
                return

    def _in_blocks(self, first: int) -> _Row | None:
        """The least row with this first integer that is in a block."""
        at = bisect_left(self._greatest.firsts, first)
        if at == len(self._blocks):
            return None
        block = self._blocks[at]
        start = bisect_left(block.firsts, first)
        return block.row(start) if block.firsts[start] == first else None

    def _sorted_newest(self) -> list[_Row]:
        return sorted(chain.from_iterable(self._newest.values()))

    def _sort_in(self) -> None:
        for row in self._sorted_newest():
            self._insert(row)
        self._newest, self._newest_size = {}, 0

    def _insert(self, row: _Row) -> None:
        if not self._blocks:
            self._put(0, _Block.of(self._width, [row]))
            return
        at = min(self._greatest.place(row), len(self._blocks) - 1)
        block = self._blocks[at]
        place = block.place(row)
        block.insert(place, row)
        count = len(block.firsts)
        if count > BLOCK_MAX:
            upper, lower = block.part(count // 2, count), block.part(0, count // 2)
            self._take_out(at)
            self._put(at, upper)
            self._put(at, lower)
        elif place == count - 1:
            self._greatest.assign(at, row)

    def _put(self, at: int, block: _Block) -> None:
        self._blocks.insert(at, block)
        self._greatest.insert(at, block.row(-1))

    def _take_out(self, at: int) -> None:
        del self._blocks[at]
        self._greatest.delete(at)
