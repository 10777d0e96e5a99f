"""An owner whose successors know nothing of some kind of decision."""

from __future__ import annotations

from rollstream.schemas.events import Checkpointed, Dropped, Event, Replaced, Resumed
from simulation.broken.hiding import HidingBroker, OwnClaim


class Forgetting(HidingBroker):
    """Hides every event of one kind that another claim wrote."""

    kind: type[Event]

    def hides(self, claim: OwnClaim, offset: int, event: Event) -> bool:
        return isinstance(event, self.kind) and getattr(event, "nonce", "") != claim.nonce


class ForgettingDrops(Forgetting):
    kind = Dropped


class ForgettingReplacements(Forgetting):
    kind = Replaced


class ForgettingCheckpoints(Forgetting):
    kind = Checkpointed


class ForgettingRewinds(Forgetting):
    kind = Resumed
