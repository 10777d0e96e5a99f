"""A harness that breaks nothing: what is found with it is the owner's."""

from __future__ import annotations

from rollstream.schemas.events import Event
from simulation.broken.hiding import HidingBroker, OwnClaim
from simulation.streams.owners import Owners, log_over


def test_broker_that_hides_nothing_breaks_nothing() -> None:
    class HidingNothing(HidingBroker):
        def hides(self, claim: OwnClaim, offset: int, event: Event) -> bool:
            return False

    for seed in range(10):
        Owners(seed, log_over(HidingNothing)).run()
