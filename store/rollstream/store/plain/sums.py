"""Sums over a file's bytes as they lie there, so that a group is checked without the others.

A group's sum in an array is seeded with the group's digest: rows that have it are those of the
group that the seal log names. Every other chunk has one sum. They are xxh3-64, over what stood
there before compression, and in the footer, which has a sum of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from rollstream.store.blobs import Bytes


class FileGroup(NamedTuple):
    """A group of a file: how many rows, and its digest (``row_digests``)."""

    rows: int
    digest: bytes


class Sums(NamedTuple):
    """The sums of a file.

    Attributes:
        starts: the first row of each group, then the number of rows.
        ends: where the sums of each leaf column begin, then where those of the last end.
        sums: of each leaf column one, or one for each group.
    """

    starts: list[int]
    ends: list[int]
    sums: NDArray[np.uint64]

    @classmethod
    def of_text(cls, packed: bytes) -> Sums:
        """What ``packed_sums`` wrote; ``ValueError``: it is damaged."""
        numbers = np.frombuffer(base64.b64decode(packed, validate=True), "<u8")
        groups, leaves = numbers[:2].tolist()
        first_size = 3 + groups
        first_sum = first_size + leaves
        sizes = numbers[first_size:first_sum].tolist()
        return cls(numbers[2:first_size].tolist(), [0, *accumulate(sizes)], numbers[first_sum:])

    def of_leaf(self, leaf: int) -> list[int]:
        """The sum of a leaf column, or of each group in it."""
        sums: list[int] = self.sums[self.ends[leaf] : self.ends[leaf + 1]].tolist()
        return sums

    @property
    def nbytes(self) -> int:
        """In memory, about."""
        return self.sums.nbytes + 8 * (len(self.starts) + len(self.ends))


def packed_sums(groups: Sequence[FileGroup], of_leaves: Sequence[Sequence[int]]) -> str:
    """The sums of a file as text."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    sizes = list(map(len, of_leaves))
    numbers = [len(groups), len(of_leaves), *starts.tolist(), *sizes]
    sums = [one for of_leaf in of_leaves for one in of_leaf]
    return base64.b64encode(np.array([*numbers, *sums], "<u8").tobytes()).decode()


def seed_of(digest: bytes) -> int:
    """What the sums of the group of this digest are seeded with."""
    return int.from_bytes(digest[:8], "little")


def chunk_sum(body: Sequence[Bytes]) -> int:
    """Of the body of a chunk of one page."""
    return xxh3_64_intdigest(body[0] if len(body) == 1 else b"".join(body))


def value_span(start: int, stop: int, width: int) -> tuple[int, int]:
    """The bytes of the tokens ``start`` to ``stop`` among the values of an array, ``width`` bytes a
    token; -1: eight tokens are one."""
    if width >= 0:
        return start * width, stop * width
    return start // 8, -(-stop // 8)


def sums_in(values: Bytes, ends: NDArray[np.int64], width: int, seeds: Sequence[int]) -> list[int]:
    """Of each group in the values of an uncompressed array; ``ends`` in tokens, from 0 on."""
    data = memoryview(values)
    spans = [value_span(start, stop, width) for start, stop in pairwise(ends.tolist())]
    return [
        xxh3_64_intdigest(data[start:stop], seed)
        for (start, stop), seed in zip(spans, seeds, strict=True)
    ]
