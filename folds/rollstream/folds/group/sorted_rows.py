"""Rows of unsigned integers in order, at about 10 bytes an integer. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Container, Iterator, Sequence
from heapq import merge
from itertools import chain, compress, filterfalse, islice

import numpy as np

BLOCK_MAX = 1_024  # Rows in a block before it is split.
NEWEST_MAX = 2_048  # Rows beside the blocks: about 250 bytes each.
_REBUILT_FROM = 64  # Rows for one block that are merged with its own at once.
_FEW = 16  # A row is looked up in the time that so many are passed over.
_Row = tuple[int, ...]


class _Block:
    """Rising rows, as arrays that are equally long, one a column."""

    def __init__(self, columns: Sequence[array[int]]) -> None:
        self.columns = columns
        self.firsts = columns[0]

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> _Block:
        return cls([array("Q", column) for column in zip(*rows, strict=True)])

    def place(self, row: _Row) -> int:
        """How many rows are below this one."""
        start, stop = 0, len(self.firsts)
        for column, value in zip(self.columns, row, strict=True):
            start = bisect_left(column, value, start, stop)
            if start == stop or column[start] != value:
                return start
            if start + 1 == stop or column[start + 1] != value:  # One alone begins so.
                return start + (self.row(start) < row)
            stop = bisect_right(column, value, start + 1, stop)
        return start

    def row(self, at: int) -> _Row:
        return tuple([column[at] for column in self.columns])

    def rows(self) -> Iterator[_Row]:
        return zip(*self.columns, strict=True)

    def ending_in(self, lasts: Container[int]) -> Iterator[_Row]:
        found = map(lasts.__contains__, self.columns[-1])
        return map(self.row, compress(range(len(self.firsts)), found))

    def part(self, start: int, stop: int) -> _Block:
        return _Block([column[start:stop] for column in self.columns])

    def insert(self, at: int, row: _Row) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.insert(at, value)

    def delete(self, start: int, stop: int) -> None:
        for column in self.columns:
            del column[start:stop]

    def assign(self, at: int, row: _Row) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column[at] = value


class SortedRows:
    """A sorted set of rows of so many integers from 0 to 2**64 - 1.

    Adding, removing and finding take a few microseconds among a million, and about one among the
    ``NEWEST_MAX`` that came last. It must not change, nor be asked for ``columns``, while it is
    iterated.
    """

    def __init__(self, width: int) -> None:
        self._size = 0
        self._blocks: list[_Block] = []
        self._greatest = _Block([array("Q") for _ in range(width)])  # A row for each block.
        self._newest: list[_Row] = []  # Rising; they are in no block.

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_Row]:
        if not self._blocks:
            return iter(self._newest)
        older = chain.from_iterable(block.rows() for block in self._blocks)
        return merge(older, self._newest) if self._newest else older

    def __copy__(self) -> SortedRows:
        """The same rows, which change apart from these."""
        other = SortedRows(len(self._greatest.columns))
        other._size, other._newest = self._size, self._newest.copy()
        other._blocks = [block.part(0, len(block.firsts)) for block in self._blocks]
        other._greatest = self._greatest.part(0, len(self._blocks))
        return other

    def below(self, first: int) -> Iterator[_Row]:
        """The rows whose first integer is less, in no order."""
        for block in self._blocks:
            stop = bisect_left(block.firsts, first)
            yield from islice(block.rows(), stop)
            if stop < len(block.firsts):
                break
        yield from self._newest[: bisect_left(self._newest, (first,))]

    def ending_in(self, lasts: Container[int]) -> Iterator[_Row]:
        """The rows whose last integer is among these, in order; others cost some nanoseconds."""
        older = chain.from_iterable(block.ending_in(lasts) for block in self._blocks)
        newest = [row for row in self._newest if row[-1] in lasts]
        return merge(older, newest) if newest else older

    def columns(self, first: int, *wanted: int) -> list[array[int]]:
        """These columns of all rows with this first integer, in the order of the rows."""
        start, stop = self._among_newest(first)
        if start < stop:
            if self._in_blocks(first) is None:
                rows = self._newest[start:stop]
                return [array("Q", [row[at] for row in rows]) for at in wanted]
            self._sort_in()
        found = [array("Q") for _ in wanted]
        for block, start, stop in self._ranges(first):
            for column, at in zip(found, wanted, strict=True):
                column.extend(block.columns[at][start:stop])
        return found

    def lasts(self, first: int) -> array[int]:
        """The last integers of all rows with this first one, in the order of the rows."""
        return self.columns(first, -1)[0]

    def count(self, first: int) -> int:
        """How many rows have this first integer."""
        start, stop = self._among_newest(first)
        return stop - start + sum(stop - start for _, start, stop in self._ranges(first))

    def least(self, first: int) -> _Row | None:
        """The first of the rows with this first integer; None without any."""
        at = bisect_left(self._newest, (first,))
        found = self._newest[at] if at < len(self._newest) else None
        newest = found if found is not None and found[0] == first else None
        older = self._in_blocks(first) if self._blocks else None
        if newest is None or older is None:
            return older if newest is None else newest
        return min(older, newest)

    def least_but(self, first: int, at: int, without: Container[int]) -> _Row | None:
        """The first of these rows of which the integer in column ``at`` is not among ``without``;
        None: there is none."""
        newest, index = None, bisect_left(self._newest, (first,))
        while index < len(self._newest) and self._newest[index][0] == first:
            if self._newest[index][at] not in without:
                newest = self._newest[index]
                break
            index += 1
        for block, start, stop in self._ranges(first):
            values = block.columns[at]
            for value in filterfalse(without.__contains__, values[start:stop]):
                older = block.row(values.index(value, start, stop))
                return older if newest is None else min(older, newest)
        return newest

    def beginning(self, firsts: Collection[int], more_than: int = 0) -> Collection[int]:
        """Those that more rows than so many begin with; if they are few, all. It costs some
        nanoseconds a row."""
        if len(firsts) * _FEW < self._size:
            return firsts
        wanted = np.sort(np.fromiter(firsts, np.uint64, len(firsts)))
        blocks = [np.frombuffer(block.firsts, np.uint64) for block in self._blocks]
        newest = np.fromiter((row[0] for row in self._newest), np.uint64, len(self._newest))
        counts = np.zeros(len(wanted), np.intp)
        for rising in (np.concatenate([newest[:0], *blocks]), newest):
            counts += np.searchsorted(rising, wanted, "right") - np.searchsorted(rising, wanted)
        found: list[int] = wanted[counts > more_than].tolist()
        return found

    def add(self, *row: int) -> None:
        """It must not be there yet."""
        self._size += 1
        insort(self._newest, row)
        if len(self._newest) > NEWEST_MAX:
            self._sort_in()

    def remove(self, *row: int) -> None:
        """It must be there."""
        self.remove_all([row])

    def remove_all(self, rows: Sequence[_Row]) -> None:
        """They must be there, each once. It costs little for rows that lie together."""
        self._size -= len(rows)
        older = []
        for row in sorted(rows, reverse=True):
            at = bisect_left(self._newest, row)
            if at < len(self._newest) and self._newest[at] == row:
                del self._newest[at]
            else:
                older.append(row)
        while older:
            at = self._greatest.place(older[-1])
            block = self._blocks[at]
            start = stop = block.place(older[-1])
            while older and stop < len(block.firsts) and block.row(stop) == older[-1]:
                older.pop()
                stop += 1
            assert start < stop, older[-1]
            block.delete(start, stop)
            if not block.firsts:
                self._take_out(at)
            elif start == len(block.firsts):
                self._greatest.assign(at, block.row(-1))

    def _among_newest(self, first: int) -> tuple[int, int]:
        start = bisect_left(self._newest, (first,))
        return start, bisect_left(self._newest, (first + 1,), start)

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

    def _sort_in(self) -> None:
        """Puts the newest into the blocks."""
        rows, self._newest = self._newest, []
        at = 0
        while at < len(rows):
            number = min(self._greatest.place(rows[at]), max(0, len(self._blocks) - 1))
            last = number >= len(self._blocks) - 1
            end = len(rows) if last else bisect_left(rows, self._greatest.row(number), at)
            if end - at < _REBUILT_FROM and self._blocks:
                self._insert(number, rows[at])
                at += 1
            else:
                self._merge(number, rows[at:end])
                at = end

    def _merge(self, at: int, rows: list[_Row]) -> None:
        """Makes new blocks of one, or of none, and these rows."""
        if at < len(self._blocks):
            rows = sorted([*self._blocks[at].rows(), *rows])
            self._take_out(at)
        for start in range(0, len(rows), BLOCK_MAX // 2):
            self._put(at, _Block.of(rows[start : start + BLOCK_MAX // 2]))
            at += 1

    def _insert(self, at: int, row: _Row) -> None:
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
        self._greatest.delete(at, at + 1)
