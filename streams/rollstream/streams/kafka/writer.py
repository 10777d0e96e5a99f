"""Appends to Kafka."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from rollstream.streams.broker import Delivery, Headers, OnDelivery
from rollstream.streams.errors import BufferFull, RecordTooLarge
from rollstream.streams.kafka.answers import as_delivery_error, as_request_error, request
from rollstream.streams.kafka.properties import QUEUED_KIB_MAX, QUEUED_RECORDS_MAX


class KafkaWriter:
    """A ``Writer``. The client is made at the first append.

    Args:
        report_offsets: False where the client has ``delivery.report.only.error``.
        reached: told whenever a broker answered.
    """

    def __init__(
        self, make: Callable[[], Producer], *, report_offsets: bool, reached: Callable[[], None]
    ) -> None:
        self._make = make
        self._reached = reached
        self._report_offsets = report_offsets
        self._delivered: deque[Callable[[], None]] = deque()  # Reports that a poll has to make.
        self._producer: Producer | None = None
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
        report: _Report | None = None
        if on_delivery is not None:
            report = _Report(topic, number, on_delivery, self._reached, self._delivered)
        try:
            given: Any = [*headers] or None
            self._client().produce(topic, value, key, number, report, headers=given)
        except BufferError as error:
            raise BufferFull(
                f"{topic}: {QUEUED_RECORDS_MAX} records or {QUEUED_KIB_MAX} KiB are queued; "
                "poll makes room"
            ) from error
        except KafkaException as error:
            raise as_request_error(error.args[0], f"append to {topic}") from error
        if report is not None:
            report.end_is_success = not self._report_offsets

    def poll(self, timeout_s: float = 0.0) -> None:
        if self._producer is not None:
            self._producer.poll(timeout_s)
            self._report_delivered()

    def flush(self, timeout_s: float) -> int:
        left = 0 if self._producer is None else self._producer.flush(timeout_s)
        self._report_delivered()
        return left

    def partitions(self, topic: str, timeout_s: float) -> int:
        with request(topic, timeout_s):
            found = self._client().list_topics(topic, timeout_s).topics[topic]
        self._reached()
        if found.error is not None:
            raise as_request_error(found.error, topic)
        return len(found.partitions)

    def abandon(self) -> None:
        producer, self._producer, self._abandoned = self._producer, None, True
        if producer is None:
            return
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        # What was purged is reported at once; nothing is waited for from the broker.
        while len(producer):
            producer.poll(0.01)
        self._report_delivered()

    def _report_delivered(self) -> None:
        if self._delivered:
            self._reached()
        while self._delivered:
            self._delivered.popleft()()

    def _client(self) -> Producer:
        if self._producer is None:
            assert not self._abandoned, "an abandoned writer is not used again"
            self._producer = self._make()
        return self._producer


class _Report:
    """The client's callback of one record.

    confluent-kafka copies the record into each report that it makes: 15 % of a producer's processor
    time with rollouts of 402 KB. With ``delivery.report.only.error`` it makes none of a success: it
    lets go of the callback, inside a poll, and that is the report.

    Attributes:
        end_is_success: whether it is to be let go of only then; not before the record is queued.
    """

    __slots__ = (
        "_delivered",
        "_on_delivery",
        "_partition",
        "_reached",
        "_topic",
        "end_is_success",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        on_delivery: OnDelivery,
        reached: Callable[[], None],
        delivered: deque[Callable[[], None]],
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._on_delivery = on_delivery
        self._reached = reached
        self._delivered = delivered
        self.end_is_success = False

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.end_is_success = False
        topic, partition = self._topic, message.partition()
        if error is None:
            self._reached()
            stamp_us = message.timestamp()[1] * 1000
            self._on_delivery(Delivery(topic, partition, message.offset(), None, stamp_us))
        else:
            failure = as_delivery_error(error, f"{topic}[{partition}]")
            value = message.value() if isinstance(failure, RecordTooLarge) else b""
            self._on_delivery(Delivery(topic, partition, -1, failure, value=value))

    def __del__(self) -> None:
        if self.end_is_success:  # What a callback raises here would be lost: ``poll`` runs it.
            delivery = Delivery(self._topic, self._partition, -1, None)
            self._delivered.append(partial(self._on_delivery, delivery))
