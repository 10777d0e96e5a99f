"""Sealers that keep so many groups, while a trainer takes steps: owners retire what is over a cap,
and are killed, evicted and fenced meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

from harness.retention import NAME
from rollstream.sampler import NotEnoughGroups
from rollstream.schemas.events import Flushed, SealedGroup
from simulation.consumers.sealers import Sealers
from simulation.world import Violation

CAPS = ("keep_groups", "keep_groups_per_policy")
GROUPS_A_STEP = 2


class Capped(Sealers):
    """The world of one seed. Its cap limits all groups, or those of each policy version."""

    samplers = (NAME,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._dice = random.Random(f"caps {seed}")
        self._cap, self._kept = self._dice.choice(CAPS), self._dice.randint(0, 12)
        world = self.world
        endless = world.sampler_section().model_copy(update={"max_policy_lag": -1})
        world.config = world.config.model_copy(update={"samplers": {NAME: endless}})
        self._sampler = world.sampler()
        self._opened: list[str] = []
        self._final: set[str] = set()

    def run(self) -> None:
        """As ``Sealers``; what was retired was over the cap, and no longer needed by the trainer.

        Raises:
            Violation: with what did not hold.
        """
        super().run()
        self._sampler.close()
        if problems := [*self._needed(), *self._within()]:
            raise Violation("; ".join(problems[:5]))

    def _act(self) -> None:
        super()._act()
        if self._dice.random() < 0.5:
            self._train()
        if self._dice.random() < 0.3:
            self.reached["caps"] += 1
            limits: dict[str, Any] = {self._cap: self._kept}
            self.world.ask(None, **limits)

    def _train(self) -> None:
        """A step; now and then all steps up to it are final."""
        step = self._sampler.progress().next_step
        with suppress(NotEnoughGroups):
            batch = self._sampler.next_batch(step, GROUPS_A_STEP, timeout_s=0.0)
            self._opened += batch.sampled.group_ids
            if self._dice.random() < 0.6:
                self._sampler.checkpointed(step)
                self._final |= {*self._opened}
                self._opened.clear()

    def _groups(self) -> list[tuple[int, str, SealedGroup]]:
        """Partition, file and group of all that were sealed."""
        return [
            (one.where.partition, one.event.files[group.file].path, group)
            for one in self.world.confirmed_events()
            if isinstance(one.event, Flushed)
            for group in one.event.groups
        ]

    def _needed(self) -> list[str]:
        retired = {*self.world.retired_files()}
        self.reached["retired files"] += len(retired)
        return [
            f"{path} was retired, and the trainer is not done with group {group.group_id}"
            for _, path, group in self._groups()
            if path in retired and group.split == "train" and group.group_id not in self._final
        ]

    def _within(self) -> list[str]:
        """A file goes whole, so its groups bound by how much less than the cap may be left."""
        retired, sealed, left = {*self.world.retired_files()}, Counter[object](), Counter[object]()
        of_file = Counter(path for _, path, _ in self._groups())
        for partition, path, group in self._groups():
            key = partition, group.policy_version if self._cap == CAPS[1] else ""
            sealed[key] += 1
            left[key] += path not in retired
        share = -(-self._kept // self.world.environment.partitions)
        slack = max(of_file.values(), default=1) - 1
        return [
            f"{left[key]} of {count} groups are left of {key}, where {share} are kept"
            for key, count in sealed.items()
            if left[key] + slack < min(share, count)
        ]
