"""A batch as rectangles. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PaddedLayout = Literal["sequence", "prompt_response"]


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Rectangles over the rollouts of a batch; ``length`` is the width.

    ``sequence``: the prompt begins in column 0, the output follows, then padding.
    ``prompt_response``: the output begins in the same column of every row (``prompt_width``), after
    padding and the prompt; more padding follows.

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
