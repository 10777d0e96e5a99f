"""The broker interface over Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from rollstream.runtime.addresses import check_bootstrap
from rollstream.runtime.client_properties import contradictions
from rollstream.runtime.entropy import SystemEntropy
from rollstream.streams.broker import (
    IDLE_S,
    Broker,
    Offsets,
    OnRevoked,
    Opened,
    TopicPartition,
)
from rollstream.streams.errors import BadClientSettings
from rollstream.streams.kafka import properties
from rollstream.streams.kafka.admin import KafkaAdmin
from rollstream.streams.kafka.clients import Consumer, Producer, kept_in_children
from rollstream.streams.kafka.faults import OutageLog
from rollstream.streams.kafka.member import KafkaGroupReader
from rollstream.streams.kafka.reader import ANSWER_TIMEOUT_S, KafkaReader
from rollstream.streams.kafka.writer import KafkaWriter


class KafkaBroker(Broker):
    """A ``Broker`` over confluent-kafka. Nothing connects before it is used.

    Args:
        bootstrap: ``host:port``, several with commas.
        client: librdkafka properties for every client that this makes; they win over ours.

    Raises:
        BadClientSettings: the address names no broker, a property is unknown or has a wrong value,
            or it contradicts what Rollstream promises (``client_properties``).
    """

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        self._bootstrap = bootstrap
        self._client = dict(client or {})
        self._check()
        self._outages = OutageLog(bootstrap, self._make_admin)
        self._opened = Opened()

    def __str__(self) -> str:
        """The bootstrap address, as errors name it."""
        return self._bootstrap

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> KafkaWriter:
        wanted = properties.writer(linger_ms=linger_ms, retries=retries)
        writer = KafkaWriter(
            lambda: kept_in_children(Producer(self._properties(wanted))), self._outages
        )
        return self._opened.add(writer, KafkaWriter.abandon)

    def reader(self, starts: Offsets, *, idle_s: float = IDLE_S) -> KafkaReader:
        # librdkafka wants a group's name even where no group is joined and nothing committed.
        name = f"rollstream-reader-{SystemEntropy().token()}"
        idle = {"fetch.wait.max.ms": round(idle_s * 1000)}
        wanted = {**properties.READER, **idle, "group.id": name}
        reader = KafkaReader(partial(self._make_consumer, wanted), starts, self._outages)
        return self._opened.add(reader, KafkaReader.close)

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: OnRevoked
    ) -> KafkaGroupReader:
        wanted = {**properties.MEMBER, "group.id": group}
        reader = KafkaGroupReader(
            lambda on_commit: self._make_consumer({**wanted, "on_commit": on_commit}),
            self._bounds_now,
            topics,
            on_revoked,
            self._outages,
        )
        return self._opened.add(reader, KafkaGroupReader.close)

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._make_admin, self._make_to_ask, self._bootstrap)

    def outage(self) -> str:
        return self._outages.sentence()

    def close(self) -> None:
        self._opened.close()

    def _check(self) -> None:
        try:
            check_bootstrap(self._bootstrap)
        except ValueError as error:
            raise BadClientSettings(f"bootstrap: {error}") from None
        if wrong := contradictions(self._client):
            raise BadClientSettings(f"kafka.client: {'; '.join(wrong)}")
        if not self._client:
            return
        # Only librdkafka knows all properties. Without an address its clients connect to nobody.
        as_writer = properties.writer(linger_ms=0.0, retries=True)
        as_member = {**properties.MEMBER, "group.id": "unused"}
        try:
            Producer({**as_writer, **self._client, "logger": properties.LOG})
            Consumer({**as_member, **self._client, "logger": properties.LOG})
        except (KafkaException, TypeError, ValueError) as error:
            what = error.args[0].str() if isinstance(error, KafkaException) else error
            raise BadClientSettings(
                f"kafka.client: {what}; correct or remove it (librdkafka's CONFIGURATION.md lists "
                "all properties)"
            ) from error

    def _bounds_now(self, where: TopicPartition) -> tuple[int, int]:
        with closing(self.reader({})) as reader:
            return reader.bounds(where, ANSWER_TIMEOUT_S)

    def _make_admin(self, on_error: Callable[[KafkaError], None] | None = None) -> AdminClient:
        wanted = {"error_cb": on_error or self._outages.record}
        return kept_in_children(AdminClient(self._properties(wanted)))

    def _make_to_ask(self, group: str) -> Consumer:
        """A consumer that knows the group and is no member."""
        return self._make_consumer({**properties.MEMBER, "group.id": group})

    def _make_consumer(self, wanted: Mapping[str, Any]) -> Consumer:
        return kept_in_children(Consumer(self._properties(wanted)))

    def _properties(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        common = {
            **properties.CLIENT,
            "bootstrap.servers": self._bootstrap,
            "logger": properties.LOG,
            "error_cb": self._outages.record,
        }
        return {**common, **wanted, **self._client}
