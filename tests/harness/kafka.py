"""Real brokers for tests: one that a test run shares, and others for tests that kill them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rollstream.console.broker import EmbeddedKafka

REQUEST_TIMEOUT_S = 30.0
START_TIMEOUT_S = 100.0  # Without a line of its log; a busy machine is slow.

# Enough for a test's traffic; the memory of a test machine has room for three of them.
HEAP_MIB = 320

# A broker that nobody uses takes 5 % of a core for heartbeats and empty records of metadata.
# Only one that is killed needs frequent heartbeats: it serves again once its last session ended.
_QUIET = {
    "metadata.max.idle.interval.ms": "0",  # None.
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "log.cleaner.backoff.ms": "1000",  # Tests wait for it; by default it looks every 15 s.
}

KafkaFactory = Callable[[], EmbeddedKafka]


def start_kafka(data: Path, overrides: Mapping[str, str] = {}) -> EmbeddedKafka:
    """Starts a broker over the folder."""
    return EmbeddedKafka(data, heap_mib=HEAP_MIB, overrides=overrides).start(START_TIMEOUT_S)


def start_shared_kafka(data: Path) -> EmbeddedKafka:
    """Starts a broker that nobody kills, for many tests."""
    return start_kafka(data, _QUIET)


@contextmanager
def own_brokers(folder: Path) -> Iterator[KafkaFactory]:
    """Yields a function that starts a new broker at each call; stops all of them in the end."""
    with ExitStack() as brokers:
        count = 0

        def start() -> EmbeddedKafka:
            nonlocal count
            count += 1
            return brokers.enter_context(start_kafka(folder / f"kafka-{count}"))

        yield start


@contextmanager
def topics_deleted_after(bootstrap: str) -> Iterator[None]:
    """Deletes all topics at the end of the block.

    Each list of topics that a client asks for has all of the broker: thousands, if every test left
    its own to those after it.
    """
    yield
    admin = AdminClient({"bootstrap.servers": bootstrap})
    left = [
        name for name in admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics if name[:2] != "__"
    ]
    if left:
        for future in admin.delete_topics(left, request_timeout=REQUEST_TIMEOUT_S).values():
            future.result(REQUEST_TIMEOUT_S)


def create_topic(bootstrap: str, *, partitions: int = 1, **config: str) -> str:
    """Creates a topic with a unique name and returns it; settings have underscores for dots."""
    topic = f"test.{uuid.uuid4().hex}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[topic].result(REQUEST_TIMEOUT_S)
    return topic


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Sends the values to partition 0 and returns once all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 16 * 1024 * 1024})
    failures: list[object] = []

    def report(error: object, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=report)
    left = producer.flush(REQUEST_TIMEOUT_S)
    assert left == 0, f"{left} of {len(values)} records had no answer"
    assert not failures, failures


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Returns the first ``count`` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=REQUEST_TIMEOUT_S)
        values = []
        for message in messages:
            value = message.value()
            assert message.error() is None, message.error()
            assert value is not None
            values.append(value)
        return values
    finally:
        consumer.close()
