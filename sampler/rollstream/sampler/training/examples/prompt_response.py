"""``PromptResponse``: examples in the shape of trainers that pad. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import token_id
from rollstream.sampler.batch.batch import Batch, a_batch
from rollstream.sampler.batch.padded import Rectangle
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import Examples


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class PromptResponse(NamedArrays):
    """Prompts padded on the left, responses on the right: P columns, then R, as wide as the longest
    need. A response is what the policy sampled and what stands between; where turns were merged
    into one example, from the first of them on. Each token is copied once.

    Attributes:
        prompt_width: P.
        tokens: int64 [n, P + R].
        attention_mask: int64 [n, P + R]; 0 at padding.
        loss_mask: int64 [n, R]; 1 at the tokens that the loss counts.
        advantages: float32 [n, R]; 0 where ``loss_mask`` is.
        generator_log_probs: float32 [n, R], under the policy that sampled; 0 where ``loss_mask``
            is; NaN where an example was published without any.
        token_arrays: name to [n, R, …], what else the examples have for each token; floats are 0
            where ``loss_mask`` is.
    """

    prompt_width: int
    tokens: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    loss_mask: NDArray[np.int64]
    advantages: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]
    token_arrays: TokenArrays

    @classmethod
    def of(cls, batch: Batch, examples: Examples, pad_id: int) -> Self:
        """The examples of a batch, in their order.

        Raises:
            InvalidRequest: they are not of this batch, or ``pad_id`` is no token.
        """
        _refuse_others(a_batch(batch), examples)
        counted = np.append(np.flatnonzero(examples.loss_mask), len(examples.tokens))
        begins = examples.offsets[:-1]
        first_counted = counted[np.searchsorted(counted, begins)] - begins
        # The prompt of merged turns is that of the first, which ends where the loss begins.
        prompts = np.minimum(batch.prompt_lengths[examples.rows], first_counted)
        prompts = np.minimum(prompts, examples.lengths)
        width = int(prompts.max(initial=0))
        columns = width + int((examples.lengths - prompts).max(initial=0))
        place = Rectangle.of(examples.offsets, width - prompts, columns)

        def responses(values: NDArray[Any]) -> NDArray[Any]:
            return place.spread(values)[:, width:]

        def where_counted(values: NDArray[Any]) -> NDArray[Any]:
            if values.dtype.kind != "f":
                return responses(values)
            mask = examples.loss_mask.reshape(-1, *(1,) * (values.ndim - 1))
            return responses(np.where(mask, values, values.dtype.type(0)))

        return cls(
            prompt_width=width,
            tokens=place.spread(examples.tokens.astype(np.int64), token_id("pad_id", pad_id)),
            attention_mask=place.spread(np.ones(len(examples.tokens), np.int64)),
            loss_mask=responses(examples.loss_mask.astype(np.int64)),
            advantages=responses(examples.advantages),
            generator_log_probs=responses(examples.generator_log_probs),
            token_arrays=examples.token_arrays.each(where_counted),
        )

    def log_probs(self, name: str) -> NDArray[np.float32]:
        """``generator_log_probs``, or those of ``token_arrays``.

        Raises:
            InvalidRequest: a token that the loss counts has none, so that the loss would be NaN.
            ArrayMissing: the batch was not asked for them.
        """
        if name == "generator_log_probs":
            found = self.generator_log_probs
        else:
            found = self.token_arrays[name]
        missing = np.flatnonzero(np.isnan(found).any(axis=1))
        if len(missing):
            raise InvalidRequest(
                f"{len(missing)} of {len(found)} examples, the first of them {missing[0]}, have no "
                f"{name}: they were published without. Leave them out with examples.take("
                f"np.flatnonzero(examples.have_log_probs({name!r}))), or have env workers publish "
                "them"
            )
        return found


def _refuse_others(batch: Batch, examples: Any) -> None:
    """An example has the tokens of its row, also where turns were merged: those of the last."""
    if not isinstance(examples, Examples):
        raise InvalidRequest(f"examples is {examples!r:.200}; give Examples.of(batch)")
    rows = examples.rows
    there = rows.max(initial=-1) < len(batch)
    if not there or not np.array_equal(np.diff(batch.offsets)[rows], examples.lengths):
        raise InvalidRequest(
            f"{examples!r} were not made of {batch!r}: rows differ in length; give the batch that "
            "they were made of"
        )
