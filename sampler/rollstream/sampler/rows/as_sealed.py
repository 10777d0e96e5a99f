"""A group's rows as its flush event has them, for who chooses among rollouts whose file is lost.
Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.events import Flushed


def rows_as_sealed(event: Flushed, index: int) -> Columns:
    """The rows of the group at this index: what a batch reads of each, but for its tokens, of which
    there are as many and all are 0, and for what is given by token."""
    first = sum(group.rows for group in event.groups[:index])
    rows = slice(first, first + event.groups[index].rows)
    of = event.segments
    reasons = of.stop_reason_idxs[rows].tolist()
    return Columns(
        event.groups[index].rows,
        {
            "rollout_uid": list(of.uids[rows]),
            "segment_idx": of.segment_idxs[rows],
            "weight_step": of.weight_steps[rows],
            "stop_reason": [of.stop_reasons[reason] for reason in reasons],
            "reward": of.rewards[rows],
        },
        {
            "prompt_tokens": _zeros(of.prompt_counts[rows]),
            "output_tokens": _zeros(of.token_counts[rows]),
        },
    )


def _zeros(counts: NDArray[np.int32]) -> Ragged:
    return Ragged(np.zeros(int(counts.sum()), np.int32), offsets_of(counts))
