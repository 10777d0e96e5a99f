"""What a member of a consumer group makes of librdkafka's callbacks and answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as Position

from harness.librdkafka import Outages
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import NotAuthorised
from rollstream.streams.kafka.member import KafkaGroupReader, OnCommit

LEFT, RIGHT = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """A consumer of librdkafka; ``during`` runs within its next poll."""

    on_commit: OnCommit

    def __init__(self) -> None:
        self.fetching: dict[TopicPartition, int] = {}
        self.fetched: list[TopicPartition] = []
        self.during: Callable[[], None] = lambda: None
        self.stored: dict[TopicPartition, tuple[int, str]] = {}
        self.refusal: int | None = None
        self.answers = list[Callable[[], None]]()
        self.silent = False
        self.thread = get_ident()
        self.closed = Event()
        self.hangs = Event()

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
        assert get_ident() == self.thread, "another thread would wait for this one"
        fetched, self.fetched = self.fetched, []
        during, self.during = self.during, lambda: None
        during()
        while self.answers and not self.silent:
            self.answers.pop(0)()
        return [Message(*w, offset=0, value=b"v", timestamp=(2, 1)) for w in fetched]

    def commit(self, *, offsets: list[Position], asynchronous: bool) -> None:
        assert asynchronous, "it would wait for the broker"
        assert get_ident() == self.thread, "another thread would wait for this one"
        error = None if self.refusal is None else KafkaError(self.refusal)
        for p in offsets if error is None else ():
            self.stored[TopicPartition(p.topic, p.partition)] = (p.offset, p.metadata or "")
        self.answers.append(lambda: self.on_commit(error, offsets))

    def close(self) -> None:
        self.revoke(LEFT, RIGHT)
        if self.hangs.is_set():
            self.closed.wait()
        self.closed.set()

    def assign(self, *where: TopicPartition) -> None:
        self.callbacks.on_assign(self, [Position(*w) for w in where])

    def revoke(self, *where: TopicPartition) -> None:
        self.callbacks.on_revoke(self, [Position(*w) for w in where])


class Member:
    """A reader with its client, to which both partitions are assigned."""

    def __init__(self) -> None:
        self.client, self.revoked = Client(), list[TopicPartition]()
        self.reader = KafkaGroupReader(
            self._client,
            lambda where: (3, 9),
            ["t"],
            self.revoked.append,
            Outages(),
        )
        self.client.during = lambda: self.client.assign(LEFT, RIGHT)
        assert self.poll() == []

    def poll(self) -> list[TopicPartition]:
        return [TopicPartition(r.topic, r.partition) for r in self.reader.poll(100, 0.0)]

    def commit(self, offset: int, metadata: str = "") -> bool:
        answer = self.reader.commit(LEFT, offset, metadata)
        self.poll()
        return answer.result(0)

    def _client(self, on_commit: OnCommit) -> Any:
        self.client.on_commit = on_commit
        return self.client


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
    assert member.commit(5, "hint")
    for code in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID):
        member.client.refusal = code
        assert not member.commit(6)
    member.client.refusal = KafkaError.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(NotAuthorised, match="commit of"):
        member.commit(6)
    member.client.revoke(LEFT)
    member.client.refusal = None
    assert not member.commit(6)
    assert member.client.stored[LEFT] == (5, "hint")


def test_commits_wait_for_the_answer_to_those_before_them_and_go_together() -> None:
    member = Member()
    member.client.silent = True
    for where, offset in ((LEFT, 5), (LEFT, 6), (RIGHT, 3), (LEFT, 7)):
        member.reader.commit(where, offset, "")
    member.poll()
    assert member.client.stored == {LEFT: (5, "")}, "else heartbeats wait behind all of them"
    assert len(member.client.answers) == 1
    member.client.silent = False
    member.poll()
    member.poll()
    assert member.client.stored == {LEFT: (7, ""), RIGHT: (3, "")}


def test_what_waits_to_be_committed_is_not_once_the_partition_is_anothers() -> None:
    member = Member()
    member.client.silent = True
    member.reader.commit(RIGHT, 3, "")
    answer = member.reader.commit(LEFT, 5, "")
    member.client.revoke(LEFT)
    member.client.silent = False
    member.poll()
    member.poll()
    assert not answer.result(0)
    assert member.client.stored == {RIGHT: (3, "")}


def test_a_commit_that_is_not_answered_hinders_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.streams.kafka.member.COMMIT_S", 0.0)
    member = Member()
    member.client.silent = True
    first, again, second = (member.reader.commit(LEFT, offset, "") for offset in (5, 5, 6))
    assert member.poll() == []
    assert not second.done()
    member.client.silent = False
    member.client.answers.pop(0)
    member.poll()
    assert first.result(0)  # By the answer to the second one, which says the same.
    assert again.result(0), "which was asked before that to the third one was sent"
    assert second.result(0)


def test_a_client_that_does_not_close_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollstream.streams.kafka.member.CLOSE_S", 0.01)
    member = Member()
    member.client.hangs.set()
    member.reader.close()
    assert "did not close within 0.01 s and is left behind" in caplog.text
    member.client.closed.set()


def test_what_the_group_gave_to_another_is_not_this_members_though_it_takes_the_commit() -> None:
    member = Member()
    answer = member.reader.commit(LEFT, 5, "")
    member.client.during = lambda: member.client.revoke(LEFT)
    member.poll()
    assert not answer.result(0)
