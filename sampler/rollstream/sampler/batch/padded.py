"""``Padded``: a batch as rectangles. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import at_least, token_id
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.order import UNKNOWN_STEP

if TYPE_CHECKING:
    from rollstream.sampler.batch.batch import Batch

PaddedLayout = Literal["sequence", "prompt_response"]


class Rectangle(NamedTuple):
    """Where each token of some sequences goes in a rectangle of a row for each.

    Attributes:
        shape: (rows, columns).
        where: int64 [total], the place of each token, counted row by row.
    """

    shape: tuple[int, int]
    where: NDArray[np.int64]

    @classmethod
    def of(cls, offsets: NDArray[np.int64], starts: NDArray[np.int64], columns: int) -> Rectangle:
        """Sequence ``i`` is ``[offsets[i]:offsets[i + 1]]`` and begins in column ``starts[i]``."""
        rows, lengths = len(offsets) - 1, np.diff(offsets)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        where = within + np.repeat(np.arange(rows) * columns + starts, lengths)
        return cls((rows, columns), where)

    def spread(self, values: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """[rows, columns, …] of what has a value for each token."""
        rows, columns = self.shape
        # Memory that is 0 from the start is not touched where it stays so.
        flat = np.zeros((rows * columns, *values.shape[1:]), values.dtype)
        if filler:
            flat.fill(filler)
        flat[self.where] = values
        return flat.reshape(rows, columns, *values.shape[1:])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Padded(NamedArrays):
    """The rollouts of a batch as rectangles of width ``length``; ``Batch.padded`` makes it.

    Layout ``sequence``: the prompt begins in column 0, then output, then padding. Layout
    ``prompt_response``: padding and the prompt come first, and the output begins in the same column
    of every row (``prompt_width``); more padding follows.

    Attributes:
        tokens: int32 [n, length].
        attention_mask: bool [n, length]; False at padding.
        loss_mask: bool [n, length]; False at padding.
        logprobs: float32 [n, length]; 0 at padding, NaN as in the batch.
        prompt_width: the column where outputs begin; 0 in ``sequence``.
        token_arrays: name to [n, length, …]; 0 at padding, all else as in the batch.
        old_logprobs: float32 [n, length]; 0 at padding. None, here and below: ``columns`` did not
            ask for it.
        ref_logprobs: float32 [n, length]; 0 at padding.
        token_rewards: float32 [n, length]; 0 at padding.
        token_weight_steps: int64 [n, length]; -1 at padding.
    """

    tokens: NDArray[np.int32]
    attention_mask: NDArray[np.bool_]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    prompt_width: int
    token_arrays: TokenArrays
    old_logprobs: NDArray[np.float32] | None
    ref_logprobs: NDArray[np.float32] | None
    token_rewards: NDArray[np.float32] | None
    token_weight_steps: NDArray[np.int64] | None

    def __repr__(self) -> str:
        """One line."""
        rows, length = self.tokens.shape
        return f"Padded(rows {rows:,}, length {length:,}, outputs from column {self.prompt_width})"

    @classmethod
    def of(cls, batch: Batch, length: int, pad_id: int, layout: PaddedLayout) -> Padded:
        """As ``Batch.padded``."""
        if layout not in ("sequence", "prompt_response"):
            raise InvalidRequest(
                f"layout {layout!r} is unknown; use 'sequence' or 'prompt_response'"
            )
        length = at_least("length", length, 0)
        rows = len(batch)
        lengths = np.diff(batch.offsets)
        prompt_width = 0
        starts = np.zeros(rows, np.int64)
        if layout == "prompt_response" and rows:
            prompt_width = int(batch.prompt_lengths.max())
            starts = prompt_width - batch.prompt_lengths.astype(np.int64)
        needed = int((starts + lengths).max()) if rows else 0
        if needed > length:
            raise InvalidRequest(
                f"the longest rollout needs {needed} columns and length is {length}; raise it"
            )
        spread = Rectangle.of(batch.offsets, starts, length).spread

        def if_asked(values: NDArray[Any] | None, filler: int = 0) -> NDArray[Any] | None:
            return None if values is None else spread(values, filler)

        return cls(
            tokens=spread(batch.tokens, token_id("pad_id", pad_id)),
            attention_mask=spread(np.ones(len(batch.tokens), np.bool_)),
            loss_mask=spread(batch.loss_mask),
            logprobs=spread(batch.logprobs),
            prompt_width=prompt_width,
            token_arrays=batch.token_arrays.each(spread),
            old_logprobs=if_asked(batch.old_logprobs),
            ref_logprobs=if_asked(batch.ref_logprobs),
            token_rewards=if_asked(batch.token_rewards),
            token_weight_steps=if_asked(batch.token_weight_steps, UNKNOWN_STEP),
        )
