"""An owner that appends again when an outcome is unknown, instead of claiming again."""

from __future__ import annotations

from typing import Any

from harness.faults import FaultyBroker, FaultyWriter
from rollstream.streams.broker import Delivery, OnDelivery
from rollstream.streams.errors import DeliveryUnknown


class AppendingTwice(FaultyBroker):
    """What may or may not be written is taken for not written."""

    def writer(self, **settings: Any) -> FaultyWriter:
        return _Writer(self, self.inner.writer(**settings))


class _Writer(FaultyWriter):
    abandoned = False

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        def report(delivery: Delivery) -> None:
            if isinstance(delivery.error, DeliveryUnknown) and not self.abandoned:
                append(topic, value, key=key, partition=partition, on_delivery=on_delivery)
            elif on_delivery is not None:
                on_delivery(delivery)

        append = super().append
        append(topic, value, key=key, partition=partition, on_delivery=report)

    def abandon(self) -> None:
        self.abandoned = True
        super().abandon()
