"""Which example stands in which pack, of which rank, and where. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollstream.sampler.arguments import array, at_least, number
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.packs.placing import most_that_fit, placed

if TYPE_CHECKING:
    from rollstream.sampler.training.examples.examples import Examples

TooLong = Literal["error", "drop", "truncate"]
ATTENTION_WEIGHT = 1 / 8_192
"""An example of n tokens costs n + n² times this."""
RANKS_MAX = 65_536
"""More than any trainer has: each rank computes the packs of all."""
_PACKS_MAX = 2**24
"""Of a plan, which has some numbers for each."""
_LENGTH_MAX = 2**31 - 1
"""Of a pack: positions are int32, as attention kernels take them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class PackPlan:
    """A place for each example. A pack is a sequence of ``length`` tokens: one micro-batch of a
    rank.

    Every rank has the same number of packs, the most expensive first. So the packs of one
    micro-step cost about the same. The last packs of a rank may be empty.

    Attributes:
        length: tokens of a pack.
        ranks: data-parallel ranks.
        packs_per_rank: of every rank.
        attention_weight: what an example's squared length costs, beside its length.
        rank: int32 [n], the rank of each example; -1: it is in no pack.
        pack: int32 [n], the pack of that rank, from 0; likewise.
        start: int32 [n], the position in the pack where it begins; likewise.
        lengths: int64 [n], how many of its tokens are in the pack: all, unless it was truncated; 0:
            it is in no pack.
        too_long: int64 [t], examples longer than a pack, which were dropped or truncated.
        left_over: int64 [l], examples that found no room in the given ``packs_per_rank``.
        tokens_cut: tokens of too long examples that are in no pack.
    """

    length: int
    ranks: int
    packs_per_rank: int
    attention_weight: float
    rank: NDArray[np.int32]
    pack: NDArray[np.int32]
    start: NDArray[np.int32]
    lengths: NDArray[np.int64]
    too_long: NDArray[np.int64]
    left_over: NDArray[np.int64]
    tokens_cut: int = 0

    def __repr__(self) -> str:
        """One line."""
        return (
            f"PackPlan({len(self.rank):,} examples in {self.ranks} x {self.packs_per_rank} packs "
            f"of {self.length:,} tokens)"
        )

    def of_rank(self, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the examples of a rank in the order of its packs, int64 [m]; and for each pack
        how many of them are in it and in those before, int64 [packs_per_rank].
        """
        found = np.flatnonzero(self.rank == rank)
        packs = self.pack[found]
        order = np.lexsort((self.lengths[found], self.start[found], packs))
        return found[order], np.cumsum(np.bincount(packs, minlength=self.packs_per_rank))

    def costs(self) -> NDArray[np.float64]:
        """The cost of each pack, float64 [ranks, packs_per_rank]."""
        lengths = self.lengths.astype(np.float64)
        there = self.rank >= 0
        pack = self.rank[there] * np.int64(self.packs_per_rank) + self.pack[there]
        each = (lengths + self.attention_weight * lengths**2)[there]
        costs = np.zeros((self.ranks, self.packs_per_rank))
        costs.reshape(-1)[...] = np.bincount(pack, each, costs.size)
        return costs

    def metrics(self, examples: Examples | None = None) -> dict[str, float]:
        """Returns a flat dict for any logger.

        ``packs``: of all ranks. ``packs/lower_bound``: the fewest that could hold the tokens, with
        equal counts on every rank. ``packs/fill``: tokens over room. ``packs/rank_imbalance``: the
        cost of the most expensive rank over the mean. ``packs/micro_step_imbalance``: the same
        within each micro-step, which is what a step costs if ranks wait for one another.
        ``packs/too_long`` and ``packs/left_over``: numbers of examples. ``packs/tokens_cut``:
        tokens of too long examples that are in no pack.

        Args:
            examples: that were planned; ``packs/tokens_cut`` then counts only tokens that the loss
                would have counted.
        """
        if examples is not None:
            self.refuse_others(examples)
        packs = self.ranks * self.packs_per_rank
        tokens = int(self.lengths.sum())
        costs = self.costs()
        mean = float(costs.sum()) / self.ranks
        slowest = costs.sum(axis=1).max(), costs.max(axis=0).sum()
        of_ranks, of_micro_steps = (float(c) / mean if mean else 1.0 for c in slowest)
        fewest = -(-tokens // self.length)
        return {
            "packs": float(packs),
            "packs/lower_bound": float(-(-fewest // self.ranks) * self.ranks),
            "packs/fill": tokens / (packs * self.length) if packs else 1.0,
            "packs/rank_imbalance": of_ranks,
            "packs/micro_step_imbalance": of_micro_steps,
            "packs/too_long": float(len(self.too_long)),
            "packs/left_over": float(len(self.left_over)),
            "packs/tokens_cut": float(
                self.tokens_cut if examples is None else self._trained_tokens_cut(examples)
            ),
        }

    def refuse_others(self, examples: Examples) -> None:
        """``InvalidRequest`` unless so many examples were planned."""
        if len(examples) != len(self.rank):
            raise InvalidRequest(
                f"the plan is of {len(self.rank)} examples and these are {len(examples)}; plan "
                "with examples.lengths"
            )

    def _trained_tokens_cut(self, examples: Examples) -> int:
        starts = (examples.offsets[:-1] + self.lengths)[self.too_long].tolist()
        ends = examples.offsets[1:][self.too_long].tolist()
        return sum(
            int(np.count_nonzero(examples.loss_mask[start:end]))
            for start, end in zip(starts, ends, strict=True)
        )


def plan_packs(
    lengths: ArrayLike,
    length: SupportsIndex,
    *,
    ranks: SupportsIndex = 1,
    packs_per_rank: SupportsIndex | None = None,
    too_long: TooLong = "error",
    attention_weight: float = ATTENTION_WEIGHT,
) -> PackPlan:
    """Places examples in packs. The same arguments give the same plan, on every machine.

    No example is split. Costs are balanced over ranks, and over the ranks in each micro-step.

    Args:
        lengths: whole numbers [n], tokens of each example.
        length: tokens of a pack.
        ranks: data-parallel ranks.
        packs_per_rank: exactly so many; the last examples that find no room are left over. None: as
            few as hold all.
        too_long: what becomes of an example longer than a pack: ``error``, ``drop`` or
            ``truncate``. With truncate its first tokens stay, and a loss that is divided by tokens
            counts only these.
        attention_weight: what an example's squared length costs, beside its length.

    Raises:
        InvalidRequest: an argument makes no sense; or an example is longer than a pack and
            ``too_long`` is ``error``: it names the example and its length.
    """
    length, ranks = at_least("length", length, 1), at_least("ranks", ranks, 1)
    if length > _LENGTH_MAX:
        raise InvalidRequest(f"length is {length}; positions are int32: give at most {_LENGTH_MAX}")
    if ranks > RANKS_MAX:
        raise InvalidRequest(f"ranks is {ranks}; give at most {RANKS_MAX}")
    if packs_per_rank is not None:
        packs_per_rank = at_least("packs_per_rank", packs_per_rank, 1)
        if packs_per_rank * ranks > _PACKS_MAX:
            raise InvalidRequest(
                f"packs_per_rank is {packs_per_rank}, for {ranks} ranks; give at most "
                f"{_PACKS_MAX // ranks}"
            )
    weight = number("attention_weight", attention_weight)
    if weight < 0:
        raise InvalidRequest(f"attention_weight is {weight:g}; give 0 or more")
    sizes = _lengths(lengths)
    over = np.flatnonzero(sizes > length)
    chosen = _without_too_long(sizes, over, length, too_long)
    kept = np.minimum(sizes, length)
    found = kept[chosen].tolist()
    left_over = chosen[:0]
    if packs_per_rank is not None:
        fitting = most_that_fit(found, length, ranks * packs_per_rank)
        chosen, left_over, found = chosen[:fitting], chosen[fitting:], found[:fitting]
    # In whole numbers, whatever the weight: a sum of floats depends on its order.
    of_squares, of_tokens = Fraction(weight).as_integer_ratio()
    packs = placed(
        found,
        length,
        ranks=ranks,
        packs_per_rank=packs_per_rank,
        cost_of=lambda n: of_tokens * n + of_squares * n * n,
    )
    return _plan(
        packs,
        chosen,
        sizes,
        length=length,
        attention_weight=weight,
        too_long=over,
        left_over=left_over,
    )


def _plan(
    packs: list[list[list[int]]],
    chosen: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    length: int,
    too_long: NDArray[np.int64],
    **other: Any,
) -> PackPlan:
    """The packs of each rank, of indexes into ``chosen``, as arrays by example."""
    ranks, packs_per_rank = len(packs), len(packs[0])
    counts = np.array([len(pack) for of_rank in packs for pack in of_rank], np.int64)
    placed_ones = [example for of_rank in packs for pack in of_rank for example in pack]
    order = chosen[np.array(placed_ones, np.int64)]
    rank, pack, start = (np.full(len(sizes), -1, np.int32) for _ in range(3))
    lengths = np.zeros(len(sizes), np.int64)
    lengths[order] = np.minimum(sizes[order], length)
    of_order = np.repeat(np.arange(ranks * packs_per_rank), counts)
    rank[order], pack[order] = np.divmod(of_order, packs_per_rank or 1)
    starts = np.cumsum(lengths[order]) - lengths[order]
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    start[order] = starts - starts[firsts]
    return PackPlan(
        length=length,
        ranks=ranks,
        packs_per_rank=packs_per_rank,
        rank=rank,
        pack=pack,
        start=start,
        lengths=lengths,
        too_long=too_long,
        tokens_cut=int((sizes - lengths)[too_long].sum()),
        **other,
    )


def _without_too_long(
    sizes: NDArray[np.int64], over: NDArray[np.int64], length: int, too_long: str
) -> NDArray[np.int64]:
    """The examples that are to be placed."""
    if too_long not in get_args(TooLong):
        raise InvalidRequest(f"too_long is {too_long!r}; use one of {list(get_args(TooLong))}")
    if len(over) and too_long == "error":
        first = int(over[0])
        others = f", and {len(over) - 1} others are too long" if len(over) > 1 else ""
        raise InvalidRequest(
            f"example {first} has {sizes[first]} tokens and a pack {length}{others}; raise length, "
            "or pass too_long='drop' or 'truncate'"
        )
    return np.flatnonzero(sizes <= length) if too_long == "drop" else np.arange(len(sizes))


def _lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    found = array(lengths)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or not found.size):
        raise InvalidRequest(
            f"lengths is {found.dtype} {list(found.shape)}; give whole numbers [n], the tokens of "
            "each example, as examples.lengths has them"
        )
    sizes = found.astype(np.int64)
    if (sizes < 0).any():
        first = int(np.flatnonzero(sizes < 0)[0])
        raise InvalidRequest(f"example {first} has {sizes[first]} tokens; give 0 or more")
    return sizes
