"""The packs that can be made of what is offered. Pure.

A *round* is a pack for every rank. The queue of each rank is as long as the others', so it is kept
as rounds; each is of one version, the oldest first. A round is ready once the next trajectory of
its version found no space in it. What fills none yet waits; once a newer version's trajectories are
there, it is flushed into a part-filled round, or dropped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.training.packs.plan import plan_packs
from rollstream.sampler.training.ready_packs.offered import NO_VERSION, Offered

_BUILT_KEPT = 256
"""Rounds that a step does not build again: of most queues all, since the next step has most of
them too."""


class Round(NamedTuple):
    """A pack for every rank.

    Attributes:
        version: the index of the version that sampled all of it.
        trajectories: int64 [t], which are in it.
        rows: int64 [r], the rows of the batch in it.
        ranks: int32 [r], of each row.
        starts: int32 [r], the position in the pack where it begins.
    """

    version: int
    trajectories: NDArray[np.int64]
    rows: NDArray[np.int64]
    ranks: NDArray[np.int32]
    starts: NDArray[np.int32]


class Built(NamedTuple):
    """A round of some trajectories that follow one another, whichever they are.

    Attributes:
        trajectories: how many of the first ones are in it; 0: not even the first one fits.
        ranks, starts: as ``Round`` has them.
    """

    trajectories: int
    ranks: NDArray[np.int32]
    starts: NDArray[np.int32]


class Queue(NamedTuple):
    """What became of the trajectories that were offered.

    Attributes:
        rounds: that are ready, the oldest version first.
        waiting: int64, trajectories that fill no pack yet.
        leftovers: how many trajectories of older versions were dropped because they fill none.
        unusable: how many have no one known version, or a row longer than a pack.
    """

    rounds: tuple[Round, ...]
    waiting: NDArray[np.int64]
    leftovers: int
    unusable: int


def queue_of(
    offered: Offered,
    *,
    length: int,
    ranks: int,
    leftovers: Literal["flush", "drop"],
    ends: bool = False,
) -> Queue:
    """The queue that these trajectories make; the same ones make the same queue.

    Args:
        leftovers: what becomes of those that fill no pack, of all versions but the newest.
        ends: nothing more will come, so that the newest's are flushed too.
    """
    too_long = np.zeros(len(offered.version), np.bool_)
    too_long[offered.trajectory[offered.lengths > length]] = True
    usable = (offered.version[offered.queue] != NO_VERSION) & ~too_long[offered.queue]
    order = offered.queue[usable]
    versions = offered.version[order]
    rounds: list[Round] = []
    waiting, dropped, unusable = order[:0], 0, int((~usable).sum())
    for version in (present := np.unique(versions).tolist()):
        rest = order[versions == version]
        last: Round | None = None
        while len(rest) and last is None:
            found = _round(offered, rest, length, ranks)
            if found is None:  # The first does not fit into a whole round.
                rest, unusable = rest[1:], unusable + 1
            elif len(found.trajectories) == len(rest):
                last = found
            else:
                rounds.append(found)
                rest = rest[len(found.trajectories) :]
        for_all = last is not None and len(np.unique(last.ranks)) == ranks
        if version == present[-1] and not ends:
            waiting = rest
        elif last is not None and for_all and (ends or leftovers == "flush"):
            rounds.append(last)
        else:
            dropped += len(rest)
    return Queue(tuple(rounds), waiting, dropped, unusable)


def rows_of(offered: Offered, trajectories: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of these trajectories, one trajectory after the other."""
    rank = np.full(len(offered.version), -1)
    rank[trajectories] = np.arange(len(trajectories))
    rows = np.flatnonzero(rank[offered.trajectory] >= 0)
    return rows[np.argsort(rank[offered.trajectory[rows]], kind="stable")]


def _round(
    offered: Offered, trajectories: NDArray[np.int64], length: int, ranks: int
) -> Round | None:
    """As many of the first ones as fit; None: not even the first."""
    # Each takes a token at least, so no more of them could fit.
    rows = rows_of(offered, trajectories[: ranks * length])
    tokens = np.cumsum(offered.lengths[rows])
    # Of the rows that are beyond the space of all packs only the first one tells anything.
    rows = rows[: np.searchsorted(tokens, ranks * length, "right") + 1]
    lengths = offered.lengths[rows]
    of_rows = np.cumsum(np.diff(offered.trajectory[rows], prepend=-1) != 0) - 1
    found = _built(np.stack((lengths, of_rows)).tobytes(), length, ranks)
    if not found.trajectories:
        return None
    return Round(
        int(offered.version[trajectories[0]]),
        trajectories[: found.trajectories],
        rows[: len(found.ranks)],
        found.ranks,
        found.starts,
    )


@lru_cache(_BUILT_KEPT)
def _built(rows: bytes, length: int, ranks: int) -> Built:
    """The round of the first rows.

    Args:
        rows: int64 [2, r], the length of each, and its trajectory, from 0.
    """
    lengths, trajectories = np.frombuffer(rows, np.int64).reshape(2, -1)
    while len(lengths):
        plan = plan_packs(lengths, length, ranks=ranks, packs_per_rank=1)
        if not len(plan.left_over):
            return Built(int(trajectories[-1]) + 1, plan.rank, plan.start)
        # A trajectory stays whole, so the one whose row did not fit waits with all its rows.
        fitting = int(np.searchsorted(trajectories, trajectories[plan.left_over[0]]))
        lengths, trajectories = lengths[:fitting], trajectories[:fitting]
    return Built(0, np.empty(0, np.int32), np.empty(0, np.int32))
