"""Sends what was gathered as records, and learns what became of each; on one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.hooks import Hooks
from rollstream.producers.engine.outbox import Address, Outgoing
from rollstream.producers.engine.topics import Topics
from rollstream.producers.errors import RolloutTooLarge
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
    RecordTooLarge,
)

Settle = Callable[[Sequence[Outgoing], Delivery | None, RollstreamError | None], None]


@dataclass(eq=False)
class Sender:
    """Sends records, and settles each entry once: in the log, or why not.

    Args:
        lock: held while ``gatherer`` is used, and never while a record is encoded,
            sent or settled.
        settle: called for the entries of one record together.
        broker: its name, for messages.

    Attributes:
        gatherer: what is gathered or on its way.
        full_cause: what the writer said when it had no room the last time.
    """

    _lock: threading.Lock
    _writer: Writer
    gatherer: Gatherer
    _topics: Topics
    _hooks: Hooks
    _settle: Settle
    _broker: str
    full_cause: str = ""

    def send(self) -> bool:
        """Sends what may be sent now; whether there was anything. What was gathered for topics that
        have grown is settled."""
        with self._lock:
            grown, self._topics.grown = self._topics.grown, []
            dropped = [(topic, self.gatherer.drop(topic)) for topic in grown]
            ready = self.gatherer.take_ready()
        for topic, outgoing in dropped:
            self._settle(outgoing, None, self._topics.wrong(topic))
        sent = [self._send(address) for address in ready]
        return any(sent)

    def abandon(self) -> None:
        """Settles everything: what is on its way is in doubt, what is gathered was not sent."""
        self._writer.abandon()
        with self._lock:
            dropped = self.gatherer.drop()
        self._settle(dropped, None, BrokerUnavailable("it was never sent: the broker took no more"))

    def full(self, waited: str) -> BufferFull:
        """There was no room for so long."""
        cause = f" ({self.full_cause})" if self.full_cause else ""
        return BufferFull(
            f"{waited}, with {self.gatherer.entries} rollouts and events on their way to "
            f"{self._broker}{cause}; check that the broker runs and can be reached, or publish "
            "more slowly; nothing was queued"
        )

    def _send(self, address: Address) -> bool:
        topic, partition = address
        sent = False
        while True:
            with self._lock:
                record = self.gatherer.take(address)
            if not record:
                return sent
            on_delivery = partial(self._answer, record)
            try:
                value, headers, key = self._hooks._encode(record, self._topics.partitions[topic])
                self._writer.append(
                    topic,
                    value,
                    key=key,
                    partition=partition,
                    headers=headers,
                    on_delivery=on_delivery,
                )
            except BufferFull as full:
                with self._lock:
                    self.full_cause = str(full)
                    self.gatherer.put_back(record)
                return sent
            except BrokerError as error:
                self._answer(record, Delivery(topic, partition, -1, error, value=value))
            except BaseException as error:  # Also what a signal raises on a caller's thread.
                given_up = [*record]
                record.clear()  # The writer may have it, and report it later.
                doubt = DeliveryUnknown(f"{error!r} was raised while it was sent")
                self._answer(given_up, Delivery(topic, partition, -1, doubt))
                raise
            else:
                for one in record:
                    one.entry = None  # The writer has it: payloads are held there alone.
            sent = True

    def _answer(self, record: Sequence[Outgoing], delivery: Delivery) -> None:
        """Settles a record, or makes it ready to be sent in parts; one of no entries was given
        up."""
        if not record:
            return
        error: RollstreamError | None = delivery.error
        if isinstance(error, RecordTooLarge):
            if len(record) > 1:
                refused = decode_record(delivery.value)
                with self._lock:
                    for index, one in enumerate(record):
                        one.entry = refused.entry(index)
                    self.gatherer.put_back(record, too_large=True)
                return
            about = record[0].named
            what = f"rollout {about}" if about else f"an event of group {record[0].group_uid}"
            error = RolloutTooLarge(what, len(delivery.value), None, str(error))
        with self._lock:
            self.gatherer.answered(record)
        self._settle(record, delivery, error)
