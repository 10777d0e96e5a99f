"""An owner that appends again when an outcome is unknown, instead of claiming again."""

from __future__ import annotations

from functools import partial
from typing import Any

from harness.faults import FaultyBroker, FaultyWriter
from rollstream.streams.broker import Delivery, Headers, OnDelivery
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
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        def report(delivery: Delivery) -> None:
            if isinstance(delivery.error, DeliveryUnknown) and not self.abandoned:
                append(on_delivery=on_delivery)
            elif on_delivery is not None:
                on_delivery(delivery)

        append = partial(
            super().append, topic, value, key=key, partition=partition, headers=headers
        )
        append(on_delivery=report)

    def abandon(self) -> None:
        self.abandoned = True
        super().abandon()
