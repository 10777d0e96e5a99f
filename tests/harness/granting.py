"""Stands in for the samplers that grant env workers their shares."""

from __future__ import annotations

from typing import Any

from harness.admission import announce, granted
from harness.brokers import COMPACTED, TIMEOUT_S, until
from harness.producers import ENVIRONMENT, records_of
from rollstream.schemas.ingest.entry import Producer
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import Broker, TopicSpec
from rollstream.streams.topics.layout import Layout


class Granting:
    """Grants what the test says; each time it is newer than before."""

    def __init__(self, broker: Broker, layout: Layout, environment: str = ENVIRONMENT) -> None:
        self._broker, self._layout, self._environment = broker, layout, environment
        self.topic = layout.admission(environment)
        self._number = 0
        broker.admin().create([TopicSpec(self.topic, 1, COMPACTED)], TIMEOUT_S)

    def grant(self, total: int = 0, **overrides: Any) -> None:
        """To each producer that told of itself so far; where it is some, there is one."""
        if total:
            self.producer_id()
        self._number += 1
        totals = {one.producer_id: total for one in self.told()}
        fields = {"number": self._number, **overrides}
        announce(self._broker, self.topic, granted(totals=totals, **fields))

    def told(self) -> list[Producer]:
        """What producers said of themselves, in the order of the log of each partition."""
        records = records_of(self._broker, self._layout, self._environment)
        found = (decode_record(one.value).producer for one in records)
        return [one for one in found if one is not None]

    def producer_id(self) -> str:
        """Of one that told of itself, as soon as one did."""
        until(lambda: bool(self.told()))
        return self.told()[0].producer_id

    def until_told(self, begun: int, waiting: int) -> None:
        """Returns once a producer said so."""
        until(lambda: any(one[1:] == (begun, waiting) for one in self.told()))
