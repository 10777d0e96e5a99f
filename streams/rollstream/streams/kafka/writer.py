"""Appends to Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from rollstream.streams.broker import Delivery, Headers, OnDelivery
from rollstream.streams.errors import BufferFull, RecordTooLarge
from rollstream.streams.kafka.answers import as_delivery_error, as_request_error, request
from rollstream.streams.kafka.faults import OutageLog
from rollstream.streams.kafka.properties import QUEUED_KIB_MAX, QUEUED_RECORDS_MAX


class KafkaWriter:
    """A ``Writer``. The client is made at the first append. If it fails for good, the next ``poll``
    or ``flush`` throws it away: what is on its way is in doubt, and what comes then has a new one.
    Several threads may use it.

    confluent-kafka copies the record into each report that it makes, which costs a producer about
    0.1 ms a MB: no success is known without a report.

    Args:
        outages: told whenever a broker answered.
    """

    def __init__(self, make: Callable[[], Producer], outages: OutageLog) -> None:
        self._make = make
        self._outages = outages
        self._lock = threading.Lock()  # Held while a client is made, or taken away.
        self._producer: Producer | None = None
        self._failed: Producer | None = None  # Sends no more.
        self._abandoned = False

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
        number = -1 if partition is None else partition  # -1: the key decides.
        report = None if on_delivery is None else partial(self._report, topic, on_delivery)
        producer: Producer | None = None
        try:
            given: Any = [*headers] or None
            producer = self._client()
            producer.produce(topic, value, key, number, report, headers=given)
        except BufferError as error:
            raise BufferFull(
                f"{topic}: {QUEUED_RECORDS_MAX} records or {QUEUED_KIB_MAX} KiB are queued; "
                "poll makes room"
            ) from error
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FATAL:
                self._failed = producer
            raise as_request_error(error.args[0], f"append to {topic}") from error

    def poll(self, timeout_s: float = 0.0) -> None:
        self._drop(self._failed)
        producer = self._producer
        if producer is not None:
            producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        self._drop(self._failed)
        producer = self._producer
        return 0 if producer is None else producer.flush(timeout_s)

    def partitions(self, topic: str, timeout_s: float) -> int:
        with request(topic, timeout_s):
            found = self._client().list_topics(topic, timeout_s).topics[topic]
        self._outages.reached()
        if found.error is not None:
            raise as_request_error(found.error, topic)
        return len(found.partitions)

    def abandon(self) -> None:
        self._abandoned = True
        self._drop(self._producer)

    def _drop(self, producer: Producer | None) -> None:
        """Throws it away, unless another thread has."""
        if producer is None:
            return
        with self._lock:
            if producer is not self._producer:
                return
            self._producer = self._failed = None
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        # What was purged is reported at once; nothing is waited for from the broker.
        while len(producer):
            producer.poll(0.01)

    def _report(
        self, topic: str, on_delivery: OnDelivery, error: KafkaError | None, message: Any
    ) -> None:
        """The client's callback of one record."""
        partition = message.partition()
        if error is None:
            self._outages.reached()
            stamp_us = message.timestamp()[1] * 1000
            on_delivery(Delivery(topic, partition, message.offset(), None, stamp_us))
        else:
            failure = as_delivery_error(error, f"{topic}[{partition}]")
            value = message.value() if isinstance(failure, RecordTooLarge) else b""
            on_delivery(Delivery(topic, partition, -1, failure, value=value))

    def _client(self) -> Producer:
        producer = self._producer
        if producer is not None:
            return producer
        with self._lock:
            if self._producer is None:
                assert not self._abandoned, "an abandoned writer is not used again"
                self._producer = self._make()
            return self._producer
