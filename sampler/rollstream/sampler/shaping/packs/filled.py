"""A rank's packs, filled. Pure.

A rank has some sixty examples, so what a copy costs besides its bytes counts. Slices of memoryviews
were the fastest, as in ``shaping/joining.py``: 9 packs of 8,192 tokens of 62 examples take 12 µs an
array (memcpy of it: 6), NumPy slices or ``np.concatenate`` of them 23, an index gather 120.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import whole_number
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.packs.plan import PackPlan
from rollstream.sampler.shaping.tensors import NamedArrays


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Packs(NamedArrays):
    """K sequences of S tokens; examples stand one after the other, then padding.

    Attributes:
        tokens: int32 [K, S]; ``pad_id`` at padding.
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
    def of(
        cls,
        examples: Examples,
        plan: PackPlan,
        *,
        rank: SupportsIndex = 0,
        pad_id: SupportsIndex = 0,
    ) -> Self:
        """The packs of a rank; each token is copied once.

        Raises:
            InvalidRequest: the plan is of other examples, or has no such rank.
            ArraysDiffer, ArrayMissing: as ``examples.token_arrays`` raises them.
        """
        rank = whole_number("rank", rank)
        if not 0 <= rank < plan.ranks:
            raise InvalidRequest(f"rank is {rank}; the plan has {plan.ranks} ranks, from 0")
        if len(examples) != len(plan.rank):
            raise InvalidRequest(
                f"the plan is of {len(plan.rank)} examples and these are {len(examples)}; plan "
                "with examples.lengths"
            )
        places = _Places.of(examples, plan, rank)
        return cls(
            tokens=places.filled(examples.tokens, whole_number("pad_id", pad_id)),
            segment_ids=places.segment_ids(),
            position_ids=places.position_ids(),
            loss_mask=places.filled(examples.loss_mask),
            advantages=places.filled(examples.advantages),
            generator_log_probs=places.filled(examples.generator_log_probs),
            token_arrays={
                name: places.filled(values) for name, values in examples.token_arrays.items()
            },
            cu_seqlens=places.cu_seqlens(),
            examples=places.by_pack(),
        )

    def __repr__(self) -> str:
        """One line."""
        rows, length = self.tokens.shape
        count = sum(map(len, self.examples))
        return f"Packs({count:,} examples in {rows:,} sequences of {length:,} tokens)"

    def __len__(self) -> int:
        return len(self.tokens)


class _Places(NamedTuple):
    """Where the examples of a rank go, in the order of its packs.

    Attributes:
        shape: (K, S).
        examples: int64 [m].
        packs: int64 [m], the pack of each.
        starts: int32 [m], the position in it where each begins.
        lengths: int64 [m], tokens of each in its pack.
        spans: of each, where it goes among the K * S tokens of the rank, and where it is among
            those of all examples: (begin, end, begin, end).
        ends: int64 [K], for each pack how many examples are in it and in those before.
        used: int64 [K], tokens in each.
    """

    shape: tuple[int, int]
    examples: NDArray[np.int64]
    packs: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int64]
    spans: list[tuple[int, int, int, int]]
    ends: NDArray[np.int64]
    used: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Examples, plan: PackPlan, rank: int) -> _Places:
        found = np.flatnonzero(plan.rank == rank)
        found = found[np.lexsort((plan.start[found], plan.pack[found]))]
        packs, lengths = plan.pack[found].astype(np.int64), plan.lengths[found]
        targets, sources = packs * plan.length + plan.start[found], examples.offsets[found]
        there = examples.offsets[found + 1] - sources
        for wrong in np.flatnonzero(np.minimum(there, plan.length) != lengths)[:1]:
            raise InvalidRequest(
                f"example {found[wrong]} has {there[wrong]} tokens and the plan {lengths[wrong]} "
                "of it; plan with examples.lengths"
            )
        bounds = (targets, targets + lengths, sources, sources + lengths)
        count = plan.packs_per_rank
        return cls(
            shape=(count, plan.length),
            examples=found,
            packs=packs,
            starts=plan.start[found],
            lengths=lengths,
            spans=list(zip(*[bound.tolist() for bound in bounds], strict=True)),
            ends=np.cumsum(np.bincount(packs, minlength=count)),
            used=np.bincount(packs, lengths, count).astype(np.int64),
        )

    def filled(self, values: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """The examples' part of what has a value for each token; ``filler`` at padding."""
        out = np.empty((*self.shape, *values.shape[1:]), values.dtype)
        width = out.itemsize * math.prod(values.shape[1:])
        into, source = _items_of(out, width), _items_of(values, width)
        scale = width // into.itemsize
        if scale == 1:
            for to, to_end, first, last in self.spans:
                into[to:to_end] = source[first:last]
        else:
            for to, to_end, first, last in self.spans:
                into[to * scale : to_end * scale] = source[first * scale : last * scale]
        return self._padded(out, filler)

    def position_ids(self) -> NDArray[np.int32]:
        out = np.empty(self.shape, np.int32)
        into = _items_of(out, 4)
        source = _items_of(np.arange(self.lengths.max(initial=0), dtype=np.int32), 4)
        for to, to_end, _, _ in self.spans:
            into[to:to_end] = source[: to_end - to]
        return self._padded(out, 0)

    def segment_ids(self) -> NDArray[np.int32]:
        """A run for each example, and one for the padding of each pack."""
        each, paddings = self._with_one_a_pack()
        before = np.concatenate(([0], self.ends))[self.packs]
        numbers = np.zeros(len(each) + len(paddings), np.int32)
        numbers[each] = np.arange(1, len(each) + 1) - before
        counts = np.empty(len(numbers), np.int64)
        counts[each], counts[paddings] = self.lengths, self.shape[1] - self.used
        return np.repeat(numbers, counts).reshape(self.shape)

    def cu_seqlens(self) -> tuple[NDArray[np.int32], ...]:
        each, lasts = self._with_one_a_pack()
        bounds = np.empty(len(each) + len(lasts), np.int32)
        bounds[each], bounds[lasts] = self.starts, self.used
        return _cut(bounds, lasts + 1)

    def by_pack(self) -> tuple[NDArray[np.int64], ...]:
        """The examples of each pack."""
        return _cut(self.examples, self.ends)

    def _with_one_a_pack(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indexes of the examples, and of one thing more that follows those of each pack."""
        return np.arange(len(self.packs)) + self.packs, self.ends + np.arange(len(self.ends))

    def _padded(self, out: NDArray[Any], filler: int) -> NDArray[Any]:
        for row, used in enumerate(self.used.tolist()):
            if used < self.shape[1]:
                out[row, used:] = filler
        return out


def _cut(values: NDArray[Any], ends: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """One after the other; ``np.split`` takes 20 times as long."""
    bounds = [0, *ends.tolist()]
    return tuple([values[first:last] for first, last in pairwise(bounds)])


def _items_of(array: NDArray[Any], width: int) -> memoryview:
    """By tokens, where an integer is as wide as what a token has; else by bytes."""
    kind = f"u{width}" if width in (1, 2, 4, 8) else "u1"
    return np.ascontiguousarray(array).reshape(-1).view(kind).data
