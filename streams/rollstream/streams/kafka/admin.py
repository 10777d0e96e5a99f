"""Topics and consumer groups of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache, partial

import confluent_kafka
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import (
    END,
    Commits,
    Committed,
    GroupMembers,
    Logs,
    TopicPartition,
    TopicSpec,
)
from rollstream.streams.errors import BrokerUnavailable, UnknownTopic
from rollstream.streams.kafka.answers import as_request_error, request
from rollstream.streams.kafka.faults import Faults, sentence_of
from rollstream.streams.kafka.reader import at_offset

_ASK_AGAIN_S = 0.05
_REBALANCING = (
    ConsumerGroupState.PREPARING_REBALANCING,
    ConsumerGroupState.COMPLETING_REBALANCING,
)
# Its coordinator moves, or has just started: it is there a moment later.
_NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
# A question to a coordinator is given up by who waits for its answer, never by librdkafka, whose
# time-out of one may abort the process while a broker comes or goes (its issue 4605).
_UNENDING_S = 3600.0
# A coordinator that answers does so sooner.
_COORDINATOR_S = 1.5
# A name may have several addresses, of which librdkafka tries the next after its first back-off.
_CERTAIN_AFTER_S = 1.0
_LOOK_EVERY_S = 0.1
NO_ANSWER_S = 10.0  # A broker that takes a connection and says nothing for so long is none.


class KafkaAdmin:
    """An ``Admin``.

    Args:
        make: the client of all requests, which gets what it calls with an error of its own.
        make_to_ask: a consumer that knows the group and is no member.
    """

    def __init__(
        self,
        make: Callable[[Callable[[KafkaError], None]], AdminClient],
        make_to_ask: Callable[[str], Consumer],
        bootstrap: str,
    ) -> None:
        self._faults = Faults()
        self._client = cache(partial(make, self._faults.record))  # Made by the first call.
        self._make_to_ask = make_to_ask
        self._bootstrap = bootstrap

    def reach(self, timeout_s: float) -> None:
        silent = Deadline(min(timeout_s, NO_ANSWER_S))
        certain = Deadline(_CERTAIN_AFTER_S)
        where = f"Kafka at {self._bootstrap}"
        while True:
            try:
                self._client().list_topics(timeout=silent.slice_s(_LOOK_EVERY_S))
                return
            except KafkaException as failure:
                self._client().poll(0)  # Runs the error callback.
                cause, error = self._faults.cause(), as_request_error(failure.args[0], where)
                if cause is not None and cause.code() == KafkaError._AUTHENTICATION:
                    error = as_request_error(cause, where)
                elif cause is not None and certain.passed():
                    error = BrokerUnavailable(f"{where} cannot be reached: {sentence_of(cause)}")
                elif isinstance(error, BrokerUnavailable):
                    if not silent.passed():
                        continue
                    error = BrokerUnavailable(
                        f"{where} does not answer within {silent.timeout_s:g} s; is what listens "
                        "there Kafka, does a firewall drop packets, or does it want TLS or SASL "
                        "(under kafka.client)?"
                    )
                raise error from failure

    def brokers(self, timeout_s: float) -> int:
        return len(self._metadata(timeout_s).brokers)

    def group(self, name: str, timeout_s: float) -> GroupMembers:
        deadline = Deadline(timeout_s)
        while True:
            answer = self._client().describe_consumer_groups([name], request_timeout=_UNENDING_S)
            with request(f"group {name}", timeout_s):
                try:
                    found = answer[name].result(deadline.left_s())
                    break
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError.GROUP_ID_NOT_FOUND:
                        return GroupMembers({}, 0, True)
                    if code not in _NO_COORDINATOR or deadline.passed():
                        raise
            deadline.wait(_ASK_AGAIN_S)
        owners = {
            TopicPartition(held.topic, held.partition): member.member_id
            for member in found.members
            for held in member.assignment.topic_partitions
        }
        return GroupMembers(owners, len(found.members), found.state not in _REBALANCING)

    def committed(self, group: str, asked: Logs, timeout_s: float) -> Commits:
        deadline = Deadline(timeout_s)
        with suppress(BrokerUnavailable):
            return self._committed_once(group, asked, deadline.slice_s(_COORDINATOR_S))
        return self._committed_once(group, asked, deadline.left_s())

    def _committed_once(self, group: str, asked: Logs, timeout_s: float) -> Commits:
        """Asks through a consumer that is no member, and is new: one keeps to the coordinator that
        it knows, which may be silent."""
        what = f"offsets of group {group}"
        with closing(self._make_to_ask(group)) as consumer, request(what, timeout_s):
            answers = consumer.committed([at_offset(where, END) for where in asked], timeout_s)
        for answer in answers:
            if answer.error is not None:
                raise as_request_error(answer.error, what)
        return {
            TopicPartition(one.topic, one.partition): Committed(one.offset, one.metadata or "")
            for one in answers
            if one.offset >= 0
        }

    def describe(self, names: Collection[str], timeout_s: float) -> dict[str, TopicSpec]:
        deadline = Deadline(timeout_s)
        while True:
            found = self._topics(names, deadline)
            if not found:
                return {}
            try:
                return self._described(found, deadline)
            except UnknownTopic:  # Deleted meanwhile; or the broker asked does not know of it yet.
                deadline.wait(_ASK_AGAIN_S)
                if deadline.passed():
                    raise

    def topics(self, prefix: str, timeout_s: float) -> list[str]:
        found = self._metadata(timeout_s).topics
        return sorted(name for name in found if name.startswith(prefix))

    def create(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        if not specs:
            return
        deadline = Deadline(timeout_s)
        topics = [NewTopic(s.name, s.partitions, s.replication, config={**s.config}) for s in specs]
        answers = self._client().create_topics(topics, request_timeout=deadline.left_s())
        for name, future in answers.items():
            with request(f"creation of {name}", timeout_s):
                try:
                    future.result(deadline.left_s())
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        while missing := self._unusable({spec.name for spec in specs}, deadline):
            deadline.log_waiting(lambda: f"topics {sorted(missing)} to be usable")
            if deadline.passed():
                raise BrokerUnavailable(f"{sorted(missing)} not usable within {timeout_s} s")
            deadline.wait(_ASK_AGAIN_S)

    def _described(
        self, topics: Mapping[str, TopicMetadata], deadline: Deadline
    ) -> dict[str, TopicSpec]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
        answers = self._client().describe_configs(resources, request_timeout=deadline.left_s())
        described = {}
        for resource, future in answers.items():
            with request(f"configuration of {resource.name}", deadline.timeout_s):
                entries = future.result(deadline.left_s())
            config = {name: entry.value for name, entry in entries.items() if entry.value}
            each = topics[resource.name].partitions
            replication = min(len(one.replicas) for one in each.values())
            described[resource.name] = TopicSpec(resource.name, len(each), config, replication)
        return described

    def _unusable(self, names: Collection[str], deadline: Deadline) -> set[str]:
        """Those that are not there yet, or of which a leader does not know yet that it leads."""
        found = self._topics(names, deadline)
        if missing := {*names} - {*found}:
            return missing
        asked = {
            confluent_kafka.TopicPartition(name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for name, topic in found.items()
            for number in topic.partitions
        }
        answers = self._client().list_offsets(asked, request_timeout=deadline.left_s())
        for where, future in answers.items():
            try:
                with request(f"end of {where.topic}[{where.partition}]", deadline.timeout_s):
                    future.result(deadline.left_s())
            except (BrokerUnavailable, UnknownTopic):
                missing.add(where.topic)
        return missing

    def _metadata(self, timeout_s: float) -> ClusterMetadata:
        with request(f"topics of the Kafka at {self._bootstrap}", timeout_s):
            return self._client().list_topics(timeout=timeout_s)

    def _topics(self, names: Collection[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        """Those of these topics that there are. A broker that has just started knows of none at
        first, and then nobody leads their partitions: both are waited for.

        Raises:
            BrokerUnavailable: waited in vain.
        """
        where = f"the Kafka at {self._bootstrap}"
        while True:
            found = self._metadata(deadline.left_s())
            topics = {name: found.topics[name] for name in names if name in found.topics}
            if found.brokers and all(map(_is_led, topics.values())):
                return topics
            if deadline.passed():
                raise BrokerUnavailable(
                    f"{where} has no broker that leads {', '.join(sorted(topics)) or 'anything'} "
                    f"within {deadline.timeout_s:g} s: do all of its brokers run?"
                )
            deadline.log_waiting(lambda: f"{where} to lead its partitions")
            deadline.wait(_ASK_AGAIN_S)


def _is_led(topic: TopicMetadata) -> bool:
    return topic.error is None and all(each.leader >= 0 for each in topic.partitions.values())
