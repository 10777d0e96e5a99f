"""Raw Kafka: the same bytes are produced and consumed, and nothing else is done with them.

Values are encoded in advance, keys are uids. Nothing is grouped, packed or written, so this is the
upper limit for a system on this broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.scenarios import Scenario
from benchmarks.systems.interface import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    TAKE_TIMEOUT_S,
    Services,
    Taken,
)
from benchmarks.systems.kafka_broker import fresh_kafka
from benchmarks.systems.raw_value import PARTITIONS, encoded
from benchmarks.workload import Rollout, Workload

TOPIC = "raw"
POLL_S = 0.02
QUIET = 3  # librdkafka then logs errors only.
RECORD_BYTES_MAX = 16 * 1024 * 1024


@lru_cache(1)
def _values(workload: Workload) -> list[bytes]:
    """One for each shape of the workload; a process's producers share them."""
    return [
        encoded(workload.rollout(number), workload.scenario.group_size)
        for number in range(workload.scenario.shapes)
    ]


class RawPublisher:
    def __init__(self, bootstrap: str, workload: Workload) -> None:
        self._values = _values(workload)
        self._failures: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                # With more, librdkafka spins while it waits for answers: ten times the processor
                # time, which a broker on the same cores then lacks.
                "max.in.flight": 1,
                "linger.ms": 5,
                "log_level": QUIET,
                "batch.size": 1024 * 1024,
                "message.max.bytes": RECORD_BYTES_MAX,
                "delivery.report.only.error": True,
                "on_delivery": self._report,
            }
        )

    def publish(self, rollout: Rollout) -> None:
        value = self._values[rollout.number % len(self._values)]
        self._producer.produce(TOPIC, value, rollout.uid.encode())

    def idle(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        left = self._producer.flush(STOP_TIMEOUT_S)
        if left or self._failures:
            raise RuntimeError(f"{left} rollouts not delivered; failures: {self._failures[:3]}")

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)


class RawSource:
    def __init__(self, bootstrap: str, a_batch: int) -> None:
        self._a_batch = a_batch
        self._seen: set[bytes] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "raw",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 10,
                "log_level": QUIET,
            }
        )
        self._consumer.subscribe([TOPIC])

    def take(self) -> Taken:
        new: list[bytes] = []
        deadline = time.monotonic() + TAKE_TIMEOUT_S
        while not new:
            for message in self._consumer.consume(self._a_batch, POLL_S):
                if message.error() is not None:
                    raise KafkaException(message.error())
                uid, value = message.key(), message.value()
                if not (uid and value):
                    raise RuntimeError(f"raw: record {uid!r} came without its value")
                if uid not in self._seen:
                    self._seen.add(uid)
                    new.append(uid)
            if not new and time.monotonic() > deadline:
                raise TimeoutError(f"raw: no record within {TAKE_TIMEOUT_S} s")
        return Taken(new, None)

    def pids(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True)
class Raw:
    name: str = "raw"

    def missing(self) -> str | None:
        return None

    @contextmanager
    def services(self, folder: Path, scenario: Scenario) -> Iterator[Services]:
        with fresh_kafka(folder) as kafka:
            settings = {
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(RECORD_BYTES_MAX),
            }
            topic = NewTopic(TOPIC, PARTITIONS, 1, config=settings)
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": QUIET})
            admin.create_topics([topic])[TOPIC].result(START_TIMEOUT_S)
            yield Services(kafka.bootstrap, {"broker": kafka.pid})

    def publisher(self, address: str, number: int, workload: Workload) -> RawPublisher:
        return RawPublisher(address, workload)

    def source(self, address: str, workload: Workload) -> RawSource:
        return RawSource(address, workload.scenario.rollouts_per_batch)
