"""Asks the owners of seal logs for something, and reads what they answer."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import Requested, RequestKind
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, Delivery, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.adoption import find_starts
from rollstream.streams.owned.follow import ConfirmedEvent, Follower, PutAside
from rollstream.streams.topics.layout import Layout

FOLLOW_SLICE_S = 0.2
RECORDS_MAX = 256


class UnknownEnvironment(RollstreamError, ValueError):
    """The configuration has no such environment."""


class UnknownPartition(RollstreamError, ValueError):
    """The configuration has no such partition."""


def addresses_of(
    config: RollstreamConfig, environments: Sequence[str]
) -> dict[str, list[PartitionAddress]]:
    """The partitions of these environments, none: of all that are configured, by name.

    Raises:
        UnknownEnvironment: the configuration has no such environment.
    """
    layout = Layout.of(config.kafka)
    for name in environments:
        if name not in config.environments:
            known = ", ".join(sorted(config.environments))
            raise UnknownEnvironment(
                f"there is no [environments.{name}] in this configuration, which has {known}"
            )
    return {
        name: layout.addresses({name: config.environments[name].partitions})
        for name in sorted({*environments} or config.environments)
    }


def ask(
    broker: Broker,
    logs: Sequence[TopicPartition],
    kind: RequestKind,
    deadline: Deadline,
    *,
    older_than_s: float = 0.0,
) -> dict[TopicPartition, int]:
    """Appends a request to each log; returns their offsets.

    Raises:
        BrokerUnavailable: not every request was written in time.
    """
    value = codec.encode(
        Requested(
            kind=kind,
            older_than_us=round(older_than_s * 1e6),
            requested_by=f"{getpass.getuser()}@{socket.gethostname()}",
            requested_ts=deadline.clock.now_us(),
        )
    )
    delivered: dict[TopicPartition, int] = {}

    def record(delivery: Delivery) -> None:
        if delivery.error is not None:
            raise delivery.error
        delivered[TopicPartition(delivery.topic, delivery.partition)] = delivery.offset

    writer = broker.writer(linger_ms=0.0)
    try:
        for where in logs:
            writer.append(where.topic, value, partition=where.partition, on_delivery=record)
        if writer.flush(deadline.left_s()):
            raise BrokerUnavailable(
                f"not every request was written within {deadline.timeout_s} s; ask again"
            )
    finally:
        writer.abandon()
    return delivered


def events_until(
    broker: Broker,
    logs: Sequence[TopicPartition],
    answered: Callable[[], bool],
    deadline: Deadline,
    aside: dict[TopicPartition, PutAside],
) -> Iterator[ConfirmedEvent]:
    """Yields the events of the logs that count, from some before the newest claims on, until all
    is ``answered`` or the deadline has passed.

    Args:
        aside: takes the logs that cannot be read on: nobody answers there.
    """
    starts = find_starts(broker, dict.fromkeys(logs), deadline)
    with closing(Follower(broker, starts, aside=aside)) as follower:
        while not (deadline.passed() or answered()):
            deadline.log_waiting(lambda: "the owners of the partitions to answer")
            yield from follower.poll(RECORDS_MAX, deadline.slice_s(FOLLOW_SLICE_S))
