"""What the admin makes of librdkafka's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException

from harness.librdkafka import answered, group_of, metadata_of
from rollstream.streams.broker import Committed, GroupMembers, TopicPartition, TopicSpec
from rollstream.streams.errors import (
    BrokerUnavailable,
    NotAuthorised,
    PermanentBrokerError,
    UnknownTopic,
)
from rollstream.streams.kafka.admin import KafkaAdmin

LEFT = TopicPartition("t", 0)


class Client:
    """An admin client of librdkafka; each list has the answers to come, the last one for ever.

    Args:
        faults: codes of the errors that its callback tells of in each poll.
    """

    def __init__(self, *, faults: Sequence[int] = (), **answers: list[Any]) -> None:
        self.asked: list[Any] = []
        self._faults = faults
        self._answers = answers

    def made(self, on_fault: Callable[[KafkaError], None]) -> Any:
        self._on_fault = on_fault
        return self

    def list_topics(self, timeout: float) -> Any:
        found = self._next("topics")
        if isinstance(found, int):
            raise KafkaException(KafkaError(found))
        return found

    def poll(self, timeout: float) -> None:
        for code in self._faults:
            self._on_fault(KafkaError(code, "connection refused"))

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> Any:
        assert request_timeout >= 600, "librdkafka's own time-out may abort the process"
        return {name: answered(self._next("groups")) for name in names}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> Any:
        return {resource: answered(self._next("configs")) for resource in resources}

    def create_topics(self, topics: list[Any], request_timeout: float) -> Any:
        self.asked += topics
        return {topic.topic: answered(self._next("created")) for topic in topics}

    def list_offsets(self, asked: dict[Any, Any], request_timeout: float) -> Any:
        return {where: answered(self._next("ends")) for where in asked}

    def _next(self, name: str) -> Any:
        answers = self._answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class ToAsk:
    """A consumer of the group that is no member of it; each answer is an error's code, or what the
    group committed."""

    def __init__(self, answer: int | tuple[int, str]) -> None:
        self.answer = answer
        self.is_open = True

    def committed(self, positions: list[Any], timeout_s: float) -> list[Any]:
        if isinstance(self.answer, int):
            raise KafkaException(KafkaError(self.answer))
        offset, note = self.answer
        return [SimpleNamespace(**LEFT._asdict(), offset=offset, metadata=note, error=None)]

    def close(self) -> None:
        self.is_open = False


def admin_of(client: Client) -> KafkaAdmin:
    return KafkaAdmin(client.made, lambda _: cast(Consumer, client), "kafka:9092")


def test_a_broker_is_reached_once_it_answers() -> None:
    client = Client(topics=[KafkaError._TRANSPORT, metadata_of({}), KafkaError._INVALID_ARG])
    admin_of(client).reach(10.0)


@pytest.mark.parametrize(
    ("faults", "kind", "told"),
    [
        ([KafkaError._AUTHENTICATION], NotAuthorised, "correct the credentials"),
        ([KafkaError._TRANSPORT], BrokerUnavailable, "cannot be reached: .*does Kafka run there"),
        ([], BrokerUnavailable, "does not answer within 0.01 s; is what listens there Kafka"),
    ],
)
def test_why_a_broker_is_not_reached_is_told_apart(
    faults: list[int], kind: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollstream.streams.kafka.admin._CERTAIN_AFTER_S", 0.0)
    down = [KafkaError._ALL_BROKERS_DOWN] if faults else []
    client = Client(faults=[*faults, *down], topics=[KafkaError._TRANSPORT])
    with pytest.raises(kind, match=told):
        admin_of(client).reach(0.01)


def test_what_asking_again_cannot_mend_is_told_at_once() -> None:
    with pytest.raises(PermanentBrokerError, match="Kafka at kafka:9092"):
        admin_of(Client(topics=[KafkaError.UNSUPPORTED_VERSION])).reach(10.0)


def test_a_group_has_the_owners_of_its_partitions_once_its_coordinator_answers() -> None:
    members = group_of({"a": [LEFT], "b": []})
    groups = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, members]
    assert admin_of(Client(groups=groups)).group("g", 10.0) == GroupMembers({LEFT: "a"}, 2, True)
    moving = group_of({"a": []}, ConsumerGroupState.COMPLETING_REBALANCING)
    assert not admin_of(Client(groups=[moving])).group("g", 10.0).settled


def test_a_group_that_nobody_joined_has_no_members_and_one_that_is_refused_is_an_error() -> None:
    none = admin_of(Client(groups=[KafkaError.GROUP_ID_NOT_FOUND]))
    assert none.group("g", 10.0) == GroupMembers({}, 0, True)
    with pytest.raises(NotAuthorised, match="group g"):
        admin_of(Client(groups=[KafkaError.GROUP_AUTHORIZATION_FAILED])).group("g", 10.0)
    with pytest.raises(BrokerUnavailable, match="group g"):
        admin_of(Client(groups=[KafkaError.NOT_COORDINATOR])).group("g", 0.0)


def test_topics_are_described_as_they_are_set() -> None:
    named: dict[str, int | None] = {"a.x": None, "a.y": None, "b": None}
    topics = metadata_of(named, leaders={"b": -1}, brokers=3, copies=2)
    configs = {"retention.ms": SimpleNamespace(value="5"), "unset": SimpleNamespace(value=None)}
    admin = admin_of(Client(topics=[topics], configs=[configs]))
    described = admin.describe(["a.x", "no such"], 10.0)
    assert described == {"a.x": TopicSpec("a.x", 1, {"retention.ms": "5"}, 2)}
    assert admin.brokers(10.0) == 3
    assert admin.describe(["no such"], 10.0) == {}
    assert admin.topics("a.", 10.0) == ["a.x", "a.y"]


LOADING = metadata_of({}, brokers=0)
UNLED = metadata_of({"a": None}, leaders={"a": -1})
UNKNOWN_LEADER = metadata_of({"a": KafkaError.LEADER_NOT_AVAILABLE})


@pytest.mark.parametrize("starting", [[LOADING], [UNLED], [UNKNOWN_LEADER], [LOADING, UNLED]])
def test_a_topic_of_a_broker_that_starts_is_waited_for_and_not_missing(starting: list[Any]) -> None:
    client = Client(topics=[*starting, metadata_of({"a": None})], configs=[{}])
    assert admin_of(client).describe(["a"], 10.0) == {"a": TopicSpec("a", 1, {}, 1)}
    never = Client(topics=starting)
    with pytest.raises(BrokerUnavailable, match="do all of its brokers run"):
        admin_of(never).describe(["a"], 0.1)


def test_a_topic_that_is_deleted_while_it_is_described_is_none() -> None:
    """Nor is it an error where it is not known everywhere yet."""
    both, one = metadata_of({"a": None, "b": None}), metadata_of({"b": None})
    configs = [{}, KafkaError.UNKNOWN_TOPIC_OR_PART, {}]
    client = Client(topics=[both, one], configs=[*configs])
    assert admin_of(client).describe(["a", "b"], 10.0) == {"b": TopicSpec("b", 1, {}, 1)}
    client = Client(topics=[both], configs=[*configs])
    assert {*admin_of(client).describe(["a", "b"], 10.0)} == {"a", "b"}
    never = Client(topics=[both], configs=[KafkaError.UNKNOWN_TOPIC_OR_PART])
    with pytest.raises(UnknownTopic, match="configuration of a"):
        admin_of(never).describe(["a", "b"], 0.1)


def test_a_topic_is_made_when_it_can_be_used_and_may_be_there_already() -> None:
    there = [metadata_of({}), metadata_of({"a": None}, leaders={"a": -1}), metadata_of({"a": None})]
    ends = [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION, None]
    client = Client(topics=there, created=[KafkaError.TOPIC_ALREADY_EXISTS], ends=ends)
    spec = TopicSpec("a", 1, {"retention.ms": "5"}, 2)
    admin_of(client).create([spec], 10.0)
    (asked,) = client.asked
    assert (asked.topic, asked.num_partitions, asked.config, asked.replication_factor) == spec
    assert len(there) == 1, "it waited until the topic had a leader"
    assert ends == [None], "and until that one knew"
    admin_of(client).create([], 10.0)
    assert client.asked == [asked]


def test_a_topic_that_is_refused_or_never_usable_is_an_error() -> None:
    spec = TopicSpec("a", 1, {})
    with pytest.raises(NotAuthorised, match="creation of a"):
        admin_of(Client(created=[KafkaError.TOPIC_AUTHORIZATION_FAILED])).create([spec], 10.0)
    there = metadata_of({"a": None})
    refused = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(NotAuthorised, match=r"end of a\[0\]"):
        admin_of(Client(topics=[there], created=[None], ends=refused)).create([spec], 10.0)
    unled = [KafkaError.NOT_LEADER_FOR_PARTITION]
    for topics in ([metadata_of({})], [there]):
        never = Client(topics=topics, created=[None], ends=unled)
        with pytest.raises(BrokerUnavailable, match=r"\['a'\] not usable within 0.0 s"):
            admin_of(never).create([spec], 0.0)


@pytest.mark.parametrize(
    ("answer", "found"), [((5, "note"), {LEFT: Committed(5, "note")}), ((-1001, ""), {})]
)
def test_a_client_that_has_no_answer_about_offsets_gives_way_to_a_new_one(
    answer: tuple[int, str], found: dict[TopicPartition, Committed]
) -> None:
    """It would keep to the coordinator that it knows, which is silent."""
    clients = [ToAsk(KafkaError._TIMED_OUT), ToAsk(answer)]
    asked = iter(clients)
    admin = KafkaAdmin(Client().made, lambda _: cast(Consumer, next(asked)), "kafka:9092")
    assert admin.committed("g", [LEFT], 5.0) == found
    assert not any(client.is_open for client in clients)


def test_who_may_not_ask_a_group_is_told_so_at_once() -> None:
    refused = ToAsk(KafkaError.GROUP_AUTHORIZATION_FAILED)
    admin = KafkaAdmin(Client().made, lambda _: cast(Consumer, refused), "kafka:9092")
    with pytest.raises(NotAuthorised, match="offsets of group g"):
        admin.committed("g", [LEFT], 5.0)
