"""What a step takes over from the step before it: groups some of whose trajectories are still to be
trained on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollstream.folds.batches.row_outcomes import RowOutcome
from rollstream.sampler.arguments import indices
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.beyond_float32 import groups_of
from rollstream.sampler.errors import InvalidRequest

_OUTCOMES: Mapping[str, RowOutcome] = {
    "trained": RowOutcome.TRAINED,
    "kept": RowOutcome.KEPT,
    "stale": RowOutcome.STALE,
}


class CarriedGroup(NamedTuple):
    """A group that the step before had, and that the next step has again.

    Attributes:
        group_id: as ``batch.sampled`` has it.
        wanted: bool [trajectories of the group, in the batch's order]; True: yet to be trained on.
    """

    group_id: str
    wanted: NDArray[np.bool_]


def left_over(batch: Batch, trajectories: NDArray[np.int32]) -> tuple[CarriedGroup, ...]:
    """What the next step carries, where these trajectories of a whole batch are yet to be trained
    on; in the order of the batch.

    Args:
        trajectories: indices in the batch.
    """
    wanted = np.zeros(batch.num_trajectories, np.bool_)
    wanted[trajectories] = True
    groups = groups_of(batch)
    ids = batch.sampled.group_ids
    return tuple(
        CarriedGroup(ids[batch.slots[group]], wanted[groups == group])
        for group in np.unique(groups[wanted]).tolist()
    )


def outcomes_of(batch: Batch, outcomes: Mapping[str, ArrayLike]) -> tuple[bytes, ...]:
    """What became of the trajectories of a whole shaped batch: by slot a ``RowOutcome`` each, in
    the order of the batch.

    Args:
        outcomes: what became of which trajectories, by their indices in the batch. The others are
            filtered. Those that ``batch.used`` names are stale, or an earlier step had done with
            them.

    Raises:
        InvalidRequest: an index is of no trajectory, or stands there twice; or the outcome is none.
    """
    found = np.full(batch.num_trajectories, RowOutcome.FILTERED, np.int8)
    if batch.used is not None:
        found[batch.used] = RowOutcome.STALE
    named = np.zeros(batch.num_trajectories, np.int64)
    for name, given in outcomes.items():
        if name not in _OUTCOMES:
            raise InvalidRequest(
                f"outcomes names {name!r:.200}; give trajectories that were trained, kept or stale"
            )
        at = indices(f"outcomes[{name!r}]", given, batch.num_trajectories)
        np.add.at(named, at, 1)
        found[at] = _OUTCOMES[name]
    if (named > 1).any():
        raise InvalidRequest(
            f"outcomes names trajectory {int(np.argmax(named > 1))} twice; name each once"
        )
    groups = groups_of(batch)
    ends = np.cumsum(np.bincount(groups, minlength=batch.num_groups))
    parts = np.split(found[np.argsort(groups, kind="stable")], ends)[:-1]
    return tuple([part.tobytes() for part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """How a trainer shapes the batch of a step.

    Attributes:
        settings: of what shapes (a maker, ready packs), with the version of its algorithm, as
            canonical JSON. It is recorded, and repeated calls must have the same.
        num_groups: most new groups.
        min_groups: fewest new groups; the call waits for them. 0: it waits for none.
        carried: groups from the step before, each once; the batch has them in this order. None: as
            recorded, for a step that was served.
        lost: groups that would be carried if their files were not lost, each with the reason.
    """

    settings: str
    num_groups: int
    min_groups: int
    carried: tuple[CarriedGroup, ...] | None
    lost: Mapping[str, str] = field(default_factory=dict)
