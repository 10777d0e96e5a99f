"""Trainers that shape their batches: each step carries some of what the one before had."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import numpy as np

from rollstream.folds.state import SamplerState
from rollstream.sampler import Batch, CarriedGroup, CarryLost, Shaping
from rollstream.sampler.errors import UnknownStep
from rollstream.schemas.events import BatchServed
from simulation.sampler.trainers import BATCH_GROUPS, GROUPS_WAIT_S, Trainer, Trainers


class CarryingTrainer(Trainer):
    """What it carries is a function of the recorded batch before, as it is of a maker."""

    def _next_batch(self, step: int) -> Batch:
        try:
            batch = self._shaped(step, None if step else ())
        except UnknownStep:
            before = self.client.recorded_batch(step - 1) if step else None
            if before is None:
                raise
            batch = self._after(before)
        self._world.record_given(self.client, batch)
        self._world.reached["carried"] += batch.carried_groups
        self._world.reached["fewer groups"] += batch.num_groups - batch.carried_groups < self._most
        return batch

    def _after(self, before: Batch) -> Batch:
        try:
            return self._shaped(before.step + 1, left_by(before))
        except CarryLost:
            self._world.reached["carry lost"] += 1
            return self._shaped(before.step + 1, ())

    def _shaped(self, step: int, carried: tuple[CarriedGroup, ...] | None) -> Batch:
        shaping = Shaping(
            settings="{}", num_groups=self._most, min_groups=BATCH_GROUPS, carried=carried
        )
        return self.client.next_shaped_batch(step, shaping, timeout_s=GROUPS_WAIT_S)

    @property
    def _most(self) -> int:
        return BATCH_GROUPS + 1


def left_by(batch: Batch) -> tuple[CarriedGroup, ...]:
    """Some of its groups, and some trajectories of each."""
    rng = np.random.default_rng(int.from_bytes(batch.digest[:8], "big"))
    some = [one for one in batch.sampled.group_ids if rng.random() < 0.6]
    return tuple(CarriedGroup(one, rng.random(2) < 0.5) for one in some)


class Carrying(Trainers):
    """The world of one seed, with one use of a group, or several."""

    def __init__(self, seed: int) -> None:
        self._choosing = random.Random(seed)
        super().__init__(seed)

    def check(self) -> None:
        super().check()
        events = [confirmed.event for confirmed in self.decisions()]
        again = [e.carried for e in events if isinstance(e, BatchServed)]
        self.reached["carried groups"] += sum(map(len, again))

    def _trainer(self) -> Trainer:
        return CarryingTrainer(self)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "max_samples": self._choosing.choice((1, 2, -1))}


class NotHeld(Carrying):
    """A fold that holds nothing for the step that may carry it."""

    def run(self) -> None:
        with mock.patch.object(SamplerState, "_pin"):
            super().run()
