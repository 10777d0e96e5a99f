"""Groups drawn one after the other, by integer weights and without putting any back. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import count

import xxhash

from rollstream.schemas.choosing import Recency

WEIGHT_MAX = 2**32  # Of the newest; integers, so that every machine draws the same.


def recency_weights(ranks: int, recency: Recency, alpha: float) -> list[int]:
    """Returns a weight for each of so many ages, the oldest first.

    ``linear``: the age's rank, of which the oldest is 1. ``exp``: each age twice as likely as the
    one before. Either to the power of ``alpha``. No weight is 0.
    """
    assert recency != "uniform"
    of_newest = {
        "linear": [(rank / ranks) ** alpha for rank in range(1, ranks + 1)],
        "exp": [2.0 ** (alpha * (rank - ranks)) for rank in range(1, ranks + 1)],
    }
    return [max(1, round(WEIGHT_MAX * one)) for one in of_newest[recency]]


def drawn(classes: Sequence[tuple[int, array[int]]], salt: str) -> Iterator[int]:
    """Yields the items of all classes, each drawn among those that are left with a probability
    proportional to its weight.

    A draw takes the logarithm of the number of classes, so that few draws among many items cost
    little. The draws are a function of the arguments.

    Args:
        classes: pairs of the weight of each item, above 0, and the items.
        salt: of the hashes that draw.
    """
    left = [array("Q", items) for _, items in classes]
    weights = _Sums([weight * len(items) for weight, items in classes])
    for draw in count():
        if not weights.total:
            return
        point = xxhash.xxh3_128_intdigest(f"{salt}\x1f{draw}".encode()) % weights.total
        at, rest = weights.find(point)
        weight = classes[at][0]
        yield left[at].pop(rest // weight)
        weights.add(at, -weight)


class _Sums:
    """Numbers, and the sums of the first of them (Fenwick, "A new data structure for cumulative
    frequency tables", 1994)."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.total = 0
        self._sums = [0] * (len(numbers) + 1)
        self._highest = 1 << len(numbers).bit_length()
        for at, number in enumerate(numbers):
            self.add(at, number)

    def add(self, at: int, number: int) -> None:
        """Adds to the one at that index."""
        self.total += number
        at += 1
        while at < len(self._sums):
            self._sums[at] += number
            at += at & -at

    def find(self, point: int) -> tuple[int, int]:
        """The first index with which the sum exceeds the point, and the point less the sum of those
        before it."""
        assert 0 <= point < self.total
        at, step = 0, self._highest
        while step:
            if at + step < len(self._sums) and self._sums[at + step] <= point:
                at += step
                point -= self._sums[at]
            step >>= 1
        return at, point
