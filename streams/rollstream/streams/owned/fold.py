"""The interface of a fold over an owned log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rollstream.schemas.events import Event


class FoldCheckpoint(NamedTuple):
    """What ``Adopted`` records of a fold.

    Attributes:
        fold_from: offset of a claim, among those that ``checkpoint`` was given, from which a new
            fold reaches the same state.
        watermark: the low watermark; -1 where the log has none.
        counts: totals by name.
    """

    fold_from: int
    watermark: int
    counts: Mapping[str, int]


class LogFold(Protocol):
    """State as a fold over the events of one partition that count. Pure."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Applies the next event that counts, claims and adoptions included, by rising offset."""

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """Chooses among ``claims`` (offsets, rising) the one that a later fold may start from."""
