"""What every owned log has: claims, checkpoints, and marks of the claim on each event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A new owner takes the log over; the offset of this event is its epoch."""

    owner: str
    nonce: str
    software: str = ""
    root_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedEvent:
    """What an owner appends; it counts where its claim is the newest one before it in the log."""

    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(OwnedEvent):
    """The owner has folded the log up to its claim; the next one need not begin at the start."""

    fold_from: int
    watermark: int
    counts: Mapping[str, int]
    retired: int = -1
