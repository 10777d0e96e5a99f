"""Which example stands in which pack, of which rank, and where. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TooLong = Literal["error", "drop", "truncate"]
ATTENTION_WEIGHT = 1 / 8_192
"""An example of n tokens costs n + n² times this."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackPlan:
    """A place for each example. A pack is a sequence of ``length`` tokens: one micro-batch of one
    rank. Every rank has the same number of packs; the last ones of a rank may be empty.

    Attributes:
        length: tokens of a pack.
        ranks: data-parallel ranks.
        packs_per_rank: of every rank.
        rank: int32 [n], the rank of each example; -1: it is in no pack.
        pack: int32 [n], the pack of that rank, from 0; likewise.
        start: int32 [n], the position in the pack where it begins; likewise.
        lengths: int64 [n], how many of its tokens are in the pack: all, unless it was truncated.
        too_long: int64 [t], examples longer than a pack, which were dropped or truncated.
        left_over: int64 [l], examples for which ``packs_per_rank`` that was given left no room.
    """

    length: int
    ranks: int
    packs_per_rank: int
    rank: NDArray[np.int32]
    pack: NDArray[np.int32]
    start: NDArray[np.int32]
    lengths: NDArray[np.int64]
    too_long: NDArray[np.int64]
    left_over: NDArray[np.int64]

    def metrics(self) -> dict[str, float]:
        """A flat dict for any logger: ``packs``, ``packs/lower_bound``, ``packs/fill``,
        ``packs/rank_imbalance`` and ``packs/micro_step_imbalance`` (the largest cost over the
        mean), ``packs/too_long``, ``packs/left_over``."""
        raise NotImplementedError


def plan_packs(
    lengths: NDArray[np.int64],
    length: int,
    *,
    ranks: int = 1,
    packs_per_rank: int | None = None,
    too_long: TooLong = "error",
    attention_weight: float = ATTENTION_WEIGHT,
) -> PackPlan:
    """Places examples in packs; the same arguments give the same plan.

    No example is split. Costs are balanced over ranks, and over the ranks in each micro-step.

    Args:
        lengths: int64 [n], tokens of each example.
        length: tokens of a pack.
        packs_per_rank: exactly so many; what finds no room is left over, the last examples first.
            None: as few as hold all.
        too_long: what becomes of an example longer than a pack.
        attention_weight: what an example's squared length costs, beside its length.

    Raises:
        InvalidRequest: an argument is none that could be satisfied, or an example is longer than a
            pack and ``too_long`` is ``error``; it names the example and its length.
    """
    raise NotImplementedError
