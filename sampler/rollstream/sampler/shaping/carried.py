"""What a step takes over from the step before it: groups some of whose trajectories are still to be
trained on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.beyond_float32 import groups_of


class CarriedGroup(NamedTuple):
    """A group of the step before, served or carried there.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """How a trainer shapes the batch of a step.

    Attributes:
        settings: of what shapes (a maker, ready packs), with the version of its algorithm, as
            canonical JSON. It is recorded with the step, and who asks again must have the same.
        num_groups: new groups at most.
        min_groups: new groups at least: fewer are waited for. 0: nothing is.
        carried: from the step before, which was shaped too; None: as it was recorded, of a step
            that was served. Each group is named once; the batch has them in this order.
        lost: groups that would be carried, had their files not been lost, each with why; for the
            record.
    """

    settings: str
    num_groups: int
    min_groups: int
    carried: tuple[CarriedGroup, ...] | None
    lost: Mapping[str, str] = field(default_factory=dict)
