"""Where a fold may start."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from harness.brokers import new_topic, write
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed, Event
from rollstream.streams.broker import IDLE_S, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, DamagedRecord
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.owned.adoption import find_start, find_starts
from rollstream.streams.reading import WINDOW_RECORDS, read_between

TAIL: list[Event] = [Claimed(owner="x", nonce="never adopted")] * (3 * WINDOW_RECORDS)


def claim(nonce: str) -> Claimed:
    return Claimed(owner="x", nonce=nonce)


def adopted(epoch: int, nonce: str, fold_from: int) -> Adopted:
    return Adopted(epoch=epoch, nonce=nonce, fold_from=fold_from, watermark=0, counts={})


def start_of(events: list[Event], hint: int | None = None) -> int:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    write(broker, where, [codec.encode(event) for event in events])
    return find_start(broker.reader({where: 0}), where, hint, Deadline(10.0, clock))


LOG: list[Event] = [claim("a"), adopted(0, "a", 0), claim("b"), adopted(2, "b", 2)]


@pytest.mark.parametrize("hint", [None, -5, 1, 2, 3, 99])
def test_the_newest_adopted_claim_is_found_with_any_hint(hint: int | None) -> None:
    assert start_of(LOG, hint) == 2


def test_a_hint_is_followed_although_newer_claims_exist() -> None:
    assert start_of([*LOG, claim("c"), adopted(4, "c", 4)], 2) in (2, 4)


@pytest.mark.parametrize("hint", [None, 2, 3])
def test_an_adoption_behind_a_newer_claim_proves_nothing(hint: int | None) -> None:
    log: list[Event] = [claim("a"), adopted(0, "a", 0), claim("b"), claim("c"), adopted(2, "b", 2)]
    assert start_of(log, hint) == 0


@pytest.mark.parametrize("hint", [None, 1])
def test_an_adoption_under_another_nonce_proves_nothing(hint: int | None) -> None:
    assert start_of([claim("a"), claim("b"), adopted(1, "a", 1)], hint) == 0


def test_a_log_without_any_adoption_is_read_from_the_beginning() -> None:
    assert start_of([]) == 0
    assert start_of([claim("a"), claim("b")]) == 0
    assert start_of(TAIL) == 0


def test_an_adoption_far_from_the_end_is_found_window_by_window() -> None:
    assert start_of([*LOG, *TAIL]) == 2
    padding: list[Event] = [claim("none")] * (WINDOW_RECORDS - 1)
    # The claim in one window, its adoption in the next.
    split = [*LOG, claim("c"), adopted(4, "c", 4), *padding]
    assert start_of(split) == 4


def test_reading_between_ends_at_its_deadline() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    write(broker, where, [b"x"] * 3)
    reader = broker.reader({where: 0})
    found = [r.offset for r in read_between(reader, where, 1, 3, Deadline(1.0, clock))]
    assert found == [1, 2]
    with pytest.raises(BrokerUnavailable, match="up to 3 of 5"):
        list(read_between(reader, where, 1, 5, Deadline(1.0, clock)))


class Damaged(MemoryBroker):
    """Readers say at every other poll that one log is damaged, as long as they read it."""

    where: TopicPartition

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        poll, pause, turns = reader.poll, reader.pause, count()
        paused: set[TopicPartition] = set()

        def poll_damaged(records_max: int, timeout_s: float) -> list[Record]:
            if next(turns) % 2 == 0 and self.where not in paused:
                raise DamagedRecord(self.where, 1, "the test damaged it")
            records = poll(records_max, timeout_s)
            return [one for one in records if one.partition != self.where.partition]

        def note_pause(where: TopicPartition) -> None:
            paused.add(where)
            pause(where)

        vars(reader).update(poll=poll_damaged, pause=note_pause)
        return reader


def test_a_damaged_log_hinders_the_search_of_no_other() -> None:
    clock = ManualClock()
    broker = Damaged(clock=clock)
    topic = new_topic(broker, 3, {})
    sound, long, broker.where = logs = [TopicPartition(topic, number) for number in range(3)]
    for where in logs:
        write(
            broker,
            where,
            [codec.encode(event) for event in [*LOG, *(TAIL if where == long else [])]],
        )
    found = find_starts(broker, dict.fromkeys(logs), Deadline(10.0, clock))
    assert found == {sound: 2, long: 2, broker.where: 0}
