"""A Kafka client that fails for good is made anew, and threads share one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harness.librdkafka import Outages
from rollstream.runtime.clock import ManualClock
from rollstream.streams.broker import Delivery, TopicPartition
from rollstream.streams.errors import BufferFull, DeliveryUnknown
from rollstream.streams.kafka.writer import KafkaWriter
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.clients import OwnerClients


class FakeProducer:
    """librdkafka as it is after ``fail``: it takes nothing, and tells nothing before a purge."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self._failed = self._purged = False

    def fail(self) -> None:
        self._failed = True

    def produce(self, topic: str, value: bytes, *rest: Any, headers: object) -> None:
        if self._failed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "sequence numbers"))
        self._waiting.append(rest[-1])

    def poll(self, timeout_s: float) -> None:
        if self._failed and not self._purged:
            return
        error = KafkaError(KafkaError._PURGE_INFLIGHT) if self._purged else None
        message = SimpleNamespace(partition=lambda: 0, offset=lambda: 7, timestamp=lambda: (1, 1))
        waiting, self._waiting = self._waiting, []
        for report in waiting:
            report(error, message)

    def purge(self, **what: bool) -> None:
        self._purged = True

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=[0])})

    def __len__(self) -> int:
        return len(self._waiting)


class FakeBroker(MemoryBroker):
    """Its writers are Kafka's, over fakes."""

    def __init__(self) -> None:
        super().__init__(MemoryLogs(ManualClock()))
        self.made: list[FakeProducer] = []

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Any:
        def make() -> Any:
            self.made.append(FakeProducer())
            return self.made[-1]

        return KafkaWriter(make, Outages())


def test_what_is_on_its_way_in_a_client_that_failed_for_good_is_in_doubt_and_others_go_on() -> None:
    broker, reports = FakeBroker(), dict[int, Delivery]()
    clients = OwnerClients(broker)

    def append(number: int) -> None:
        where = TopicPartition("logs", number)
        clients.append(where, b"event", lambda delivery: reports.update({number: delivery}))

    append(0)
    append(1)
    broker.made[0].fail()
    with pytest.raises(BufferFull, match="poll makes another"):
        append(2)
    assert reports == {}
    clients.serve(broker.logs.clock.monotonic_s())
    assert [type(one.error) for one in reports.values()] == [DeliveryUnknown] * 2
    append(2)
    clients.poll()
    assert (reports[2].offset, reports[2].error) == (7, None)
    assert len(broker.made) == 2


def test_an_append_and_a_question_of_two_threads_have_one_client() -> None:
    made, reports = list[FakeProducer](), list[Delivery]()
    begun, go_on = Event(), Event()

    def make() -> Any:
        made.append(FakeProducer())
        begun.set()
        go_on.wait(0.2)  # Long enough for the other thread to find none.
        return made[-1]

    writer = KafkaWriter(make, Outages())
    with ThreadPoolExecutor(2) as threads:
        append = threads.submit(writer.append, "logs", b"event", on_delivery=reports.append)
        assert begun.wait(10)
        asked = threads.submit(writer.partitions, "logs", 1.0)
        append.result()
        assert asked.result() == 1
    writer.poll()
    assert len(made) == len(reports) == 1
