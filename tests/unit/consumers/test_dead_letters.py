"""Letters about records of any size reach their log, or an error gives the reason."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from harness.faults import Append, Fate, FaultyBroker, always_pass
from harness.held_workers import HeldWorkers
from rollstream.consumers import InlineExecutor
from rollstream.consumers.sealing import dead_letters
from rollstream.consumers.sealing.dead_letters import (
    DELIVER_S,
    DETAIL_CHARS_MAX,
    LETTERS_BYTES_MAX,
    LOG_EVERY_S,
    DeadLetters,
)
from rollstream.runtime.clock import ManualClock
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import DeadLetter
from rollstream.streams.broker import Record, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable, RecordTooLarge, UnknownTopic
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

TOPIC = "letters"
WAIT_S = 30.0


class Office:
    """Dead letters over a topic that takes records of ``record_bytes_max``."""

    def __init__(
        self, record_bytes_max: int = RECORD_BYTES_MAX, askers: Executor | None = None
    ) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(MemoryLogs(self.clock))
        config = {"max.message.bytes": str(record_bytes_max)}
        self.broker.logs.create(TopicSpec(TOPIC, 1, config))
        self.faults = FaultyBroker(self.broker, clock=self.clock)
        askers = askers or InlineExecutor()
        self.letters = DeadLetters(self.faults, TOPIC, self.clock, askers)
        self._offset = 0

    def write(self, value: bytes, detail: str, *, entry: int = 0) -> None:
        """A letter about one entry of the next record."""
        record = Record("rollouts", 0, self._offset, 5, None, b"the whole record")
        self._offset += 1
        error = UnreadableEvent("torn", detail)
        self.letters.write(record, entry, value, error)

    def deliver(self) -> None:
        assert self.letters.are_delivered()

    def delivered(self) -> list[DeadLetter]:
        reader = self.broker.reader({TopicPartition(TOPIC, 0): 0})
        return [codec.decode_as(DeadLetter, record.value) for record in reader.poll(1_000, 1)]


def test_a_long_detail_is_cut_in_the_letter_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    office = Office()
    with caplog.at_level(logging.WARNING, "rollstream.sealer"):
        office.write(b"bad", "d" * 1_000_000)
    office.deliver()
    (letter,) = office.delivered()
    assert letter.detail.startswith("d" * DETAIL_CHARS_MAX)
    assert "cut" in letter.detail
    assert "1000000" in letter.detail, "how long it was"
    assert len(letter.detail) < DETAIL_CHARS_MAX + 100
    assert letter.value == b"bad"
    assert all(len(record.getMessage()) < DETAIL_CHARS_MAX + 300 for record in caplog.records)


def test_a_detail_that_is_short_enough_is_kept_whole() -> None:
    office = Office()
    office.write(b"bad", "d" * DETAIL_CHARS_MAX)
    office.deliver()
    assert [letter.detail for letter in office.delivered()] == ["d" * DETAIL_CHARS_MAX]


def test_a_letter_names_its_entry_and_holds_that_alone() -> None:
    office = Office()
    office.write(b"bad", "why", entry=7)
    office.deliver()
    (letter,) = office.delivered()
    assert (letter.offset, letter.entry, letter.value) == (0, 7, b"bad")
    assert (letter.topic, letter.partition, letter.timestamp_ts) == ("rollouts", 0, 5)


def test_a_detail_and_bytes_that_no_record_could_hold_are_delivered_all_the_same() -> None:
    office = Office()
    office.write(bytes(RECORD_BYTES_MAX), "字" * RECORD_BYTES_MAX)
    office.deliver()
    (letter,) = office.delivered()
    assert letter.value is None
    assert office.letters.written == 1


def test_letters_are_delivered_once_their_bytes_are_too_many() -> None:
    office = Office()
    half = bytes(LETTERS_BYTES_MAX // 4)
    for _ in range(3):
        office.write(half, "why")
    assert office.letters.written == 0
    office.write(half, "why")
    assert office.letters.written == 4
    office.write(b"one more", "why")
    assert office.letters.written == 4, "their bytes are counted anew"


def test_letters_are_delivered_once_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 3)
    office = Office()
    for written in (0, 0, 3, 3, 3, 6):
        office.write(b"x", "why")
        assert office.letters.written == written


def test_letters_that_a_writer_has_no_room_for_follow_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.streams.memory.writer.QUEUED_RECORDS_MAX", 2)
    office = Office()
    for _ in range(5):
        office.write(b"x", "why")
    office.deliver()
    assert [letter.offset for letter in office.delivered()] == [0, 1, 2, 3, 4]


def test_a_delivery_that_waited_long_for_a_thread_has_its_whole_time() -> None:
    askers = HeldWorkers()
    office = Office(askers=askers)
    askers.holding = True
    office.write(b"x", "why")
    assert not office.letters.are_delivered()
    office.clock.advance(2 * DELIVER_S)
    askers.go_on()
    office.deliver()
    assert office.letters.written == len(office.delivered()) == 1


@pytest.mark.parametrize("fate", [Fate.DOUBT, Fate.DOUBT_AND_DROP, Fate.LOSE_REPORT, Fate.DROP])
def test_a_letter_whose_delivery_is_not_known_is_delivered_again(fate: Fate) -> None:
    office = Office()
    office.write(b"x", "why")
    office.faults.decide = lambda append: fate
    assert not office.letters.are_delivered()
    office.faults.decide = always_pass
    office.deliver()
    assert {letter.offset for letter in office.delivered()} == {0}
    assert office.letters.written == 1


def test_a_log_of_letters_that_is_missing_is_an_error_and_no_wait() -> None:
    office = Office()
    office.letters = DeadLetters(office.faults, "missing", office.clock, InlineExecutor())
    office.write(b"x", "why")
    with pytest.raises(UnknownTopic, match="topics create"):
        office.deliver()


def test_letters_beyond_the_bound_are_refused_until_the_broker_takes_some() -> None:
    office = Office()
    office.write(b"first", "why")
    office.faults.decide = lambda append: Fate.DROP
    office.write(bytes(LETTERS_BYTES_MAX), "why")
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="2 dead letters wait"):
            office.write(b"too many", "why")
    office.faults.decide = always_pass
    office.write(b"second", "why")
    assert office.letters.written == 2
    office.deliver()
    values = [letter.value for letter in office.delivered()]
    assert values == [b"first", None, b"second"]


def test_only_letters_that_the_broker_found_too_large_lose_their_bytes() -> None:
    office = Office(record_bytes_max=2_000)
    office.write(b"small", "first")
    office.write(bytes(3_000), "second")
    office.deliver()
    values = {letter.offset: letter.value for letter in office.delivered()}
    assert values == {0: b"small", 1: None}
    assert not any("too many" in x.detail for x in office.delivered() if x.offset == 0)


@pytest.mark.parametrize("value", [b"small", bytes(3_000), bytes(RECORD_BYTES_MAX)])
def test_a_topic_that_takes_no_letter_is_an_error_and_no_wait(value: bytes) -> None:
    office = Office(record_bytes_max=20)
    office.write(value, "why")
    with pytest.raises(RecordTooLarge, match="the topic takes 20"):
        office.deliver()
    assert office.letters.written == 0


def test_a_flood_of_letters_is_a_line_a_minute_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    office = Office()
    for _ in range(2_000):
        office.write(b"x", "torn")
    office.clock.advance(LOG_EVERY_S)
    office.write(b"x", "torn")
    office.write(b"x", "torn")
    office.letters.close()
    lines = [line for line in caplog.messages if "dead letters" in line]
    assert [line.split()[0] for line in lines] == ["1", "2000", "1"]


class SlowlyCounted(bytes):
    """Once it is sent, a thread that counts these bytes stands still until the loop went on."""

    def __init__(self, value: bytes) -> None:
        self.sent = False
        self.counting, self.goes_on = threading.Event(), threading.Event()
        self._loop = threading.get_ident()

    def __len__(self) -> int:
        if self.sent and threading.get_ident() != self._loop:
            self.counting.set()
            assert self.goes_on.wait(WAIT_S)
        return super().__len__()


def test_letters_that_come_while_others_are_delivered_count_towards_the_bound() -> None:
    with ThreadPoolExecutor(1) as askers:
        office, quarter = Office(askers=askers), bytes(LETTERS_BYTES_MAX // 4)
        first = SlowlyCounted(quarter)

        def sent(append: Append) -> Fate:
            first.sent = True
            return Fate.PASS

        office.faults.decide = sent
        office.write(first, "why")
        assert not office.letters.are_delivered()
        askers.submit(first.counting.set)
        assert first.counting.wait(WAIT_S)
        office.write(quarter, "while the first one is counted")
        first.goes_on.set()
        while not office.letters.are_delivered():
            askers.submit(len, "").result()  # Behind the delivery.
        assert office.letters.written == 2
        office.faults.decide = lambda append: Fate.DROP
        for _ in range(4):
            office.write(quarter, "why")
        with pytest.raises(BrokerUnavailable, match="4 dead letters wait"):
            office.write(quarter, "too many")
