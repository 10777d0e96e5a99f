"""``Examples``: columns from which a loss is computed; ``RLExample``: one of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import array, indices, truth, whole_number
from rollstream.sampler.batch.batch import Batch, a_batch
from rollstream.sampler.batch.beyond_float32 import groups_beyond_float32, groups_of, named
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.advantages import Advantage, advantages_of, as_float32
from rollstream.sampler.training.examples.turns import Turns

_COLUMNS = ("old_logprobs", "ref_logprobs", "token_rewards", "token_weight_steps")
"""Arrays of a batch with a value for each token that are there where they were asked for."""
PER_TOKEN = ("tokens", "loss_mask", "advantages", "generator_log_probs")
"""The columns of ``Examples`` that have a value for each token, besides ``token_arrays``."""
PER_EXAMPLE = ("rows", "turns", "apart", "trajectories", "weight_steps")
"""Those that have one for each example, besides ``policy_versions``."""


class RLExample(NamedTuple):
    """One sequence to train on. The arrays are views, with a value for every position.

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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Examples(NamedArrays):
    """Sequences to train on, one after the other. The same batch and arguments give the same bytes.

    Example ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``, and ``examples[i]`` is an ``RLExample``.
    n is the number of examples, and total the number of tokens.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [n + 1].
        loss_mask: bool [total], as in ``RLExample``.
        advantages: float32 [total], likewise.
        generator_log_probs: float32 [total], likewise.
        token_arrays: name to [total, …], the arrays of the batch with a value for each token, among
            them ``old_logprobs``, ``ref_logprobs``, ``token_rewards`` and ``token_weight_steps`` if
            the batch has them. Errors are those of ``Batch.token_arrays``.
        rows: int64 [n], the row of the batch of each example; of merged turns the last one.
        turns: int32 [n], how many turns of its trajectory each has; 1 if none were merged.
        apart: bool [n], whether its first turn does not extend the turn before it, so that it is an
            example of its own. False everywhere if turns were not to be merged.
        trajectories: int32 [n], the index of its trajectory in the batch.
        weight_steps: int64 [n], optimizer steps behind the weights that sampled, of merged turns
            the last one; -1: not known.
        policy_versions: [n], likewise.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]
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
        """Returns the examples of a batch, in the order of ``rows``; None: all rows.

        Tokens and masks of all rows are the batch's own arrays and no copies, unless turns are
        merged.

        Args:
            batch: the batch.
            advantages: ``rloo``, ``grpo``, ``dr_grpo``, or float32 [trajectories] of your own. They
                are computed from the returns of a group's trajectories.
            rows: of the batch, from 0, in any order.
            merge_turns: whether a turn goes on in the example of the turn before it, if its prompt
                begins with the prompt and the output of that turn. Each token is then there once,
                with the mask, log-probs and arrays of the turn that sampled it. Other turns begin
                an example of their own, and ``metrics`` counts them.

        Raises:
            InvalidRequest: a row is not of the batch, the name of an advantage is unknown, or your
                array has another shape or a number that is not finite; or a return is too large for
                float32: the error names group, slot and rollout, and the ``replace`` that takes it
                out.
        """
        batch = a_batch(batch)
        columns = {name: getattr(batch, name) for name in _COLUMNS}
        chosen = _Chosen.of("rows", rows, batch.offsets)
        turns = Turns.single(len(chosen.indices))
        if truth("merge_turns", merge_turns):
            turns = Turns.merged(batch, chosen.indices)
            chosen = chosen.merged(turns, batch.offsets)
        loss_mask = chosen.tokens(batch.loss_mask)
        trajectories = chosen.each(batch.trajectory_index)
        of_rows = _by_trajectory(batch, advantages)[trajectories]
        of_tokens = np.repeat(of_rows, np.diff(chosen.offsets))
        return cls(
            tokens=chosen.tokens(batch.tokens),
            offsets=chosen.offsets,
            loss_mask=loss_mask,
            advantages=_counted(of_tokens, loss_mask),
            generator_log_probs=_counted(chosen.tokens(batch.logprobs), loss_mask),
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
        """Returns these examples alone, in this order. Negative indices count from the end.

        Raises:
            InvalidRequest: there is no such example.
        """
        chosen = _Chosen.of("indices", indices, self.offsets, from_end=True)
        columns: dict[str, Any] = {
            **{name: chosen.tokens(getattr(self, name)) for name in PER_TOKEN},
            **{name: chosen.each(getattr(self, name)) for name in PER_EXAMPLE},
        }
        return replace(
            self,
            **columns,
            offsets=chosen.offsets,
            token_arrays=self.token_arrays.each(chosen.tokens),
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
        """Returns whether every token that the loss counts has a log-prob of this name, bool [n].

        ``examples.take(np.flatnonzero(examples.have_log_probs()))`` are the examples with a ratio.

        Args:
            name: ``generator_log_probs``; or ``old_logprobs`` or ``ref_logprobs`` if the batch has
                them.

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
        """Returns a flat dict for any logger.

        ``examples``, ``tokens``, ``trained_tokens`` (that the loss counts), ``turns/merged`` (that
        go on in the example of the turn before) and ``turns/apart`` (that were to be merged, and do
        not extend the turn before).
        """
        return {
            "examples": float(len(self)),
            "tokens": float(len(self.tokens)),
            "trained_tokens": float(np.count_nonzero(self.loss_mask)),
            "turns/merged": float(self.turns.sum() - len(self)),
            "turns/apart": float(np.count_nonzero(self.apart)),
        }


def _counted(values: NDArray[np.float32], loss_mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The values of tokens that the loss counts; 0 at others."""
    return np.where(loss_mask, values, np.float32(0))


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
