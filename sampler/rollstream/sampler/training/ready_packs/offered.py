"""The trajectories that a step could train on, in the order of the queue. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.carried import CarriedGroup
from rollstream.sampler.training.examples.policy_order import policy_ages, telling_epochs
from rollstream.schemas.order import UNKNOWN_STEP

NO_VERSION = -1


class Offered(NamedTuple):
    """n rows (segments) of m trajectories of a step's batch.

    Attributes:
        lengths: int64 [n], tokens of each row; row ``i`` is that of the batch.
        trajectory: int32 [n], of each row.
        epochs, steps: int64 [k], policy epoch and weight step of each of k versions of the weights,
            the oldest first. What is of one epoch and step is one version, however workers name it.
        version: int64 [m], the index of the version that sampled all of a trajectory;
            ``NO_VERSION``: its weight step is not known, or rows of it were sampled by different
            ones.
        group: int32 [m], the index of its group in ``group_ids``.
        wanted: bool [m]; False: an earlier step trained on it, or dropped it.
        queue: int64 [k], the wanted trajectories, those that came first first.
        group_ids: in the order of the queue: those that were carried, then the new ones.
        carried_stale: as the batch has it.
    """

    lengths: NDArray[np.int64]
    trajectory: NDArray[np.int32]
    epochs: NDArray[np.int64]
    steps: NDArray[np.int64]
    version: NDArray[np.int64]
    group: NDArray[np.int32]
    wanted: NDArray[np.bool_]
    queue: NDArray[np.int64]
    group_ids: tuple[str, ...]
    carried_stale: int = 0

    @classmethod
    def of(cls, batch: Batch) -> Offered:
        """Those of a batch that has all groups of its step."""
        count, groups = batch.num_trajectories, batch.num_groups
        new = groups - batch.carried_groups
        # The batch has carried groups last, and they came first.
        place = (np.arange(groups, dtype=np.int32) - new) % max(groups, 1)
        group = np.zeros(count, np.int32)
        group[batch.trajectory_index] = place[batch.group_index]
        of_epochs = telling_epochs(batch)
        ages = policy_ages(of_epochs, batch.weight_steps)
        epochs, steps = np.zeros((2, int(ages.max(initial=-1)) + 1), np.int64)
        epochs[ages], steps[ages] = of_epochs, batch.weight_steps
        of_rows = np.where(batch.weight_steps != UNKNOWN_STEP, ages, NO_VERSION)
        low = np.full(count, np.iinfo(np.int64).max)
        high = np.full(count, NO_VERSION)
        np.minimum.at(low, batch.trajectory_index, of_rows)
        np.maximum.at(high, batch.trajectory_index, of_rows)
        wanted = np.ones(count, np.bool_) if batch.used is None else ~batch.used
        ids = [batch.sampled.group_ids[slot] for slot in batch.slots]
        return cls(
            lengths=np.diff(batch.offsets),
            trajectory=batch.trajectory_index,
            epochs=epochs,
            steps=steps,
            version=np.where(low == high, low, NO_VERSION),
            group=group,
            wanted=wanted,
            queue=(order := np.argsort(group, kind="stable"))[wanted[order]],
            group_ids=tuple(ids[new:] + ids[:new]),
            carried_stale=batch.carried_stale,
        )

    def carried(self, waiting: NDArray[np.bool_]) -> tuple[CarriedGroup, ...]:
        """The groups some of whose trajectories are still to be trained on.

        Args:
            waiting: bool [m].
        """
        groups = np.unique(self.group[waiting]).tolist()
        return tuple(
            CarriedGroup(self.group_ids[index], waiting[self.group == index]) for index in groups
        )
