"""Reading owned logs to their ends, on the twin."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.brokers import new_topic
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Claimed
from rollstream.streams.broker import EARLIEST, IDLE_S, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.owned.follow import READ_RECORDS_MAX, Follower

CLAIMS = [encode(Claimed(owner=f"owner-{n}", nonce=str(n))) for n in range(5)]


class FreshBroker(MemoryBroker):
    """Knows no leaders for the first few questions."""

    def __init__(self, clock: ManualClock, refusals: int) -> None:
        super().__init__(clock=clock)
        self.refusals = refusals

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        bounds = reader.bounds

        def refuse(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
            self.refusals -= 1
            if self.refusals >= 0:
                raise BrokerUnavailable(f"{where}: not leader")
            return bounds(where, timeout_s)

        reader.bounds = refuse  # type: ignore[method-assign]
        return reader


def claimed_log(broker: MemoryBroker) -> TopicPartition:
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    append(broker, where)
    return where


def append(broker: MemoryBroker, where: TopicPartition) -> None:
    writer = broker.writer()
    for value in CLAIMS:
        writer.append(where.topic, value, partition=where.partition)
    assert writer.flush(10) == 0


def test_broker_that_knows_no_leader_yet_is_asked_again() -> None:
    clock = ManualClock()
    broker = FreshBroker(clock, refusals=3)
    where = claimed_log(broker)
    events = Follower(broker, {where: 0}).read_to_end(Deadline(10.0, clock))
    assert [event.offset for event in events] == [0, 1, 2, 3, 4]


def test_broker_that_never_answers_is_known_within_the_time_for_the_ends() -> None:
    clock = ManualClock()
    broker = FreshBroker(clock, refusals=1_000_000)
    follower = Follower(broker, {claimed_log(broker): 0})
    with pytest.raises(BrokerUnavailable, match="not leader"):
        list(follower.read_to_end(Deadline(600.0, clock), ends_within_s=2.0))
    assert clock.monotonic_s() == pytest.approx(2.0, abs=0.1)


def test_what_is_appended_while_it_reads_is_left_for_the_next_read() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    where = claimed_log(broker)
    follower = Follower(broker, {where: EARLIEST})
    offsets: list[int] = []
    for event in follower.read_to_end(Deadline(10.0, clock)):
        if not offsets:
            append(broker, where)
        offsets.append(event.offset)
    assert offsets == [0, 1, 2, 3, 4]
    assert [event.offset for event in follower.poll(100, 0.0)] == [5, 6, 7, 8, 9]


def test_caller_that_takes_longer_than_its_deadline_is_told_how_far_it_came() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    where = claimed_log(broker)
    for _ in range(READ_RECORDS_MAX // len(CLAIMS)):
        append(broker, where)
    follower = Follower(broker, {where: 0})

    def read_slowly() -> None:
        for _ in follower.read_to_end(Deadline(1.0, clock)):
            clock.advance(0.1)

    with pytest.raises(BrokerUnavailable, match="read up to 256, not to its end at 260, within"):
        read_slowly()


def test_empty_log_is_at_its_end() -> None:
    broker = MemoryBroker()
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    assert list(Follower(broker, {where: EARLIEST}).read_to_end(Deadline(1.0))) == []
