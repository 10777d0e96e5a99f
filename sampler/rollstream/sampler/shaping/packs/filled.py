"""A rank's packs, filled. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.packs.plan import PackPlan


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Packs:
    """K sequences of S tokens; examples stand one after the other, then padding.

    Attributes:
        tokens: int32 [K, S].
        segment_ids: int32 [K, S]; 1, 2, … by example within its sequence, 0 at padding.
        position_ids: int32 [K, S]; from 0 at the beginning of each example; 0 at padding.
        loss_mask: bool [K, S]; False at padding.
        advantages: float32 [K, S], generator_log_probs: float32 [K, S]; 0 at padding.
        token_arrays: name to [K, S, …]; 0 at padding.
        cu_seqlens: for each sequence int32 [segments + 1], where its examples begin, and where the
            last one ends: what flash attention takes. Padding is in none.
        examples: for each sequence int64 [segments], the examples in it.
    """

    tokens: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]
    token_arrays: Mapping[str, NDArray[Any]]
    cu_seqlens: tuple[NDArray[np.int32], ...]
    examples: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, examples: Examples, plan: PackPlan, *, rank: int = 0, pad_id: int = 0) -> Self:
        """The packs of a rank; each token is copied once.

        Raises:
            InvalidRequest: the plan is of other examples, or has no such rank.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.tokens)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every rectangle by name; ``token_arrays`` as ``token_arrays/name``."""
        raise NotImplementedError
