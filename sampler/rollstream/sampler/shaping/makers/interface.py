"""``BatchMaker``: which rollouts are trained on at a step, and with which advantages. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rollout(NamedTuple):
    """What a maker knows of a trajectory: no tokens, so that choosing costs microseconds.

    Attributes:
        trajectory: its index in the batch.
        group: index of its group in the batch.
        environment: of its rollouts, and so ``example_id``.
        weight_step: of its newest segment; -1: not known.
        policy_version: of its newest segment.
        reward: its return: the sum of what its segments earned.
        tokens: of all its segments, prompts included.
        used: whether an earlier step trained on it: its group is here again for others of its
            members. Advantages need it; no batch may have it again.
    """

    trajectory: int
    group: int
    environment: str
    example_id: str
    weight_step: int
    policy_version: str
    reward: float
    tokens: int
    used: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MadeBatch:
    """Which trajectories a step trains on.

    Attributes:
        trajectories: int32 [n], indices in the batch, in the order of training.
        advantages: float32 [n], one each.
        kept: int32 [k], indices of trajectories that a later step may train on: they are carried.
        filtered: reason to the number of trajectories that nobody will train on.
        filtered_groups: int32 [g], indices of groups none of which is trained on or kept.
    """

    trajectories: NDArray[np.int32]
    advantages: NDArray[np.float32]
    kept: NDArray[np.int32]
    filtered: Mapping[str, int] = field(default_factory=dict)
    filtered_groups: NDArray[np.int32]


class BatchMaker(ABC):
    """Chooses from the rollouts of a recorded batch; does no I/O, knows no clock, and draws from
    its seed and the step alone, so that the same rollouts in the same order give the same batch.

    A step goes: ``begin(step)``, ``add_rollout`` for each trajectory of the batch (those carried
    from earlier steps come last), ``create_batch``. Nothing may stay in the maker from one step to
    the next: what it wants to use later it names in ``MadeBatch.kept``, which is recorded, and gets
    it again as rollouts of the next step, after a crash too. ``tests/contract/sampler`` has the
    suite that every maker must pass; ``examples/06_a_batch_maker_of_your_own.py`` is one.
    """

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """What distinguishes its choices, as JSON can hold it: its name, version, and arguments.
        They are recorded with each step."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Forgets the rollouts of the step before."""

    @abstractmethod
    def add_rollout(self, rollout: Rollout) -> None:
        """One more to choose from."""

    @abstractmethod
    def create_batch(self, batch_size: int) -> MadeBatch | None:
        """At most ``batch_size`` trajectories; None: there is nothing to train on, and all that was
        added is filtered or kept with the next step's."""

    @abstractmethod
    def get_batch_metadata(self, batch: MadeBatch) -> Mapping[str, float]:
        """A flat dict for any logger: what was chosen, kept and filtered, and why."""
