"""Groups drawn one after the other, by integer weights and without putting any back. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count

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

    A draw costs some 20 ns a class, however many items there are. The draws are a function of the
    arguments.

    Args:
        classes: pairs of the weight of each item, above 0, and the items.
        salt: of the hashes that draw.
    """
    left = [array("Q", items) for _, items in classes]
    weights = [weight * len(items) for weight, items in classes]
    for draw in count():
        upto = list(accumulate(weights))
        if not upto or not upto[-1]:
            return
        point = xxhash.xxh3_128_intdigest(f"{salt}\x1f{draw}".encode()) % upto[-1]
        at = bisect_right(upto, point)
        weight = classes[at][0]
        yield left[at].pop((point - upto[at] + weights[at]) // weight)
        weights[at] -= weight
