"""An owned log that claims without reading up to its own claim."""

from __future__ import annotations

from typing import Any

from rollstream.schemas.events import Claimed, Event
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from simulation.broken.hiding import HidingBroker


class UpToTheEndBefore(HidingBroker):
    """Shows what was there when the claim was appended; hides what came before it landed."""

    def hides(self, offset: int, event: Event) -> bool:
        between = self.claiming and offset >= self.end_before_claim
        return between and not isinstance(event, Claimed)


def without_barrier(broker: Broker, where: TopicPartition, **settings: Any) -> OwnedLog[SealFold]:
    return OwnedLog(UpToTheEndBefore(broker), where, **settings)
