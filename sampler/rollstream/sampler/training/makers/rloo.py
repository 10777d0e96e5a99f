"""``RlooBatchMaker``: all groups, leave-one-out advantages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex

from rollstream.sampler.arguments import at_least
from rollstream.sampler.training.examples.advantages import advantages_of
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch
from rollstream.sampler.training.makers.reservoir import (
    RESERVOIR_FULL,
    RESERVOIR_SIZE,
    newest_policies,
)


class RlooBatchMaker(BatchMaker):
    """Trains on every trajectory once: first those that were carried, then new ones, in batch
    order.

    Advantages are leave-one-out (Ahmadian et al. 2024). An advantage of 0 is trained on, too, since
    it counts in losses that are divided by tokens. The rest beyond ``batch_size`` is kept for later
    steps, at most ``reservoir_size`` trajectories. Beyond that the oldest weights leave first, as
    ``reservoir_full``.

    Args:
        reservoir_size: most trajectories that are kept; 0: none.
    """

    def __init__(self, *, reservoir_size: SupportsIndex = RESERVOIR_SIZE) -> None:
        self._reservoir_size = at_least("reservoir_size", reservoir_size, 0)

    @property
    def settings(self) -> Mapping[str, object]:
        """The maker's name, version and arguments."""
        return {"maker": "rloo", "version": 1, "reservoir_size": self._reservoir_size}

    def create_batch(self, batch_size: int) -> MadeBatch:
        """Returns the batch of the step; see ``BatchMaker.create_batch``."""
        size = at_least("batch_size", batch_size, 0)
        rollouts = self.rollouts
        waiting = [index for index, rollout in enumerate(rollouts) if not rollout.used]
        waiting.sort(key=lambda index: not rollouts[index].carried)
        rest = waiting[size:]
        kept = newest_policies(rollouts, rest, self._reservoir_size)
        return MadeBatch.of(
            rollouts,
            advantages_of([r.reward for r in rollouts], [r.group for r in rollouts], "rloo"),
            trained=waiting[:size],
            kept=kept,
            filtered={RESERVOIR_FULL: len(rest) - len(kept)},
        )
