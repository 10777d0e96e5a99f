"""Appends records, and waits until it is known what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, Delivery, Headers, TopicPartition, Writer
from rollstream.streams.errors import BrokerError, BrokerUnavailable, DeliveryUnknown


class Outgoing(NamedTuple):
    """A record that is to be appended; without ``value`` it deletes what stands under its key."""

    where: TopicPartition
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


@contextmanager
def writing(broker: Broker) -> Iterator[Writer]:
    """A writer that sends each record at once, as somebody waits for it."""
    writer = broker.writer(linger_ms=0.0)
    try:
        yield writer
    finally:
        writer.abandon()


def deliver(
    writer: Writer, records: Sequence[Outgoing], deadline: Deadline
) -> list[int | BrokerError]:
    """Returns of each record its offset, or why it is not known to be durable. The writer is
    abandoned if the deadline passes.
    """
    found: dict[int, int | BrokerError] = {}

    def report(index: int, delivery: Delivery) -> None:
        found[index] = delivery.error or delivery.offset

    for index, (where, value, key, headers) in enumerate(records):
        try:
            writer.append(
                where.topic,
                value,
                key=key,
                partition=where.partition,
                headers=headers,
                on_delivery=partial(report, index),
            )
        except BrokerError as error:
            found[index] = error
    if writer.flush(deadline.left_s()):
        writer.abandon()  # It reports what is left as in doubt.
    return [found[index] for index in range(len(records))]


def deliver_all(writer: Writer, records: Sequence[Outgoing], deadline: Deadline) -> list[int]:
    """Returns the offset of each record, once all are durable.

    Raises:
        BrokerUnavailable: a record may not be written. Else the first error of a record.
    """
    offsets: list[int] = []
    for record, found in zip(records, deliver(writer, records, deadline), strict=True):
        if isinstance(found, DeliveryUnknown):
            raise BrokerUnavailable(
                f"{record.where}: no report within {deadline.timeout_s} s; run it again"
            ) from found
        if isinstance(found, BrokerError):
            raise found
        offsets.append(found)
    return offsets
