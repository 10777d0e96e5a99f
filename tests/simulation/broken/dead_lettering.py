"""Older sealers that go past records of newer producers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simulation.consumers.sealers import finish
from simulation.consumers.upgrades import Upgrades


class DeadLettering(Upgrades):
    """Older sealers settle records of newer producers as dead letters."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.sealer = partial(  # type: ignore[method-assign]
            self.world.sealer, dead_letter_newer=True
        )

    def problems_of_older(self) -> Iterator[str]:
        """Only what tells a torn group: whoever folds the logs finds nothing else."""
        finish(self.world)
        yield from self.torn()
