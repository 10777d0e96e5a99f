"""An owned log that acts on what is durable, without knowing what stands before it."""

from __future__ import annotations

from typing import Any

from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from simulation.broken.hiding import HidingBroker


class OnlyItsOwn(HidingBroker):
    """Hides what others wrote between the owner's claim and its events."""

    def hides(self, offset: int, event: Event) -> bool:
        return not self.claiming and getattr(event, "nonce", "") != self.nonce


def durable_for_confirmed(
    broker: Broker, where: TopicPartition, **settings: Any
) -> OwnedLog[SealFold]:
    return OwnedLog(OnlyItsOwn(broker), where, **settings)
