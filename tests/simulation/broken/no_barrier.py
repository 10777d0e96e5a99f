"""An owner that claims without reading up to its own claim."""

from __future__ import annotations

from rollstream.schemas.events import Claimed, Event
from simulation.broken.hiding import HidingBroker, OwnClaim


class UpToTheEndBefore(HidingBroker):
    """Shows what was there when the claim was appended; hides what came before it landed."""

    def hides(self, claim: OwnClaim, offset: int, event: Event) -> bool:
        between = claim.pending and offset >= claim.end_before
        return between and not isinstance(event, Claimed)
