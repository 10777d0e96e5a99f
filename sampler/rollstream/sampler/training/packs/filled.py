"""A rank's packs, filled. Pure.

A rank has some sixty examples, so what a copy costs besides its bytes counts: an array is joined of
slices of a memoryview, paddings among them, by ``bytearray.join``, which writes each byte once. The
packs of eight ranks, 9 of 8,192 tokens each, take 1.2 times as long where slices are assigned to
slices; of one array, ``np.concatenate`` of NumPy slices takes twice as long as the join.
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
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.examples.on_first_use import (
    OfExamples,
    OfTokens,
    Source,
    source_of,
)
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
        of_examples = source_of(examples, "advantages")
        prompts = of_examples.prompts if isinstance(of_examples, OfExamples) else None
        places = _Places.of(examples, plan, rank, prompts)
        loss_mask = places.filled(examples.loss_mask)
        outside = ~loss_mask
        # Where the loss counts whole outputs advantages need no mask: none is at prompts. Log-probs
        # do: a caller's own, as `dataclasses.replace` puts into a batch, may have any there.
        beyond = None if places.are_outputs(loss_mask) else outside
        return cls(
            tokens=places.filled(examples.tokens, token_id("pad_id", pad_id)),
            segment_ids=places.segment_ids(),
            position_ids=places.position_ids(),
            loss_mask=loss_mask,
            advantages=places.within(of_examples, beyond),
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
    """Where the m examples of a rank go, in the order of its packs.

    Attributes:
        shape: (K, S).
        examples: int64 [m].
        sources: of each, its slice of the tokens of all examples.
        lengths: int64 [m], tokens of each.
        starts: int32 [m], the position in its pack where each begins.
        packs: int64 [m], the pack of each.
        ends: int64 [K], for each pack how many examples are in it and in those before.
        runs: int64 [3 m + 1], how many tokens follow one another: of padding, of an example's
            prompt, of its output, of padding, …, of padding. Most paddings have none. All of an
            example is output where prompts are not known.
        paddings: those that have some: how many examples stand before each, and its tokens; the
            last one first.
    """

    shape: tuple[int, int]
    examples: NDArray[np.int64]
    sources: list[slice]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int32]
    packs: NDArray[np.int64]
    ends: NDArray[np.int64]
    runs: NDArray[np.int64]
    paddings: list[tuple[int, int]]

    @classmethod
    def of(
        cls, examples: Examples, plan: PackPlan, rank: int, prompts: NDArray[np.int32] | None
    ) -> _Places:
        count, length = plan.packs_per_rank, plan.length
        found, ends = plan.of_rank(rank)
        lengths, starts, sources = plan.lengths[found], plan.start[found], examples.offsets[found]
        there = examples.offsets[found + 1] - sources
        for wrong in (np.minimum(there, length) != lengths).nonzero()[0][:1]:
            raise InvalidRequest(
                f"example {found[wrong]} has {there[wrong]} tokens and the plan {lengths[wrong]} "
                "of it; plan with examples.lengths"
            )
        packs = plan.pack[found].astype(np.int64)
        begins = packs * length + starts
        runs = np.zeros(3 * len(found) + 1, np.int64)
        if prompts is not None:
            runs[1::3] = np.minimum(prompts[found], lengths)
        runs[2::3] = lengths - runs[1::3]
        paddings = runs[::3]
        paddings[:-1], paddings[-1] = begins, count * length
        paddings[1:] -= begins + lengths
        before = paddings.nonzero()[0][::-1]
        return cls(
            shape=(count, length),
            examples=found,
            sources=list(map(slice, sources.tolist(), (sources + lengths).tolist())),
            lengths=lengths,
            starts=starts,
            packs=packs,
            ends=ends,
            runs=runs,
            paddings=list(zip(before.tolist(), paddings[before].tolist(), strict=True)),
        )

    def filled(self, values: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """The examples' part of what has a value for each token; ``filler`` at padding."""
        source, slices = np.ascontiguousarray(values).reshape(-1).data, self.sources
        if values.ndim > 1:
            width = math.prod(values.shape[1:])
            slices = [slice(one.start * width, one.stop * width) for one in slices]
        return self._joined([source[one] for one in slices], values, filler)

    def are_outputs(self, loss_mask: NDArray[np.bool_]) -> bool:
        """Whether the loss counts all tokens of the examples behind their prompts and no other."""
        outputs = self._repeated(False, np.ones(len(self.examples), np.bool_))
        return not np.not_equal(loss_mask, outputs, out=outputs).any()

    def within(self, source: Source, outside: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        """The examples' part of it, with 0 at tokens outside of the loss, unless it is an array.
        None: those outside are the prompts."""
        if isinstance(source, np.ndarray):
            return self.filled(source)
        if isinstance(source, OfTokens):
            out = self.filled(source.values)
        else:
            values = source.values[self.examples]
            out = self._repeated(0 if outside is None else values, values)
        if outside is not None:
            np.copyto(out, 0, where=outside)
        return out

    def position_ids(self) -> NDArray[np.int32]:
        positions = np.arange(self.lengths.max(initial=0), dtype=np.int32)
        source = positions.data
        return self._joined([source[:length] for length in self.lengths.tolist()], positions)

    def segment_ids(self) -> NDArray[np.int32]:
        before = np.zeros(len(self.ends) + 1, np.int64)  # Of each pack, examples.
        before[1:] = self.ends
        numbers = np.arange(1, len(self.examples) + 1) - before[self.packs]
        return self._repeated(numbers, numbers.astype(np.int32))

    def cu_seqlens(self) -> tuple[NDArray[np.int32], ...]:
        each = np.arange(len(self.packs)) + self.packs
        bounds = np.zeros(len(each) + len(self.ends), np.int32)
        bounds[each + 1] = self.starts + self.lengths
        bounds[each] = self.starts
        return _cut(bounds, self.ends + np.arange(1, len(self.ends) + 1))

    def by_pack(self) -> tuple[NDArray[np.int64], ...]:
        """The examples of each pack."""
        return _cut(self.examples, self.ends)

    def _repeated(self, at_prompts: NDArray[Any] | int, values: NDArray[Any]) -> NDArray[Any]:
        """Each example's value at its tokens; 0 at padding."""
        of_runs = np.zeros(len(self.runs), values.dtype)
        of_runs[1::3], of_runs[2::3] = at_prompts, values
        return of_runs.repeat(self.runs).reshape(self.shape)

    def _joined(
        self, pieces: list[memoryview], values: NDArray[Any], filler: int = 0
    ) -> NDArray[Any]:
        """The examples' pieces of the values, each in its pack; ``filler`` at padding."""
        kind, shape = values.dtype, values.shape[1:]
        of_token = np.array(filler, kind).tobytes() * math.prod(shape)
        joined: list[bytes | memoryview] = [*pieces]
        for before, count in self.paddings:
            joined.insert(before, of_token * count)
        return np.ndarray((*self.shape, *shape), kind, bytearray().join(joined))


def _cut(values: NDArray[Any], ends: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """One after the other; ``np.split`` takes 20 times as long."""
    bounds = [0, *ends.tolist()]
    return tuple([values[first:last] for first, last in pairwise(bounds)])
