"""What a reader makes of errors among what librdkafka returns at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message

from harness.librdkafka import Outages, metadata_of
from rollstream.runtime.clock import SystemClock
from rollstream.streams.broker import END, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    DamagedRecord,
    OffsetLost,
    PermanentBrokerError,
    UnknownTopic,
)
from rollstream.streams.kafka.reader import KafkaReader

LEFT, RIGHT = TopicPartition("t", 0), TopicPartition("t", 1)


def message(where: TopicPartition, offset: int, code: int | None = None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message(*where, offset=offset, value=b"v", error=error, timestamp=(2, 1))


class Client:
    """A consumer of librdkafka that has fetched these messages; what it was told to read anew is
    dropped, and comes again as ``again``."""

    def __init__(self, fetched: Sequence[Message] = (), again: Sequence[Message] = ()) -> None:
        self._fetched, self._again = list(fetched), list(again)
        self.assigned: dict[tuple[str, int], int] = {}
        self.topics: dict[str, int | None] | None = {"t": None}  # None: no answer.
        self.times: dict[int, int] = {OFFSET_BEGINNING: 3, OFFSET_END: 9}

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        if self.topics is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return metadata_of({topic: self.topics.get(topic, KafkaError.UNKNOWN_TOPIC_OR_PART)})

    def offsets_for_times(self, positions: list[Any], timeout_s: float) -> list[Any]:
        if self.topics is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for one in positions:
            if one.topic not in self.topics:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
            if code := self.topics.get(one.topic):
                return [SimpleNamespace(topic=one.topic, partition=0, error=KafkaError(code))]
            one.offset = self.times.get(one.offset, -1)
        return positions

    def fetch(self, messages: Sequence[Message]) -> None:
        self._fetched += messages

    def incremental_assign(self, positions: list[Any]) -> None:
        assigned = {(p.topic, p.partition): p.offset for p in positions}
        self.assigned |= assigned
        self._fetched += [
            m for m in self._again if assigned.get((m.topic(), m.partition())) == m.offset()
        ]

    def incremental_unassign(self, positions: list[Any]) -> None:
        dropped = {(p.topic, p.partition) for p in positions}
        self._fetched = [m for m in self._fetched if (m.topic(), m.partition()) not in dropped]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        taken, self._fetched = self._fetched[:count], self._fetched[count:]
        return taken


def reader_of(client: Client, starts: dict[TopicPartition, int]) -> KafkaReader:
    def make() -> Any:
        return client

    return KafkaReader(make, starts, Outages())


def offsets(reader: KafkaReader, records_max: int = 100) -> list[tuple[int, int]]:
    return [(r.partition, r.offset) for r in reader.poll(records_max, 0.0)]


@pytest.mark.parametrize("code", [KafkaError._UNDERFLOW, KafkaError._BAD_COMPRESSION])
@pytest.mark.parametrize("records_max", [2, 100])
def test_nothing_behind_bytes_that_cannot_be_decoded_is_returned(
    code: int, records_max: int
) -> None:
    fetched = [
        message(LEFT, 4),
        message(LEFT, 5, code),
        message(LEFT, 6),
        message(RIGHT, 0),
        message(LEFT, 7, KafkaError._PARTITION_EOF),
    ]
    client = Client(fetched, again=[message(LEFT, 5, code)])
    reader = reader_of(client, {LEFT: 4, RIGHT: 0})
    found, said = list[tuple[int, int]](), list[str]()
    for _ in range(8):
        try:
            found += offsets(reader, records_max)
        except PermanentBrokerError as error:
            said.append(str(error))
    assert len(said) > 1, "again at each call that reads there"
    assert "no records; restore it" in said[0]
    assert found == [(0, 4), (1, 0)]
    assert reader.read_to(LEFT) == 5


GARBAGE = 432_345_564_227_567_632  # What librdkafka takes for an offset behind a damaged batch.


@pytest.mark.parametrize("behind", [KafkaError._NOT_IMPLEMENTED, KafkaError.OFFSET_OUT_OF_RANGE])
def test_a_batch_whose_checksum_differs_is_fetched_three_times_and_then_told(behind: int) -> None:
    again = [message(LEFT, 5, KafkaError._BAD_MSG), message(LEFT, GARBAGE, behind)]
    client = Client([message(LEFT, 4), *again, message(RIGHT, 0)], again=again[:1])
    reader = reader_of(client, {LEFT: 4, RIGHT: 0})
    assert offsets(reader) == [(0, 4), (1, 0)]
    for _ in range(2):
        client.fetch([message(LEFT, GARBAGE, behind)])
        assert offsets(reader) == []
    with pytest.raises(DamagedRecord) as raised:
        offsets(reader)
    assert (raised.value.where, raised.value.offset) == (LEFT, 5)


def test_a_batch_that_is_delivered_after_all_was_not_damaged() -> None:
    fetched = [message(LEFT, 5, KafkaError._BAD_MSG), message(LEFT, 8)]
    reader = reader_of(Client(fetched, again=[message(LEFT, 5)]), {LEFT: 4})
    assert offsets(reader) == []
    assert offsets(reader) == [(0, 5)]


def test_a_partition_is_read_on_where_it_failed_once_it_is_mended() -> None:
    fetched = [message(LEFT, 5, KafkaError._UNDERFLOW), message(LEFT, 8)]
    reader = reader_of(Client(fetched, again=[message(LEFT, 5)]), {LEFT: 4})
    with pytest.raises(PermanentBrokerError):
        offsets(reader)
    assert offsets(reader) == [(0, 5)]


def test_of_a_batch_that_cannot_be_decoded_only_what_was_wanted_is_read_again() -> None:
    fetched = [message(LEFT, 0, KafkaError._BAD_COMPRESSION), message(LEFT, 8)]
    reader = reader_of(Client(fetched, again=[message(LEFT, 0), message(LEFT, 4)]), {LEFT: 4})
    with pytest.raises(PermanentBrokerError):
        offsets(reader)
    assert offsets(reader) == [(0, 4)]


def test_a_lost_offset_is_told_at_every_poll_until_the_reader_goes_elsewhere() -> None:
    lost = message(LEFT, 4, KafkaError._AUTO_OFFSET_RESET)
    client = Client([message(RIGHT, 0), lost], again=[message(LEFT, 6)])
    reader = reader_of(client, {LEFT: 4, RIGHT: 0})
    assert offsets(reader) == [(1, 0)], "first what was read"
    for _ in range(2):
        with pytest.raises(OffsetLost) as told:
            offsets(reader)
        assert (told.value.wanted, told.value.first, told.value.end) == (4, 3, 9)
    reader.seek(LEFT, 6)
    assert offsets(reader) == [(0, 6)]


def test_a_loss_from_before_a_seek_concerns_nobody() -> None:
    late = [message(LEFT, 4, KafkaError.OFFSET_OUT_OF_RANGE), message(LEFT, 6)]
    client = Client()
    reader = reader_of(client, {LEFT: 4})
    assert offsets(reader) == []
    reader.seek(LEFT, 6)
    client.fetch(late)
    assert offsets(reader) == [(0, 6)]
    assert offsets(reader) == []


def test_it_is_known_up_to_where_all_was_read_and_a_seek_forgets_it() -> None:
    reader = reader_of(Client([message(LEFT, 7, KafkaError._PARTITION_EOF)]), {LEFT: 4})
    assert reader.read_to(LEFT) == 4
    assert offsets(reader) == []
    assert reader.read_to(LEFT) == 7
    reader.seek(LEFT, 5)
    assert reader.read_to(LEFT) == 5


def test_the_end_is_that_of_the_first_poll_and_bounds_alone_read_nothing() -> None:
    client = Client()
    reader = reader_of(client, {LEFT: END, RIGHT: 2})
    assert reader.bounds(RIGHT, 1.0) == (3, 9)
    assert client.assigned == {}
    assert offsets(reader) == []
    assert client.assigned == {LEFT: 9, RIGHT: 2}


def test_the_first_idle_poll_finds_out_that_a_topic_is_missing() -> None:
    client = Client()
    reader = reader_of(client, {LEFT: 0})
    client.topics = None
    assert reader.poll(1, 0.01) == [], "no answer: the caller's own deadline passes"
    client.topics = {}
    with pytest.raises(UnknownTopic, match="topics create"):
        reader.poll(1, 0.01)
    client.topics = {"t": None}
    assert reader.poll(1, 0.01) == []
    client.topics = {}
    assert reader.poll(1, 0.01) == [], "what was there is not asked for again"


def test_a_topic_that_is_there_is_not_asked_for_again_where_a_paused_log_goes_on() -> None:
    client = Client()
    reader = reader_of(client, {LEFT: 0})
    assert reader.poll(1, 0.01) == []
    client.topics = {}  # It would be told missing.
    reader.pause(LEFT)
    reader.seek(LEFT, 0)
    assert reader.poll(1, 0.01) == []


def test_the_bounds_of_what_is_missing_and_of_what_cannot_be_asked_are_told_apart() -> None:
    client = Client()
    reader = reader_of(client, {LEFT: 0})
    client.topics = {}
    with pytest.raises(UnknownTopic):
        reader.bounds(LEFT, 1.0)
    client.topics = None
    with pytest.raises(BrokerUnavailable, match=r"offsets of t\[0\]"):
        reader.bounds(LEFT, 1.0)


def test_a_time_is_rounded_up_and_beyond_the_last_record_is_the_end() -> None:
    client = Client()
    client.times = {2: 5}  # By milliseconds.
    reader = reader_of(client, {LEFT: 0})
    found = [reader.offsets_at({LEFT: 9}, us, 1.0)[LEFT] for us in (1_001, 2_000, 2_001)]
    assert found == [5, 5, 9]


def test_the_bounds_of_many_logs_are_two_questions_and_one_without_an_answer_is_named() -> None:
    client = Client()
    reader = reader_of(client, {})
    assert reader.all_bounds([LEFT, RIGHT], 1.0) == {LEFT: (3, 9), RIGHT: (3, 9)}
    client.topics = {"t": KafkaError.LEADER_NOT_AVAILABLE}
    with pytest.raises(BrokerUnavailable, match=r"offsets of 2 logs: t\[0\]: .*Leader"):
        reader.all_bounds([LEFT, RIGHT], 0.1)
    client.topics = None
    with pytest.raises(BrokerUnavailable, match="offsets of 2 logs"):
        reader.all_bounds([LEFT, RIGHT], 0.1)
    assert reader.all_bounds([], 0.1) == {}, "which asks nobody"


class SlowClient(Client):
    """A broker that answers after so many seconds, where it is waited for."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self.after_s = after_s
        self.attempts: list[float] = []

    def offsets_for_times(self, positions: list[Any], timeout_s: float) -> list[Any]:
        self.attempts.append(timeout_s)
        SystemClock().wait(threading.Event(), min(timeout_s, self.after_s))
        if timeout_s < self.after_s:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().offsets_for_times(positions, timeout_s)


def test_a_slow_broker_is_given_longer_though_one_was_away_before() -> None:
    client = SlowClient(after_s=1.5)
    reader = KafkaReader(lambda: cast(Any, client), {}, Outages("it was away"))
    assert reader.bounds(TopicPartition("t", 0), 60.0) == (3, 9)
    assert len(client.attempts) == 3, "one in vain, then one for each of two questions"
