"""Topics of Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicSpec
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka.answers import of_request

_ASK_AGAIN_S = 0.05


class KafkaAdmin:
    """An ``Admin``."""

    def __init__(
        self, make: Callable[[], AdminClient], bootstrap: str, clock: Clock | None = None
    ) -> None:
        self._make = make
        self._bootstrap = bootstrap
        self._client: AdminClient | None = None
        self._clock = clock or SystemClock()

    def describe(self, names: Collection[str] | None, timeout_s: float) -> dict[str, TopicSpec]:
        deadline = Deadline(timeout_s, self._clock)
        partitions = {
            name: count
            for name, count in self._partitions(deadline).items()
            if names is None or name in names
        }
        if not partitions:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(partitions)]
        answers = self._admin().describe_configs(resources, request_timeout=deadline.left_s())
        described = {}
        for resource, future in answers.items():
            entries = self._ask(future, deadline, f"configuration of {resource.name}")
            config = {name: entry.value for name, entry in entries.items() if entry.value}
            described[resource.name] = TopicSpec(resource.name, partitions[resource.name], config)
        return described

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        if not specs:
            return
        deadline = Deadline(timeout_s, self._clock)
        topics = [NewTopic(s.name, s.partitions, config=dict(s.config)) for s in specs]
        answers = self._admin().create_topics(topics, request_timeout=deadline.left_s())
        for name, future in answers.items():
            self._ask(future, deadline, f"creation of {name}", {KafkaError.TOPIC_ALREADY_EXISTS})
        never = threading.Event()
        while missing := {spec.name for spec in specs} - set(self._partitions(deadline)):
            deadline.log_waiting(lambda: f"topics {sorted(missing)} to be usable")
            if deadline.passed():
                raise BrokerUnavailable(f"{sorted(missing)} not usable within {timeout_s} s")
            self._clock.wait(never, _ASK_AGAIN_S)

    def _partitions(self, deadline: Deadline) -> dict[str, int]:
        """Topics all of whose partitions have a leader."""
        try:
            found = self._admin().list_topics(timeout=max(0.001, deadline.left_s()))
        except KafkaException as error:
            answer: KafkaError = error.args[0]
            what = f"topics of the Kafka at {self._bootstrap}"
            raise of_request(answer.code(), answer.str(), what) from error
        return {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None and all(p.leader >= 0 for p in topic.partitions.values())
        }

    def _ask(self, future, deadline: Deadline, what: str, fine: Collection[int] = ()):  # type: ignore
        try:
            return future.result(deadline.left_s())
        except TimeoutError as error:
            raise BrokerUnavailable(f"{what}: no answer within {deadline.timeout_s} s") from error
        except KafkaException as error:
            answer: KafkaError = error.args[0]
            if answer.code() in fine:
                return None
            raise of_request(answer.code(), answer.str(), what) from error

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = self._make()
        return self._client
