"""The two events that every owned log has: a claim, and the checkpoint behind it.
Field for field as in the ``.avsc`` of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A new owner asks for the partition; its own offset becomes the epoch.

    Attributes:
        owner: who, for people.
    """

    owner: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The owner has folded everything before its claim: the checkpoint that keeps start-up short.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        fold_from: offset of a claim; a fold that begins there is whole.
        watermark: sealers: low watermark of the source partition; else -1.
        counts: totals up to the claim, by name.
    """

    epoch: int
    nonce: str
    fold_from: int
    watermark: int
    counts: Mapping[str, int]
