"""The broker interface over Kafka."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from rollstream.runtime.entropy import SystemEntropy
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.kafka import properties
from rollstream.streams.kafka.admin import KafkaAdmin
from rollstream.streams.kafka.member import KafkaGroupReader
from rollstream.streams.kafka.reader import KafkaReader
from rollstream.streams.kafka.writer import KafkaWriter


class KafkaBroker(Broker):
    """A ``Broker`` over confluent-kafka. Nothing connects before it is used.

    Args:
        bootstrap: ``host:port``, several with commas.
        client: librdkafka properties for every client that this makes; they win over ours.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        self._bootstrap = bootstrap
        self._client = dict(client or {})
        self._readers: weakref.WeakSet[KafkaReader] = weakref.WeakSet()
        self._writers: weakref.WeakSet[KafkaWriter] = weakref.WeakSet()

    def __str__(self) -> str:
        """The bootstrap address, as errors name it."""
        return self._bootstrap

    def writer(
        self, *, linger_ms: float = 5.0, report_offsets: bool = True, retries: bool = True
    ) -> KafkaWriter:
        wanted = properties.writer(
            linger_ms=linger_ms, report_offsets=report_offsets, retries=retries
        )
        writer = KafkaWriter(
            lambda: Producer(self._properties(wanted)), report_offsets=report_offsets
        )
        self._writers.add(writer)
        return writer

    def reader(self, starts: Mapping[TopicPartition, int]) -> KafkaReader:
        # librdkafka wants a group's name even where no group is joined and nothing committed.
        name = f"rollstream-reader-{SystemEntropy().token()}"
        wanted = {**properties.READER, "group.id": name}
        reader = KafkaReader(lambda: Consumer(self._properties(wanted)), starts)
        self._readers.add(reader)
        return reader

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> KafkaGroupReader:
        wanted = {**properties.MEMBER, "group.id": group}
        reader = KafkaGroupReader(
            lambda: Consumer(self._properties(wanted)), self._make_admin, group, topics, on_revoked
        )
        self._readers.add(reader)
        return reader

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._make_admin, self._bootstrap)

    def close(self) -> None:
        for writer in list(self._writers):
            writer.abandon()
        for reader in list(self._readers):
            reader.close()

    def _make_admin(self) -> AdminClient:
        return AdminClient(self._properties({}))

    def _properties(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        common = {"bootstrap.servers": self._bootstrap, "logger": properties.LOG}
        return {**common, **wanted, **self._client}
