"""How examples are spread over packs and ranks. Pure, and in whole numbers: a plan is the same on
every machine.

Best fit decreasing gives the number of packs: it needs at most 11/9 of the fewest possible and one
more (Johnson, "Near-optimal bin packing algorithms", 1973), and usually the fewest. Within as many,
the longest first, each example goes to the rank with the least cost that has space for it, and
there to the pack with the least (the LPT rule of Graham, "Bounds on multiprocessing timing
anomalies", 1969). Where this leaves one without space, the packs of best fit stay as they are, are
dealt to ranks, and exchanged between the dearest rank and the cheapest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate

Pack = list[int]
"""Indexes of examples."""
_EXCHANGES_MAX = 64
"""Each halves a gap at best; the ten that it usually takes leave less than 0.1 %."""


def most_that_fit(sizes: Sequence[int], length: int, packs: int) -> int:
    """How many of the first examples fit into so many packs of ``length``."""
    bound = bisect_right(list(accumulate(sizes)), packs * length)
    counts = range(bound + 1)
    return bisect_right(counts, packs, key=lambda n: len(best_fit(sizes[:n], length))) - 1


def best_fit(sizes: Sequence[int], length: int) -> list[Pack]:
    """The longest example first, each into the fullest pack that has space."""
    packs: list[Pack] = []
    spaces: list[tuple[int, int]] = []  # Of each pack, ascending: (space, pack).
    for example in _longest_first(sizes):
        size = sizes[example]
        at = bisect_left(spaces, (size,))
        space, pack = spaces.pop(at) if at < len(spaces) else (length, len(packs))
        if pack == len(packs):
            packs.append([])
        packs[pack].append(example)
        insort(spaces, (space - size, pack))
    return packs


def placed(
    sizes: Sequence[int],
    length: int,
    *,
    ranks: int,
    packs_per_rank: int | None,
    cost_of: Callable[[int], int],
) -> list[list[Pack]]:
    """By rank its packs, the dearest first: those of one micro-step then cost about the same.

    Args:
        sizes: of the examples, at most ``length``.
        packs_per_rank: enough by ``best_fit``; None: as few as are.
        cost_of: what an example of this size costs.
    """
    packs = best_fit(sizes, length)
    if packs_per_rank is None:
        packs_per_rank = -(-len(packs) // ranks)
    costs = [cost_of(size) for size in sizes]
    found = _levelled(sizes, costs, length, ranks, packs_per_rank)
    if found is None:
        packs += [[] for _ in range(ranks * packs_per_rank - len(packs))]
        found = _dealt(packs, costs, ranks, packs_per_rank)
    for of_rank in found:
        for pack in of_rank:
            pack.sort()
        of_rank.sort(key=lambda pack: (-_cost(pack, costs), pack))
    return found


def _longest_first(sizes: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda example: -sizes[example])


def _cost(pack: Pack, costs: Sequence[int]) -> int:
    return sum([costs[example] for example in pack])


def _levelled(
    sizes: Sequence[int], costs: Sequence[int], length: int, ranks: int, packs_per_rank: int
) -> list[list[Pack]] | None:
    """The cheapest rank that has space, and its cheapest pack that has; None: one found none."""
    smallest = min(sizes, default=0)
    packs: list[list[Pack]] = [[[] for _ in range(packs_per_rank)] for _ in range(ranks)]
    spaces = [[length] * packs_per_rank for _ in range(ranks)]
    # Ascending: (cost, rank), and of each rank (cost, pack), without packs that are full.
    cheapest = [(0, rank) for rank in range(ranks)]
    open_packs = [[(0, pack) for pack in range(packs_per_rank)] for _ in range(ranks)]
    for example in _longest_first(sizes):
        size, cost = sizes[example], costs[example]
        found = _first_with_space(size, cheapest, open_packs, spaces)
        if found is None:
            return None
        at, index = found
        of_rank, rank = cheapest.pop(at)
        of_pack, pack = open_packs[rank].pop(index)
        packs[rank][pack].append(example)
        spaces[rank][pack] -= size
        insort(cheapest, (of_rank + cost, rank))
        if spaces[rank][pack] >= smallest:
            insort(open_packs[rank], (of_pack + cost, pack))
    return packs


def _first_with_space(
    size: int,
    ranks: Sequence[tuple[int, int]],
    packs: Sequence[Sequence[tuple[int, int]]],
    spaces: Sequence[Sequence[int]],
) -> tuple[int, int] | None:
    """Index of the rank, and in it of the pack."""
    for at, (_, rank) in enumerate(ranks):
        for index, (_, pack) in enumerate(packs[rank]):
            if spaces[rank][pack] >= size:
                return at, index
    return None


def _dealt(
    packs: Sequence[Pack], costs: Sequence[int], ranks: int, packs_per_rank: int
) -> list[list[Pack]]:
    """The dearest pack first, to the cheapest rank that has fewer than its number."""
    of_pack = [_cost(pack, costs) for pack in packs]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    totals = [0] * ranks
    cheapest = [(0, rank) for rank in range(ranks)]
    for pack in sorted(range(len(packs)), key=lambda pack: -of_pack[pack]):
        _, rank = heappop(cheapest)
        dealt[rank].append(pack)
        totals[rank] += of_pack[pack]
        if len(dealt[rank]) < packs_per_rank:
            heappush(cheapest, (totals[rank], rank))
    for _ in range(_EXCHANGES_MAX):
        if not _exchanged(dealt, totals, of_pack):
            break
    return [[packs[pack] for pack in of_rank] for of_rank in dealt]


def _exchanged(dealt: list[list[int]], totals: list[int], of_pack: Sequence[int]) -> bool:
    """Exchanges the two packs that bring the dearest and the cheapest rank closest; False: none
    would."""
    dear = max(range(len(totals)), key=totals.__getitem__)
    cheap = min(range(len(totals)), key=totals.__getitem__)
    least = gap = totals[dear] - totals[cheap]
    others = sorted((of_pack[pack], pack) for pack in dealt[cheap])
    best: tuple[int, int] | None = None
    for pack in dealt[dear]:
        at = bisect_left(others, (of_pack[pack] - gap // 2,))
        for cost, other in others[max(at - 1, 0) : at + 1]:
            left = abs(gap - 2 * (of_pack[pack] - cost))
            if left < least:
                least, best = left, (pack, other)
    if best is None:
        return False
    given, taken = best
    dealt[dear].remove(given)
    dealt[cheap].remove(taken)
    dealt[dear].append(taken)
    dealt[cheap].append(given)
    totals[dear] -= of_pack[given] - of_pack[taken]
    totals[cheap] += of_pack[given] - of_pack[taken]
    return True
