"""What an owned log folds into: the interface. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rollstream.schemas.events import Event


class FoldCheckpoint(NamedTuple):
    """What a fold tells ``Adopted``.

    Attributes:
        fold_from: offset of a claim, among those that ``checkpoint`` was given, before which
            nothing matters any more.
        watermark: the low watermark; -1 where the log has none.
        counts: totals by name.
    """

    fold_from: int
    watermark: int
    counts: Mapping[str, int]


class LogFold(Protocol):
    """State as a fold over the events of one partition that count. Pure."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """The next event that counts (claims and adoptions among them), in the order of offsets."""

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """Which of ``claims`` (offsets, rising, the newest last) a later fold may start from."""

    def digest(self) -> bytes:
        """Equal for equal states."""
