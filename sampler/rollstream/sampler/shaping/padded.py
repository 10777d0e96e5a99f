"""A ragged batch as rectangles. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.errors import InvalidRequest

PaddedLayout = Literal["sequence", "prompt_response"]


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Rectangles over the rollouts of a batch; ``length`` is the width.

    ``sequence``: prompt and output begin in column 0, padding behind. ``prompt_response``: the
    prompt ends, and the output begins, in the same column of every row (``prompt_width``), padding
    on both sides.

    Attributes:
        tokens: int32 [n, length].
        attention_mask: bool [n, length]; False at padding.
        loss_mask: bool [n, length]; False at padding.
        logprobs: float32 [n, length]; 0 at padding.
        prompt_width: the column where outputs begin; 0 in ``sequence``.
    """

    tokens: NDArray[np.int32]
    attention_mask: NDArray[np.bool_]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    prompt_width: int


def pad(
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    prompt_lengths: NDArray[np.int32],
    loss_mask: NDArray[np.bool_],
    logprobs: NDArray[np.float32],
    *,
    length: int,
    pad_id: int,
    layout: PaddedLayout,
) -> Padded:
    """Raises:
    InvalidRequest: a rollout does not fit ``length``; nothing is ever cut off silently.
    """
    if layout not in ("sequence", "prompt_response"):
        raise InvalidRequest(f"layout {layout!r} is unknown; use 'sequence' or 'prompt_response'")
    rows = len(prompt_lengths)
    lengths = np.diff(offsets)
    prompts = prompt_lengths.astype(np.int64)
    prompt_width = 0
    starts = np.zeros(rows, np.int64)
    if layout == "prompt_response" and rows:
        prompt_width = int(prompts.max())
        starts = prompt_width - prompts
    needed = int((starts + lengths).max()) if rows else 0
    if needed > length:
        raise InvalidRequest(
            f"the longest rollout needs {needed} columns and length is {length}; raise it"
        )
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    where = within + np.repeat(np.arange(rows) * length + starts, lengths)

    def spread(values: NDArray[Any], filler: Any) -> NDArray[Any]:
        out = np.full(rows * length, filler, values.dtype)
        out[where] = values
        return out.reshape(rows, length)

    return Padded(
        spread(tokens, pad_id),
        spread(np.ones(len(tokens), np.bool_), False),
        spread(loss_mask, False),
        spread(logprobs, 0),
        prompt_width,
    )
