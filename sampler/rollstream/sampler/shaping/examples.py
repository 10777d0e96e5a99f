"""``Examples``: what a loss is computed from, as columns; ``RLExample``: one of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import array, indices, truth, whole_number
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.advantages import Advantage, advantages_of, as_float32
from rollstream.sampler.shaping.batch import Batch, a_batch
from rollstream.sampler.shaping.beyond_float32 import groups_beyond_float32, groups_of, named
from rollstream.sampler.shaping.on_first_use import OfExamples, OfTokens, OnFirstUse
from rollstream.sampler.shaping.tensors import NamedArrays
from rollstream.sampler.shaping.token_arrays import TokenArrays
from rollstream.sampler.shaping.turns import Turns

_COLUMNS = ("old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps")
"""Arrays of a batch with a value for each token that are there where they were asked for."""


class RLExample(NamedTuple):
    """One sequence to train on; the arrays are views, each with a value for every position.

    Attributes:
        tokens: int32 [pos], prompt first.
        loss_mask: bool [pos]; True at the tokens that the loss counts.
        advantage: float32 [pos]; 0 where ``loss_mask`` is False.
        generator_log_probs: float32 [pos], under the policy that sampled; 0 where ``loss_mask`` is
            False; NaN where it is True and the rollout was published without any.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    advantage: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]

    def __repr__(self) -> str:
        """One line."""
        return f"RLExample(tokens {len(self.tokens):,}, trained {self.loss_mask.sum():,})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Examples(NamedArrays):
    """Sequences to train on, one after the other; the same batch and arguments give the same bytes.

    Example ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``; n is the number of examples and total
    the number of tokens.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [n + 1].
        loss_mask: bool [total], advantages: float32 [total], generator_log_probs: float32 [total];
            as in ``RLExample``. Of a batch both are computed when they are first read, for all
            tokens at once; ``Packs`` of a rank compute their own part alone.
        token_arrays: name to [total, …]: what else the batch has for each token, among it
            ``old_logprobs``, ``ref_logprobs``, ``token_rewards`` and ``token_weight_steps`` where
            it was asked for them; errors as those of ``Batch.token_arrays``.
        rows: int64 [n], the row of the batch that each was made of; where turns were merged, the
            last of them, which has all their tokens.
        turns: int32 [n], how many turns of its trajectory each has; 1 where none were merged.
        apart: bool [n]; its first turn does not extend the turn before it, which so is an example
            of its own; False everywhere unless turns were to be merged.
        trajectories: int32 [n], the index of its trajectory in the batch.
        weight_steps: int64 [n]; optimizer steps behind the weights that sampled, of merged turns
            the last one (``token_weight_steps`` has those of each token); -1: not known.
        policy_versions: [n], likewise.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    advantages: OnFirstUse = OnFirstUse()  # noqa: RUF009 (a descriptor, no default)
    generator_log_probs: OnFirstUse = OnFirstUse()  # noqa: RUF009
    token_arrays: TokenArrays
    rows: NDArray[np.int64]
    turns: NDArray[np.int32]
    apart: NDArray[np.bool_]
    trajectories: NDArray[np.int32]
    weight_steps: NDArray[np.int64]
    policy_versions: tuple[str, ...]

    @classmethod
    def of(
        cls,
        batch: Batch,
        advantages: Advantage | NDArray[np.float32] = "rloo",
        *,
        rows: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        merge_turns: bool = False,
    ) -> Self:
        """The examples of a batch, in the order of ``rows``; None: all rows, in the batch's order.

        Of all rows in order ``tokens``, ``loss_mask``, ``token_arrays``, ``trajectories`` and
        ``weight_steps`` are those of the batch and no copies, unless turns are merged.

        Args:
            advantages: how they are computed from the groups' returns, by trajectory, whatever
                number of segments each has; or float32 [trajectories], as ``advantages_of`` returns
                them or somebody else computed them.
            rows: of the batch, from 0, in any order.
            merge_turns: a turn whose prompt begins with the prompt and the output of the turn
                before it in ``rows`` goes on in the same example: each token is there once, with
                the mask, log-probs and arrays of the turn that sampled it. A turn that does not
                extend the one before begins an example of its own; ``metrics`` counts them.

        Raises:
            InvalidRequest: a row is none of the batch's, the name of an advantage is unknown, or an
                array of them has another shape or a number that is not finite;
                or advantages are to be computed of returns that float32 has no room for: the error
                names group, slot and rollout, and the ``replace`` that takes it out.
        """
        batch = a_batch(batch)
        columns = {name: getattr(batch, name) for name in _COLUMNS}
        chosen = _Chosen.of("rows", rows, batch.offsets)
        turns = Turns.single(len(chosen.indices))
        if truth("merge_turns", merge_turns):
            turns = Turns.merged(batch, chosen.indices)
            chosen = chosen.merged(turns, batch.offsets)
        loss_mask = chosen.tokens(batch.loss_mask)
        merged = len(turns.shared) > len(turns.lasts)
        prompts = None if merged else chosen.each(batch.prompt_lengths)
        trajectories = chosen.each(batch.trajectory_index)
        of_rows = _by_trajectory(batch, advantages)[trajectories]
        return cls(
            tokens=chosen.tokens(batch.tokens),
            offsets=chosen.offsets,
            loss_mask=loss_mask,
            advantages=OfExamples(of_rows, chosen.offsets, loss_mask, prompts),
            generator_log_probs=OfTokens(chosen.tokens(batch.logprobs), loss_mask),
            token_arrays=batch.token_arrays.joined_by(
                {name: column for name, column in columns.items() if column is not None}
            ).each(chosen.tokens),
            rows=chosen.indices,
            turns=turns.counts,
            apart=turns.apart,
            trajectories=trajectories,
            weight_steps=chosen.each(batch.weight_steps),
            policy_versions=chosen.texts(batch.policy_versions),
        )

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> Self:
        """These examples alone, in this order; of all in order no token is copied. An index counts
        from the end where it is negative.

        Raises:
            InvalidRequest: an index is none of an example.
        """
        chosen = _Chosen.of("indices", indices, self.offsets, from_end=True)
        return replace(
            self,
            tokens=chosen.tokens(self.tokens),
            offsets=chosen.offsets,
            loss_mask=chosen.tokens(self.loss_mask),
            advantages=chosen.tokens(self.advantages),
            generator_log_probs=chosen.tokens(self.generator_log_probs),
            token_arrays=self.token_arrays.each(chosen.tokens),
            rows=self.rows[chosen.indices],
            turns=self.turns[chosen.indices],
            apart=self.apart[chosen.indices],
            trajectories=self.trajectories[chosen.indices],
            weight_steps=self.weight_steps[chosen.indices],
            policy_versions=chosen.texts(self.policy_versions),
        )

    def __repr__(self) -> str:
        """One line."""
        return f"Examples({len(self):,}, tokens {len(self.tokens):,})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: SupportsIndex) -> RLExample:
        """One example, from the end where ``index`` is negative; its arrays are views.

        Raises:
            IndexError: there is no such example.
            InvalidRequest: it is no whole number.
        """
        given: Any = index
        if isinstance(given, slice):
            raise InvalidRequest(
                f"an index of an example is {given}; give a whole number, or for several "
                "examples.take(range(begin, end))"
            )
        at = range(len(self))[whole_number("an index of an example", index)]
        span = slice(*self.offsets[at : at + 2].tolist())
        return RLExample(
            self.tokens[span],
            self.loss_mask[span],
            self.advantages[span],
            self.generator_log_probs[span],
        )

    def __iter__(self) -> Iterator[RLExample]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, int64 [n]."""
        return np.diff(self.offsets)

    def have_log_probs(self, name: str = "generator_log_probs") -> NDArray[np.bool_]:
        """Whether every token that the loss counts has a log-prob of this name, bool [n]:
        ``examples.take(np.flatnonzero(examples.have_log_probs()))`` are those that can be trained
        on.

        Args:
            name: ``generator_log_probs``, or ``old_logprobs`` or ``ref_logprobs`` where the batch
                was asked for them.

        Raises:
            ArrayMissing: it was not asked for, or no group of the batch has it.
        """
        own = name == "generator_log_probs"
        values = self.generator_log_probs if own else self.token_arrays[name]
        lacking = np.flatnonzero(self.loss_mask & np.isnan(values))
        have = np.ones(len(self), np.bool_)
        have[np.searchsorted(self.offsets, lacking, side="right") - 1] = False
        return have

    def metrics(self) -> dict[str, float]:
        """A flat dict for any logger: ``examples``, ``tokens``, ``trained_tokens`` (those that the
        loss counts), ``turns/merged``, turns that go on in the example of the turn before, and
        ``turns/apart``, turns that were to be merged and do not extend the one before."""
        return {
            "examples": float(len(self)),
            "tokens": float(len(self.tokens)),
            "trained_tokens": float(np.count_nonzero(self.loss_mask)),
            "turns/merged": float(self.turns.sum() - len(self)),
            "turns/apart": float(np.count_nonzero(self.apart)),
        }


class _Chosen(NamedTuple):
    """Some sequences of many, in an order.

    Attributes:
        indices: int64 [n], which; of several that were merged, the last.
        offsets: int64 [n + 1], where each lies among the chosen.
        spans: what is taken of all, piece after piece; None: all, in order.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    spans: list[tuple[int, int]] | None

    @classmethod
    def of(
        cls, name: str, given: Any, offsets: NDArray[np.int64], *, from_end: bool = False
    ) -> _Chosen:
        """Those that an argument of this name gives, where ``from_end`` also by negative numbers;
        None: all."""
        count = len(offsets) - 1
        everything = np.arange(count)
        if given is None:
            return cls(everything, offsets, None)
        found = indices(name, given, count, from_end=from_end)
        if np.array_equal(found, everything):
            return cls(found, offsets, None)
        return cls(found, *_joined(offsets[found], offsets[found + 1]))

    def merged(self, turns: Turns, offsets: NDArray[np.int64]) -> _Chosen:
        """The sequences of these turns, of which ``offsets`` says where each lies among all."""
        if len(turns.lasts) == len(self.indices):
            return self
        starts = offsets[self.indices] + turns.shared
        ends, spans = _joined(starts, offsets[self.indices + 1])
        return _Chosen(self.indices[turns.lasts], ends[np.append(0, turns.lasts + 1)], spans)

    def tokens(self, values: NDArray[Any]) -> NDArray[Any]:
        """Their part of what has a value for each token of all."""
        if self.spans is None:
            return values
        return np.concatenate([values[:0], *[values[start:stop] for start, stop in self.spans]])

    def each(self, values: NDArray[Any]) -> NDArray[Any]:
        """Their part of what has a value for each sequence."""
        return values if self.spans is None else values[self.indices]

    def texts(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Their part of what has a text for each sequence."""
        if self.spans is None:
            return values
        return tuple([values[index] for index in self.indices.tolist()])


def _joined(
    starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Where pieces lie when they stand one after the other, int64 [pieces + 1]; and the pieces."""
    ends = np.concatenate(([0], np.cumsum(stops - starts)))
    return ends, list(zip(starts.tolist(), stops.tolist(), strict=True))


def _by_trajectory(
    batch: Batch, advantages: Advantage | NDArray[np.float32]
) -> NDArray[np.float32]:
    """float32 [trajectories]."""
    if isinstance(advantages, str):
        beyond = groups_beyond_float32(batch).tolist()
        if beyond:
            slots = [batch.slots[group] for group in beyond]
            raise InvalidRequest(
                f"batch of step {batch.step} has returns, or differences of them, that float32 has "
                f"no room for: {named(batch, beyond[0])}; sampler.replace({batch.step}, {slots}, "
                "'beyond float32') serves others in place of them, and TrainingBatches leaves such "
                "groups out"
            )
        return advantages_of(batch.trajectory_returns, groups_of(batch), advantages)
    found = array(advantages)
    if found.shape != batch.trajectory_returns.shape or found.dtype.kind not in "fiu":
        raise InvalidRequest(
            f"advantages are {found.dtype} {list(found.shape)}; give a number for each of the "
            f"{batch.num_trajectories} trajectories, or the name of a way to compute them"
        )
    return as_float32("advantages", found)
