"""Decides which events of an owned partition count; every reader uses it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rollstream.schemas.events import Claimed, Event, OwnedEvent, Requested


class CurrentClaim(NamedTuple):
    """The claim in effect: its offset is the epoch."""

    epoch: int
    nonce: str


class Fence:
    """An event counts if and only if its epoch and nonce equal those of the newest claim before it.

    Claims always count, and so do requests, which anybody may make. A fenced owner may go on
    writing; none of it counts. A fence must be fed from a claim on, since only a claim names the
    epoch in effect; an owner's events before the first claim do not count.

    Attributes:
        current_claim: the claim in effect; None before the first.
        owner: the event that made it.
    """

    def __init__(self) -> None:
        self.current_claim: CurrentClaim | None = None
        self.owner: Claimed | None = None

    def admits(self, offset: int, event: Event) -> bool:
        """Takes in the next event of the partition; returns whether it counts."""
        if isinstance(event, Claimed):
            self.current_claim = CurrentClaim(offset, event.nonce)
            self.owner = event
            return True
        if isinstance(event, Requested):
            return True
        return isinstance(event, OwnedEvent) and (event.epoch, event.nonce) == self.current_claim
