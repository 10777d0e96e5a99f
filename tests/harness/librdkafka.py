"""What librdkafka answers, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from rollstream.streams.kafka.faults import OutageLog


class Outages(OutageLog):
    """The way to brokers that are away for this reason; empty: they are not."""

    def __init__(self, why: str = "") -> None:
        super().__init__("kafka:9092", lambda: AdminClient({}))
        self._why = why

    def why_away(self, timeout_s: float) -> str:
        return self._why


def metadata_of(
    topics: Mapping[str, int | None],
    *,
    leaders: Mapping[str, int] = {},
    brokers: int = 1,
    copies: int = 1,
) -> Any:
    """Of topics of one partition, or with an error of this code; led by broker 0, or by another
    (-1: none), and with so many copies. A broker that has just started knows of no broker, itself
    included."""
    return SimpleNamespace(
        brokers=dict.fromkeys(range(brokers)),
        topics={
            name: SimpleNamespace(
                error=None if code is None else KafkaError(code),
                partitions={
                    0: SimpleNamespace(leader=leaders.get(name, 0), replicas=range(copies))
                },
            )
            for name, code in topics.items()
        },
    )


def answered(value: Any) -> Future[Any]:
    """With this value; the code of an error: with that error."""
    future: Future[Any] = Future()
    if isinstance(value, int):
        future.set_exception(KafkaException(KafkaError(value)))
    else:
        future.set_result(value)
    return future


def group_of(
    members: Mapping[str, Sequence[tuple[str, int]]],
    state: ConsumerGroupState = ConsumerGroupState.STABLE,
) -> Any:
    """A consumer group: the partitions of each member."""
    return SimpleNamespace(
        state=state,
        members=[
            SimpleNamespace(
                member_id=member,
                assignment=SimpleNamespace(
                    topic_partitions=[
                        SimpleNamespace(topic=topic, partition=number) for topic, number in held
                    ]
                ),
            )
            for member, held in members.items()
        ],
    )
