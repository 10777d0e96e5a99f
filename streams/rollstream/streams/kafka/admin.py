"""Topics of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicSpec
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka.answers import request

_ASK_AGAIN_S = 0.05


class KafkaAdmin:
    """An ``Admin``."""

    def __init__(self, make: Callable[[], AdminClient], bootstrap: str) -> None:
        self._client = cache(make)  # Made by the first call.
        self._bootstrap = bootstrap

    def describe(self, names: Collection[str], timeout_s: float) -> dict[str, TopicSpec]:
        deadline = Deadline(timeout_s)
        partitions = {
            name: count for name, count in self._partitions(deadline).items() if name in names
        }
        if not partitions:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(partitions)]
        answers = self._client().describe_configs(resources, request_timeout=deadline.left_s())
        described = {}
        for resource, future in answers.items():
            with request(f"configuration of {resource.name}", timeout_s):
                entries = future.result(deadline.left_s())
            config = {name: entry.value for name, entry in entries.items() if entry.value}
            described[resource.name] = TopicSpec(resource.name, partitions[resource.name], config)
        return described

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        if not specs:
            return
        deadline = Deadline(timeout_s)
        topics = [NewTopic(s.name, s.partitions, config=dict(s.config)) for s in specs]
        answers = self._client().create_topics(topics, request_timeout=deadline.left_s())
        for name, future in answers.items():
            with request(f"creation of {name}", timeout_s):
                try:
                    future.result(deadline.left_s())
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        while missing := {spec.name for spec in specs} - set(self._partitions(deadline)):
            deadline.log_waiting(lambda: f"topics {sorted(missing)} to be usable")
            if deadline.passed():
                raise BrokerUnavailable(f"{sorted(missing)} not usable within {timeout_s} s")
            deadline.wait(_ASK_AGAIN_S)

    def _partitions(self, deadline: Deadline) -> dict[str, int]:
        """Topics all of whose partitions have a leader."""
        with request(f"topics of the Kafka at {self._bootstrap}", deadline.timeout_s):
            found = self._client().list_topics(timeout=deadline.left_s())
        return {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None and all(p.leader >= 0 for p in topic.partitions.values())
        }
