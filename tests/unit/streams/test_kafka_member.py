"""What a member of a consumer group makes of librdkafka's callbacks and answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from harness.librdkafka import answered, group_of
from rollstream.streams.broker import Committed, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, NotAuthorised
from rollstream.streams.kafka.member import KafkaGroupReader

LEFT, RIGHT = TopicPartition("t", 0), TopicPartition("t", 1)
REBALANCING = ConsumerGroupState.PREPARING_REBALANCING


class Client:
    """A consumer of librdkafka; ``during`` runs within its next poll."""

    def __init__(self) -> None:
        self.fetching: dict[TopicPartition, int] = {}
        self.fetched: list[TopicPartition] = []
        self.during: Callable[[], None] = lambda: None
        self.stored: dict[TopicPartition, tuple[int, str]] = {}
        self.refusal: int | None = None
        self.free = Event()
        self.free.set()

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = SimpleNamespace(**callbacks)

    def incremental_assign(self, positions: list[Position]) -> None:
        for p in positions:
            assert TopicPartition(p.topic, p.partition) not in self.fetching, "twice"
            self.fetching[TopicPartition(p.topic, p.partition)] = p.offset

    def incremental_unassign(self, positions: list[Position]) -> None:
        for p in positions:
            del self.fetching[TopicPartition(p.topic, p.partition)]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        fetched, self.fetched = self.fetched, []
        during, self.during = self.during, lambda: None
        during()
        return [Message(*w, offset=0, value=b"v", timestamp=(2, 1)) for w in fetched]

    def commit(self, *, offsets: list[Position], asynchronous: bool) -> None:
        self.free.wait()
        if self.refusal is not None:
            raise KafkaException(KafkaError(self.refusal))
        for p in offsets:
            self.stored[TopicPartition(p.topic, p.partition)] = (p.offset, p.metadata or "")

    def committed(self, positions: list[Position], timeout_s: float) -> list[Any]:
        (p,) = positions
        offset, text = self.stored.get(TopicPartition(p.topic, p.partition), (-1001, ""))
        error = None if self.refusal is None else KafkaError(self.refusal)
        return [SimpleNamespace(offset=offset, metadata=text, error=error)]

    def memberid(self) -> str:
        return "me"

    def close(self) -> None:
        self.revoke(LEFT, RIGHT)

    def assign(self, *where: TopicPartition) -> None:
        self.callbacks.on_assign(self, [Position(*w) for w in where])

    def revoke(self, *where: TopicPartition) -> None:
        self.callbacks.on_revoke(self, [Position(*w) for w in where])


class Member:
    """A reader with its client, to which both partitions are assigned."""

    def __init__(self) -> None:
        self.client, self.revoked = Client(), list[TopicPartition]()
        self.group: Any = group_of({})
        self.reader = KafkaGroupReader(
            self._client,
            self._admin,
            "g",
            ["t"],
            self.revoked.append,
            reached=lambda: None,
            why_away=lambda _: "",
        )
        self.client.during = lambda: self.client.assign(LEFT, RIGHT)
        assert self.poll() == []

    def poll(self) -> list[TopicPartition]:
        return [TopicPartition(r.topic, r.partition) for r in self.reader.poll(100, 0.0)]

    def _client(self) -> Any:
        return self.client

    def _admin(self) -> Any:
        def describe_consumer_groups(names: list[str], request_timeout: float) -> Any:
            return {name: answered(self.group) for name in names}

        return SimpleNamespace(describe_consumer_groups=describe_consumer_groups)


def test_nothing_is_fetched_of_what_was_assigned_before_it_is_begun() -> None:
    member = Member()
    assert member.reader.assigned() == {LEFT, RIGHT}
    assert member.client.fetching == {}
    member.reader.begin(LEFT, 7)
    member.reader.begin(LEFT, 9)
    assert member.client.fetching == {LEFT: 9}
    for where in (LEFT, RIGHT):
        member.reader.pause(where)
    assert member.client.fetching == {}
    assert member.reader.assigned() == {LEFT, RIGHT}


def test_what_was_fetched_before_a_revocation_in_the_same_poll_is_dropped() -> None:
    member = Member()
    for where in (LEFT, RIGHT):
        member.reader.begin(where, 0)
    member.client.fetched = [LEFT, RIGHT]
    member.client.during = lambda: member.client.revoke(LEFT)
    assert member.poll() == [RIGHT]
    assert member.revoked == [LEFT]
    assert member.reader.assigned() == {RIGHT}
    assert member.client.fetching == {RIGHT: 0}


def test_a_partition_that_is_revoked_twice_is_told_once_and_may_come_back() -> None:
    member = Member()
    member.client.revoke(LEFT)
    member.client.revoke(LEFT)
    assert member.revoked == [LEFT]
    member.client.assign(LEFT)
    member.reader.begin(LEFT, 3)
    assert member.client.fetching == {LEFT: 3}


def test_leaving_tells_nobody_that_a_partition_was_revoked() -> None:
    member = Member()
    member.reader.begin(LEFT, 0)
    member.reader.close()
    assert member.revoked == []


def test_a_commit_counts_only_for_a_member() -> None:
    member = Member()
    assert member.reader.committed(LEFT, 1.0) is None
    assert member.reader.commit(LEFT, 5, "hint", 1.0)
    assert member.reader.committed(LEFT, 1.0) == Committed(5, "hint")
    for code in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID):
        member.client.refusal = code
        assert not member.reader.commit(LEFT, 6, "", 1.0)
    member.client.refusal = KafkaError.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(NotAuthorised, match="commit of"):
        member.reader.commit(LEFT, 6, "", 1.0)
    with pytest.raises(NotAuthorised, match="committed of"):
        member.reader.committed(LEFT, 1.0)
    member.client.revoke(LEFT)
    member.client.refusal = None
    assert not member.reader.commit(LEFT, 6, "", 1.0)
    assert member.client.stored[LEFT] == (5, "hint")


def test_a_commit_that_is_not_answered_ends_by_its_deadline() -> None:
    member = Member()
    member.client.free.clear()
    try:
        with pytest.raises(BrokerUnavailable, match=r"no answer within 0.01 s"):
            member.reader.commit(LEFT, 5, "", 0.01)
    finally:
        member.client.free.set()
    member.reader.close()


@pytest.mark.parametrize(
    ("group", "still"),
    [
        (group_of({"me": [LEFT]}), True),
        (group_of({"me": [RIGHT], "other": [LEFT]}), False),
        (group_of({"other": [LEFT]}), False),
        (group_of({"me": []}, REBALANCING), True),
        (group_of({"other": []}, REBALANCING), False),
    ],
)
def test_the_group_says_who_has_a_partition_and_a_rebalance_takes_none_by_itself(
    group: Any, still: bool
) -> None:
    member = Member()
    member.group = group
    assert member.reader.still_assigned(LEFT, 1.0) is still
    member.client.revoke(LEFT)
    assert not member.reader.still_assigned(LEFT, 1.0)


def test_a_group_that_cannot_be_asked_is_no_answer() -> None:
    member = Member()
    member.group = KafkaError.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerUnavailable, match="group g"):
        member.reader.still_assigned(LEFT, 1.0)
