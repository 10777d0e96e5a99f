"""What every owned log has: claims, checkpoints, and marks of the claim on each event.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A new owner takes the log over; the offset of this event is its epoch.

    Attributes:
        owner: its name, for people.
    """

    owner: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedEvent:
    """What an owner appends; it counts where its claim is the newest one before it in the log.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
    """

    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(OwnedEvent):
    """The owner has folded the log up to its claim; the next one need not begin at the start.

    Attributes:
        fold_from: offset of a claim; a fold that begins there misses nothing that matters.
        watermark: sealers: low watermark of the source partition; else -1.
        counts: totals up to the claim, by name.
    """

    fold_from: int
    watermark: int
    counts: Mapping[str, int]
