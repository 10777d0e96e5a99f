"""What a reader makes of errors among what librdkafka returns at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import PermanentBrokerError
from rollstream.streams.kafka.reader import KafkaReader

LEFT, RIGHT = TopicPartition("t", 0), TopicPartition("t", 1)


def message(where: TopicPartition, offset: int, code: int | None = None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message(*where, offset=offset, value=b"v", error=error, timestamp=(2, 1))


class Client:
    """A consumer of librdkafka that has fetched these messages; what it was told to read anew is
    dropped, and comes again as ``again``."""

    def __init__(self, fetched: Sequence[Message], again: Sequence[Message] = ()) -> None:
        self._fetched, self._again = list(fetched), list(again)

    def incremental_assign(self, positions: list[Any]) -> None:
        assigned = {(p.topic, p.partition): p.offset for p in positions}
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

    return KafkaReader(make, starts)


def offsets(reader: KafkaReader, records_max: int = 100) -> list[tuple[int, int]]:
    return [(r.partition, r.offset) for r in reader.poll(records_max, 0.0)]


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION])
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


def test_a_partition_is_read_on_where_it_failed_once_it_is_mended() -> None:
    fetched = [message(LEFT, 5, KafkaError._BAD_MSG), message(LEFT, 8)]
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
