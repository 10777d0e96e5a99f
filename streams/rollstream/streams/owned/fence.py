"""Which events of an owned partition count. Every reader uses this same fold."""

from __future__ import annotations

from typing import NamedTuple

from rollstream.schemas.events import Claimed, Event


class CurrentClaim(NamedTuple):
    """The claim in effect: its offset is the epoch."""

    epoch: int
    nonce: str
    owner: str


class Fence:
    """An event counts if and only if its epoch and nonce equal those of the newest claim before it.

    Claims always count. A zombie may write for as long as it likes: nothing of it counts. A fence
    must be fed from a claim on, since only a claim tells which epoch is in effect; events before
    the first claim do not count.
    """

    def __init__(self) -> None:
        self.current_claim: CurrentClaim | None = None

    def admits(self, offset: int, event: Event) -> bool:
        """Feeds the next event of the partition; whether it counts."""
        if isinstance(event, Claimed):
            self.current_claim = CurrentClaim(offset, event.nonce, event.owner)
            return True
        mark = (getattr(event, "epoch", None), getattr(event, "nonce", None))
        return self.current_claim is not None and mark == (
            self.current_claim.epoch,
            self.current_claim.nonce,
        )
