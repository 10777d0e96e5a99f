"""Kafka's side alone: a broker that does not answer, and one that throws a member out."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from harness.brokers import TIMEOUT_S, KafkaWorld, nobody_listens, until
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Delivery, GroupReader, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
)
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.kafka.properties import QUEUED_KIB_MAX

MIB = 1024 * 1024


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.proves("I8")
def test_a_writer_whose_broker_is_away_fills_up_to_its_bound_and_is_thrown_away(
    nobody: str,
) -> None:
    writer, reports = KafkaBroker(nobody).writer(), list[Delivery]()
    taken = QUEUED_KIB_MAX // 1024
    for _ in range(taken):
        writer.append("topic", b"x" * MIB, on_delivery=reports.append)
    with pytest.raises(BufferFull, match="poll makes room"):
        writer.append("topic", b"x" * MIB, on_delivery=reports.append)
    assert writer.flush(0.1) == taken
    writer.abandon()
    assert [type(report.error) for report in reports] == [DeliveryUnknown] * taken


def test_questions_to_a_broker_that_is_away_end_at_their_deadline(nobody: str) -> None:
    where = TopicPartition("topic", 0)
    broker = KafkaBroker(nobody)
    reader = broker.reader({where: 0})
    with pytest.raises(BrokerUnavailable):
        reader.bounds(where, 0.2)
    assert reader.poll(10, 0.2) == []
    with pytest.raises(BrokerUnavailable, match=rf"{nobody}.*the bootstrap address"):
        broker.admin().describe(["topic"], 0.2)
    broker.close()


@pytest.fixture
def refused() -> Iterator[str]:
    """An address where nobody listens."""
    with nobody_listens() as address:
        yield address


@pytest.mark.proves("F17")
@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("", r"refused; does Kafka run there\?"),
        ("no-such-host.invalid:9092", "correct the host in this address"),
    ],
    ids=["refused", "not resolved"],
)
def test_broker_that_refuses_or_is_not_resolved_is_known_long_before_the_deadline(
    refused: str, address: str, cause: str
) -> None:
    long = Deadline(1000 * TIMEOUT_S)
    with pytest.raises(BrokerUnavailable, match=cause):
        KafkaBroker(address or refused).admin().reach(long.timeout_s)
    assert long.left_s() > 900 * TIMEOUT_S


@pytest.mark.proves("F17")
def test_broker_that_takes_connections_and_says_nothing_is_told_apart(nobody: str) -> None:
    with pytest.raises(BrokerUnavailable, match=rf"{nobody} does not answer within 0\.3 s"):
        KafkaBroker(nobody).admin().reach(0.3)


@pytest.mark.proves("F17")
def test_client_whose_broker_cannot_be_reached_says_so_at_once(
    refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = KafkaBroker(refused).reader({TopicPartition("topic", 0): 0})
    sentence = f"Kafka at {refused} cannot be reached"
    until(lambda: sentence in caplog.text, lambda: reader.poll(1, 0.1))
    reader.close()


def test_the_client_is_silent_unless_somebody_listens(
    refused: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    writer = KafkaBroker(refused).writer()
    writer.append("topic", b"x")
    with caplog.at_level(logging.DEBUG, "rollstream.kafka"):
        until(lambda: bool(caplog.records), lambda: writer.poll(0.1))
    writer.abandon()
    assert capfd.readouterr().err == ""


@pytest.mark.broker
def test_a_member_that_stopped_polling_has_nothing_when_it_wakes(kafka_bootstrap: str) -> None:
    world = KafkaWorld(kafka_bootstrap)
    topic = world.topic()
    where = TopicPartition(topic, 0)
    impatient = {"session.timeout.ms": "1500", "max.poll.interval.ms": "1500"}
    revoked: list[TopicPartition] = []
    zombie: GroupReader = KafkaBroker(kafka_bootstrap, impatient).group_reader(
        topic, [topic], on_revoked=revoked.append
    )
    until(lambda: bool(zombie.assigned()), lambda: zombie.poll(1, 0.05))
    zombie.begin(where, 0)
    successor = world.broker().group_reader(topic, [topic], on_revoked=lambda _: None)
    until(lambda: bool(successor.assigned()), lambda: successor.poll(1, 0.05))
    assert zombie.assigned() == {where}  # It has not polled, so it does not know.
    assert revoked == []
    answer = zombie.commit(where, 5, "")
    until(lambda: revoked == [where], lambda: zombie.poll(1, 0.05))
    assert zombie.assigned() == frozenset()
    until(answer.done, lambda: zombie.poll(1, 0.05))
    assert not answer.result()
    zombie.close()
    world.close()
