"""An owner that acts on what is durable, without knowing what stands before it."""

from __future__ import annotations

from rollstream.schemas.events import Event
from simulation.broken.hiding import HidingBroker, OwnClaim


class OnlyItsOwn(HidingBroker):
    """Hides what others wrote between the owner's claim and its events."""

    def hides(self, claim: OwnClaim, offset: int, event: Event) -> bool:
        return not claim.pending and getattr(event, "nonce", "") != claim.nonce
