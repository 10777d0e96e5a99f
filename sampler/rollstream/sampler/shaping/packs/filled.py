"""A rank's packs, filled. Pure.

A rank has some sixty examples, so what a copy costs besides its bytes counts. Slices of memoryviews
were the fastest, as in ``shaping/joining.py``: 9 packs of 8,192 tokens of 62 examples take 12 µs an
array (memcpy of it: 6), NumPy slices or ``np.concatenate`` of them 23, an index gather 120. So the
slices are made once for all arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import token_id, whole_number
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.on_first_use import OfExamples, Source, source_of
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
            InvalidRequest: the plan is of other examples, or has no such rank, or ``pad_id`` is no
                token.
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
        loss_mask = places.filled(examples.loss_mask)
        outside = ~loss_mask
        return cls(
            tokens=places.filled(examples.tokens, token_id("pad_id", pad_id)),
            segment_ids=places.segment_ids(),
            position_ids=places.position_ids(),
            loss_mask=loss_mask,
            advantages=places.within(source_of(examples, "advantages"), outside),
            generator_log_probs=places.within(source_of(examples, "generator_log_probs"), outside),
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
        targets: of each, its slice of the K * S tokens of the rank.
        sources: of each, its slice of the tokens of all examples.
        ends: int64 [K], for each pack how many examples are in it and in those before.
        used: int64 [K], tokens in each.
        each: int64 [m], where each example is among the runs: those of a pack, then its padding.
        paddings: int64 [K], where each pack's padding is among them.
        runs: int64 [m + K], tokens of each.
    """

    shape: tuple[int, int]
    examples: NDArray[np.int64]
    packs: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int64]
    targets: list[slice]
    sources: list[slice]
    ends: NDArray[np.int64]
    used: NDArray[np.int64]
    each: NDArray[np.int64]
    paddings: NDArray[np.int64]
    runs: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Examples, plan: PackPlan, rank: int) -> _Places:
        found = np.flatnonzero(plan.rank == rank)
        found = found[np.lexsort((plan.start[found], plan.pack[found]))]
        packs, lengths = plan.pack[found].astype(np.int64), plan.lengths[found]
        starts, sources = plan.start[found], examples.offsets[found]
        targets = packs * plan.length + starts
        there = examples.offsets[found + 1] - sources
        for wrong in np.flatnonzero(np.minimum(there, plan.length) != lengths)[:1]:
            raise InvalidRequest(
                f"example {found[wrong]} has {there[wrong]} tokens and the plan {lengths[wrong]} "
                "of it; plan with examples.lengths"
            )
        count = plan.packs_per_rank
        ends = np.cumsum(np.bincount(packs, minlength=count))
        used = np.bincount(packs, lengths, count).astype(np.int64)
        each, paddings = np.arange(len(found)) + packs, ends + np.arange(count)
        runs = np.empty(len(found) + count, np.int64)
        runs[each], runs[paddings] = lengths, plan.length - used
        return cls(
            shape=(count, plan.length),
            examples=found,
            packs=packs,
            starts=starts,
            lengths=lengths,
            targets=_slices(targets, targets + lengths),
            sources=_slices(sources, sources + lengths),
            ends=ends,
            used=used,
            each=each,
            paddings=paddings,
            runs=runs,
        )

    def filled(self, values: NDArray[Any], filler: int | None = 0) -> NDArray[Any]:
        """The examples' part of what has a value for each token; ``filler`` at padding; None: what
        was there."""
        out = np.empty((*self.shape, *values.shape[1:]), values.dtype)
        width = out.itemsize * math.prod(values.shape[1:])
        into, source = _items_of(out, width), _items_of(values, width)
        targets, sources = self.targets, self.sources
        if (scale := width // into.itemsize) > 1:
            targets, sources = _scaled(targets, scale), _scaled(sources, scale)
        for to, of in zip(targets, sources, strict=True):
            into[to] = source[of]
        return out if filler is None else self._padded(out, filler)

    def within(self, source: Source, outside: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The examples' part of it, with 0 at tokens outside of the loss, unless it is an array."""
        if isinstance(source, np.ndarray):
            return self.filled(source)
        if isinstance(source, OfExamples):
            out = self._repeated(source.values[self.examples])
        else:
            out = self.filled(source.values, None)
        np.copyto(out, 0, where=outside)
        return out

    def position_ids(self) -> NDArray[np.int32]:
        out = np.empty(self.shape, np.int32)
        into = _items_of(out, 4)
        source = _items_of(np.arange(self.lengths.max(initial=0), dtype=np.int32), 4)
        for to, length in zip(self.targets, self.lengths.tolist(), strict=True):
            into[to] = source[:length]
        return self._padded(out, 0)

    def segment_ids(self) -> NDArray[np.int32]:
        before = np.concatenate(([-1], self.paddings))[self.packs]
        return self._repeated((self.each - before).astype(np.int32))

    def cu_seqlens(self) -> tuple[NDArray[np.int32], ...]:
        bounds = np.empty(len(self.runs), np.int32)
        bounds[self.each], bounds[self.paddings] = self.starts, self.used
        return _cut(bounds, self.paddings + 1)

    def by_pack(self) -> tuple[NDArray[np.int64], ...]:
        """The examples of each pack."""
        return _cut(self.examples, self.ends)

    def _repeated(self, values: NDArray[Any]) -> NDArray[Any]:
        """Each example's value at its tokens; 0 at padding."""
        of_runs = np.zeros(len(self.runs), values.dtype)
        of_runs[self.each] = values
        return np.repeat(of_runs, self.runs).reshape(self.shape)

    def _padded(self, out: NDArray[Any], filler: int) -> NDArray[Any]:
        for row, used in enumerate(self.used.tolist()):
            if used < self.shape[1]:
                out[row, used:] = filler
        return out


def _cut(values: NDArray[Any], ends: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """One after the other; ``np.split`` takes 20 times as long."""
    bounds = [0, *ends.tolist()]
    return tuple([values[first:last] for first, last in pairwise(bounds)])


def _slices(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[slice]:
    return list(map(slice, starts.tolist(), stops.tolist()))


def _scaled(slices: list[slice], scale: int) -> list[slice]:
    return [slice(one.start * scale, one.stop * scale) for one in slices]


def _items_of(array: NDArray[Any], width: int) -> memoryview:
    """By tokens, where an integer is as wide as what a token has; else by bytes."""
    kind = f"u{width}" if width in (1, 2, 4, 8) else "u1"
    return np.ascontiguousarray(array).reshape(-1).view(kind).data
