"""Raw Kafka: the same bytes are produced and consumed, and nothing else is done with them.

Values are encoded in advance, keys are uids. Nothing is grouped, packed or written, so this is the
upper limit for a system on this broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.systems.interface import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    TAKE_TIMEOUT_S,
    Services,
    Taken,
)
from benchmarks.systems.kafka_broker import fresh_kafka
from benchmarks.workload import (
    ENVIRONMENT,
    GROUP_SIZE,
    REPLICAS,
    ROLLOUTS_PER_BATCH,
    Rollout,
    Workload,
)
from rollstream.schemas.codec import encode_rollout

TOPIC = "raw"
PARTITIONS = 4
VALUES = 1024  # As many as the workload has shapes, for the same distribution of lengths.
POLL_S = 0.02
QUIET = 3  # librdkafka then logs errors only.
RECORD_BYTES_MAX = 16 * 1024 * 1024


def rollstream_value(rollout: Rollout, replica: int) -> bytes:
    """The record that Rollstream sends for the rollout."""
    fields = {
        "environment": ENVIRONMENT,
        "example_id": rollout.example_id,
        "group_uid": rollout.group_uid,
        "group_size": GROUP_SIZE,
        "rollout_uid": rollout.uid,
        "segment_idx": 0,
        "is_last_segment": True,
        "continuation_of": "",
        "prefix_hash": "",
        "lineage": "",
        "policy_version": rollout.policy_version,
        "policy_epoch": 0,
        "weight_step": rollout.weight_step,
        "replica_id": f"replica-{replica}",
        "worker_id": f"worker-{replica}",
        "created_ts": 1_700_000_000_000_000,
        "prompt_count": len(rollout.prompt),
        "token_count": len(rollout.output),
        "reward": rollout.reward,
        "split": "train",
        "stop_reason": "stop",
        "prompt_tokens": rollout.prompt.tobytes(),
        "output_tokens": rollout.output.tobytes(),
        "logprobs": rollout.logprobs.tobytes(),
        "loss_mask": None,
        "rewards": {},
        "metadata": "{}",
        "extras": None,
    }
    return encode_rollout(fields)


class RawPublisher:
    def __init__(self, bootstrap: str, replica: int, workload: Workload) -> None:
        self._values = [rollstream_value(workload.rollout(n), replica) for n in range(VALUES)]
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
        value = self._values[rollout.number % VALUES]
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
    def __init__(self, bootstrap: str) -> None:
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
            for message in self._consumer.consume(ROLLOUTS_PER_BATCH, POLL_S):
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
    def services(self, folder: Path) -> Iterator[Services]:
        with fresh_kafka(folder) as kafka:
            settings = {
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(RECORD_BYTES_MAX),
            }
            topic = NewTopic(TOPIC, PARTITIONS, 1, config=settings)
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": QUIET})
            admin.create_topics([topic])[TOPIC].result(START_TIMEOUT_S)
            yield Services(kafka.bootstrap, {"broker": kafka.pid})

    def publisher(self, address: str, replica: int, workload: Workload) -> RawPublisher:
        assert replica < REPLICAS
        return RawPublisher(address, replica, workload)

    def source(self, address: str) -> RawSource:
        return RawSource(address)
