"""A rank's packs, filled. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import token_id, whole_number
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.packs.plan import PackPlan


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Packs(NamedArrays):
    """K sequences of S tokens: examples one after the other, then padding.

    Attributes:
        tokens: int32 [K, S]; ``pad_id`` at padding.
        segment_ids: int32 [K, S]; 1, 2, … by example within its sequence, 0 at padding.
        position_ids: int32 [K, S]; from 0 at the beginning of each example; 0 at padding.
        loss_mask: bool [K, S]; False at padding.
        advantages: float32 [K, S]; 0 at padding.
        generator_log_probs: float32 [K, S]; 0 at padding.
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
    def of(
        cls,
        examples: Examples,
        plan: PackPlan,
        *,
        rank: SupportsIndex = 0,
        pad_id: SupportsIndex = 0,
    ) -> Self:
        """Returns the packs of a rank. Each token is copied once.

        Raises:
            InvalidRequest: the plan is of other examples, or has no such rank, or ``pad_id`` is no
                token.
            ArraysDiffer, ArrayMissing: as ``examples.token_arrays`` raises them.
        """
        if not isinstance(examples, Examples):
            raise InvalidRequest(f"examples is {examples!r:.200}; give Examples.of(batch)")
        if not isinstance(plan, PackPlan):
            raise InvalidRequest(f"plan is {plan!r:.200}; give plan_packs(examples.lengths, …)")
        rank = whole_number("rank", rank)
        if not 0 <= rank < plan.ranks:
            raise InvalidRequest(f"rank is {rank}; the plan has {plan.ranks} ranks, from 0")
        plan.refuse_others(examples)
        places = _Places.of(examples, plan, rank)
        segment_ids, position_ids = places.ids()
        return cls(
            tokens=places.filled(examples.tokens, token_id("pad_id", pad_id)),
            segment_ids=segment_ids,
            position_ids=position_ids,
            loss_mask=places.filled(examples.loss_mask),
            advantages=places.filled(examples.advantages),
            generator_log_probs=places.filled(examples.generator_log_probs),
            token_arrays={
                name: places.filled(values) for name, values in examples.token_arrays.items()
            },
            cu_seqlens=places.cu_seqlens(),
            examples=tuple(places.examples[one] for one in places.packs),
        )

    def __repr__(self) -> str:
        """One line."""
        rows, length = self.tokens.shape
        count = sum(map(len, self.examples))
        return f"Packs({count:,} examples in {rows:,} sequences of {length:,} tokens)"

    def __len__(self) -> int:
        return len(self.tokens)


class _Places(NamedTuple):
    """Where the m examples of a rank go, in the order of its packs.

    Attributes:
        shape: (K, S).
        examples: int64 [m].
        lengths: int64 [m], tokens of each.
        starts: int32 [m], the position in its pack where each begins.
        spans: of each, its slice of the tokens of all examples, and of those of the packs.
        packs: of each pack, its slice of the examples.
    """

    shape: tuple[int, int]
    examples: NDArray[np.int64]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int32]
    spans: list[tuple[slice, slice]]
    packs: list[slice]

    @classmethod
    def of(cls, examples: Examples, plan: PackPlan, rank: int) -> _Places:
        found, ends = plan.of_rank(rank)
        lengths, starts, sources = plan.lengths[found], plan.start[found], examples.offsets[found]
        there = examples.offsets[found + 1] - sources
        for wrong in (np.minimum(there, plan.length) != lengths).nonzero()[0][:1]:
            raise InvalidRequest(
                f"example {found[wrong]} has {there[wrong]} tokens and the plan {lengths[wrong]} "
                "of it; plan with examples.lengths"
            )
        begins = plan.pack[found].astype(np.int64) * plan.length + starts
        both = (_slices(firsts, firsts + lengths) for firsts in (sources, begins))
        return cls(
            shape=(plan.packs_per_rank, plan.length),
            examples=found,
            lengths=lengths,
            starts=starts,
            spans=list(zip(*both, strict=True)),
            packs=_slices(np.append(0, ends[:-1]), ends),
        )

    def filled(self, values: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """The examples' part of what has a value for each token; ``filler`` at padding."""
        packs, length = self.shape
        out = np.full((packs * length, *values.shape[1:]), filler, values.dtype)
        for source, into in self.spans:
            out[into] = values[source]
        return out.reshape(packs, length, *values.shape[1:])

    def ids(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """``segment_ids`` and ``position_ids``."""
        segments, positions = np.zeros((2, *self.shape), np.int32)
        each = np.arange(self.lengths.max(initial=0), dtype=np.int32)
        for of_pack in self.packs:
            for number, (_, into) in enumerate(self.spans[of_pack], start=1):
                segments.reshape(-1)[into] = number
                positions.reshape(-1)[into] = each[: into.stop - into.start]
        return segments, positions

    def cu_seqlens(self) -> tuple[NDArray[np.int32], ...]:
        """Where the examples of each pack begin, and where its last one ends."""
        stops = self.starts + self.lengths
        return tuple(
            np.append(self.starts[one], stops[one][-1:] if one.start < one.stop else 0).astype(
                np.int32
            )
            for one in self.packs
        )


def _slices(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[slice]:
    return list(map(slice, starts.tolist(), stops.tolist()))
