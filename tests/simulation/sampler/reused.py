"""Trainers whose groups are served several times, without rollouts that are too old."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from harness.groups import GroupSpec
from rollstream.schemas.events import BatchServed, Replaced
from simulation.sampler.trainers import Trainers


class Reused(Trainers):
    """The world of one seed: two uses of a group or any number, limits of rollouts' weights, and
    members of several policies."""

    def __init__(self, seed: int) -> None:
        self._choosing = random.Random(seed)
        super().__init__(seed)

    def check(self) -> None:
        super().check()
        events = [confirmed.event for confirmed in self.decisions()]
        chosen = [
            (group.group_id, group.row_mask is not None)
            for event in events
            if isinstance(event, BatchServed | Replaced)
            for group in event.groups
        ]
        self.reached["masks"] += sum(masked for _, masked in chosen)
        self.reached["uses again"] += len(chosen) - len({group_id for group_id, _ in chosen})

    def _group(self, epoch: int, step: int) -> GroupSpec:
        group = super()._group(epoch, step)
        steps = tuple(max(0, step - self._choosing.choice((0, 0, 1, 4))) for _ in range(3))
        return replace(group, weight_steps=steps, rewards=(*group.rewards, 0.5))

    def _settings(self) -> dict[str, Any]:
        settings = {
            **super()._settings(),
            "max_samples": self._choosing.choice((2, 3, -1)),
            "max_rollout_step_delay": self._choosing.choice((-1, 1, 3)),
            "capacity": self._choosing.choice((None, 12)),
        }
        if settings["max_policy_lag"] == 2:  # Where it is below the other, that is refused.
            settings["max_policy_lag"] = max(2, settings["max_rollout_step_delay"] + 1)
        return settings
