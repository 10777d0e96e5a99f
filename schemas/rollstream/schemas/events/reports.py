"""What the owners of seal logs report of now; it is kept for a day."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.schemas.events.groups import Continuation, ProducerInFlight
from rollstream.schemas.events.owned import OwnedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport(OwnedEvent):
    """What holds of one partition, once its seal log was folded up to ``seal_offset``. A producer
    keeps its figures until a report names it again; where one is ``complete``, those that it does
    not name have no open groups here."""

    seal_offset: int
    now_ts: int
    complete: bool
    producers: tuple[ProducerInFlight, ...]
    waiting: int
    continuations: tuple[Continuation, ...]
