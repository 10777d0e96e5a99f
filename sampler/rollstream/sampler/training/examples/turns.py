"""Turns whose prompts extend one another, so that they may be one sequence. Pure.

The tokens themselves are compared: ``prefix_hash`` names the tokens of all segments before one, by
which the sealer knows that none is missing, and does not say what a prompt begins with.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.batch import Batch


class Turns(NamedTuple):
    """How r rows of a batch make n sequences, of one turn or of several that follow one another.

    A row extends the one before it where that is an earlier turn of its trajectory and its prompt
    begins with that one's prompt and output. So the last turn of a sequence has all its tokens.

    Attributes:
        lasts: int64 [n]; which of the rows is the last turn of each sequence.
        counts: int32 [n]; turns of each.
        apart: bool [n]; an earlier turn of the trajectory stands before its first one, which does
            not extend that.
        shared: int64 [r]; how many of its tokens each row has in common with the turn before it in
            its sequence; 0 where it is the first.
    """

    lasts: NDArray[np.int64]
    counts: NDArray[np.int32]
    apart: NDArray[np.bool_]
    shared: NDArray[np.int64]

    @classmethod
    def single(cls, rows: int) -> Self:
        """Each row is a sequence."""
        ones, none = np.ones(rows, np.int32), np.zeros(rows, np.bool_)
        return cls(np.arange(rows), ones, none, np.zeros(rows, np.int64))

    @classmethod
    def merged(cls, batch: Batch, rows: NDArray[np.int64]) -> Self:
        """What extends is merged."""
        starts, trajectories = batch.offsets[rows], batch.trajectory_index[rows]
        before = np.zeros(len(rows), np.int64)  # Tokens of the row before.
        before[1:] = (batch.offsets[rows + 1] - starts)[:-1]
        later = np.zeros(len(rows), np.bool_)
        later[1:] = (trajectories[1:] == trajectories[:-1]) & (rows[1:] > rows[:-1])
        extends = later & (batch.prompt_lengths[rows] >= before)
        at, tokens = np.flatnonzero(extends), batch.tokens
        columns = (at, starts[at - 1], starts[at], before[at])
        for row, earlier, start, count in zip(*(c.tolist() for c in columns), strict=True):
            extends[row] = np.array_equal(
                tokens[earlier : earlier + count], tokens[start : start + count]
            )
        firsts = np.flatnonzero(~extends)
        ends = np.append(firsts[1:], len(rows)) if len(firsts) else firsts
        return cls(
            lasts=ends - 1,
            counts=(ends - firsts).astype(np.int32),
            apart=later[firsts],
            shared=np.where(extends, before, 0),
        )
