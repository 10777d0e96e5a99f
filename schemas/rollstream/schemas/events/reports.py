"""What the owners of seal logs report of now; it is kept for a day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events.groups import Continuation, ProducerInFlight
from rollstream.schemas.events.owned import OwnedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerColumns:
    """Columns over producers, each of which is named once.

    Raises:
        UnreadableEvent: the columns differ in length, or name a producer twice.
    """

    Row = ProducerInFlight

    producer_ids: tuple[str, ...]
    begun: NDArray[np.int64]
    open: NDArray[np.int32]
    waiting: NDArray[np.int32]
    last_ts: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(self), *map(len, self._numbers())}
        if len(lengths) > 1:
            finding = f"columns over producers have the lengths {sorted(lengths)}"
            raise UnreadableEvent("inconsistent", finding)
        if len(set(self.producer_ids)) < len(self.producer_ids):
            raise UnreadableEvent("inconsistent", "a report names a producer twice")

    @classmethod
    def of(cls, producers: Iterable[ProducerInFlight]) -> ProducerColumns:
        """Returns the columns of these producers. The last row of a producer holds."""
        rows = {row.producer_id: row for row in producers}.values()
        numbers = np.array([row[1:] for row in rows], np.int64).reshape(-1, 4).T
        return cls(
            producer_ids=tuple(row.producer_id for row in rows),
            begun=numbers[0],
            open=numbers[1].astype(np.int32),
            waiting=numbers[2].astype(np.int32),
            last_ts=numbers[3],
        )

    def __len__(self) -> int:
        return len(self.producer_ids)

    def __iter__(self) -> Iterator[ProducerInFlight]:
        numbers = (column.tolist() for column in self._numbers())
        return map(ProducerInFlight, self.producer_ids, *numbers)

    def _numbers(self) -> tuple[NDArray[np.integer], ...]:
        return self.begun, self.open, self.waiting, self.last_ts


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport(OwnedEvent):
    """What holds of one partition, once its seal log was folded up to ``seal_offset``. A producer
    keeps its figures until a report names it again; where one is ``complete``, those that it does
    not name have no open groups here."""

    seal_offset: int
    now_ts: int
    complete: bool
    producers: ProducerColumns
    waiting: int
    continuations: tuple[Continuation, ...]
