"""What an ack says became of the rows of a shaped batch, packed as ``Acked.outcomes``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class RowOutcome(IntEnum):
    """What a step made of a row of its batch.

    Attributes:
        NONE: it is no row of this step: it was not served, or an earlier step had done with it.
        TRAINED: the step trained on it.
        FILTERED: nobody will train on it.
        KEPT: a later step may train on it; the next one carries it.
        STALE: an earlier step kept it, and it has become too old.
    """

    NONE = 0
    TRAINED = 1
    FILTERED = 2
    KEPT = 3
    STALE = 4


_COLUMNS = 3  # Slot, number of rows, outcome.


def pack_outcomes(by_slot: Mapping[int, NDArray[np.int8]]) -> NDArray[np.int32]:
    """The runs of the rows of these groups, as ``Acked`` has them.

    Args:
        by_slot: the outcome of each row, int8 [rows of the group].
    """
    runs = []
    for slot, rows in by_slot.items():
        starts = np.flatnonzero(np.diff(rows, prepend=rows.dtype.type(-1)))
        counts = np.diff(starts, append=len(rows))
        runs.append(np.stack([np.full(len(starts), slot), counts, rows[starts]], axis=1))
    if not runs:
        return np.empty(0, np.int32)
    return np.concatenate(runs).astype(np.int32).reshape(-1)


def unpack_outcomes(outcomes: NDArray[np.int32]) -> dict[int, NDArray[np.int8]]:
    """Slot to the outcome of each row; groups that are not named were trained on whole."""
    slots, counts, ended = outcomes.reshape(-1, _COLUMNS).T
    rows = np.repeat(ended.astype(np.int8), counts)
    distinct, first = np.unique(np.repeat(slots, counts), return_index=True)
    ends = [*first[1:].tolist(), len(rows)]
    bounds = zip(distinct.tolist(), first.tolist(), ends, strict=False)
    return {slot: rows[start:end] for slot, start, end in bounds}
