"""A real broker that is killed with -9 under an owner, and starts again over its data."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from harness.brokers import LOG_CONFIG, TIMEOUT_S, commit, new_topic, until
from harness.halting import halted
from harness.kafka import KafkaFactory
from harness.sampler_worlds import LocalWorld, config_of, new_name
from harness.seal_events import flushed
from harness.sealed_state import digest_of
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import NotEnoughGroups
from rollstream.store.open import open_store
from rollstream.streams.broker import GroupReader, LogReader, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, DeliveryUnknown, OffsetLost
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.kafka.faults import OVER_AFTER_S, REFUSED_OVER_AFTER_S
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import OwnedLog

AWAY_S = 4.0


@pytest.mark.broker
def test_bounds_that_are_asked_while_the_broker_is_killed_are_not_known_yet(
    own_kafka: KafkaFactory,
) -> None:
    kafka = own_kafka()
    broker = KafkaBroker(kafka.bootstrap)
    where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
    reader = broker.reader({where: 0})
    assert reader.bounds(where, TIMEOUT_S) == (0, 0)
    kafka.kill()
    deadline = Deadline(AWAY_S)
    while not deadline.passed():  # It says several things in turn, each for a while.
        with pytest.raises(BrokerUnavailable):
            reader.bounds(where, 0.1)
        assert reader.poll(10, 0.05) == []
    kafka.start()
    deadline = Deadline(TIMEOUT_S)
    while not _known(reader, where):
        assert not deadline.passed()
    broker.close()


@pytest.mark.broker
@pytest.mark.proves("F24")
def test_a_member_polls_on_while_its_broker_answers_nothing(own_kafka: KafkaFactory) -> None:
    kafka = own_kafka()
    with KafkaBroker(kafka.bootstrap) as broker:
        where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
        member = broker.group_reader("g", [where.topic], on_revoked=lambda _: None)
        until(lambda: where in member.assigned(), lambda: member.poll(1, 0.05))
        member.begin(where, 0)
        assert commit(member, where, 1)
        with halted(kafka.pid):
            answer = member.commit(where, 2, "")
            for _ in range(10):
                assert member.poll(10, 0.05) == []
            assert not answer.done(), f"it was answered: {answer}"
            with pytest.raises(BrokerUnavailable):
                broker.admin().committed("g", [where], AWAY_S)
        until(
            lambda: where in member.assigned() and commit(member, where, 3),
            lambda: member.poll(1, 0.05),
        )


@pytest.mark.broker
@pytest.mark.proves("F24")
def test_a_member_that_lost_an_offset_polls_on_while_its_broker_answers_nothing(
    own_kafka: KafkaFactory,
) -> None:
    kafka = own_kafka()
    with KafkaBroker(kafka.bootstrap) as broker:
        where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
        member = broker.group_reader("g", [where.topic], on_revoked=lambda _: None)
        until(lambda: where in member.assigned(), lambda: member.poll(1, 0.05))
        member.begin(where, 5)
        with pytest.raises(OffsetLost):
            until(lambda: False, lambda: member.poll(1, 0.05))
        with halted(kafka.pid):
            polls = Deadline(AWAY_S)
            for _ in range(10):
                assert member.poll(10, 0.05) == []
        assert not polls.passed(), "it waited for an answer"
        with pytest.raises(OffsetLost):
            until(lambda: False, lambda: _poll_again(member))


def _poll_again(member: GroupReader) -> None:
    with suppress(BrokerUnavailable):
        member.poll(1, 0.05)


def _known(reader: LogReader, where: TopicPartition) -> bool:
    try:
        return reader.bounds(where, 1.0) == (0, 0)
    except BrokerUnavailable:
        return False


@pytest.mark.broker
@pytest.mark.proves("F17")
def test_who_only_asks_for_bounds_says_that_the_broker_is_away(
    own_kafka: KafkaFactory, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = own_kafka()
    broker = KafkaBroker(kafka.bootstrap)
    where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
    reader = broker.reader({where: 0})
    assert reader.bounds(where, TIMEOUT_S) == (0, 0)
    kafka.kill()
    with pytest.raises(BrokerUnavailable, match="refused; does Kafka run there"):
        reader.bounds(where, AWAY_S)
    assert "refused" in broker.outage()
    assert f"Kafka at {kafka.bootstrap} cannot be reached" in caplog.text
    kafka.start()
    until(lambda: _known(reader, where))
    assert broker.outage() == ""
    broker.close()


@pytest.mark.broker
@pytest.mark.proves("F1")
def test_an_owner_goes_on_after_its_broker_was_killed(own_kafka: KafkaFactory) -> None:
    kafka = own_kafka()
    broker = KafkaBroker(kafka.bootstrap)
    where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
    log = OwnedLog(
        broker,
        where,
        owner="a",
        make_fold=lambda: SealFold(dedupe_horizon=100),
        entropy=SystemEntropy(),
    )
    fold = log.claim(Deadline(TIMEOUT_S))
    log.wait_confirmed(
        log.append(flushed(log.epoch, log.nonce, range(10), 10)), Deadline(TIMEOUT_S)
    )
    kafka.kill()
    doubtful = log.append(flushed(log.epoch, log.nonce, range(10, 20), 20))
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(doubtful, Deadline(1.0))
    kafka.start()
    assert log.claim(Deadline(2 * TIMEOUT_S)) is fold
    assert fold.watermark in (10, 20)  # What the broker had acknowledged, and perhaps the other.
    start = fold.watermark
    more = flushed(log.epoch, log.nonce, range(start, start + 10), start + 10)
    log.wait_confirmed(log.append(more), Deadline(TIMEOUT_S))
    read = SealFold(dedupe_horizon=100)
    for confirmed in Follower(broker, {where: 0}).read_to_end(Deadline(TIMEOUT_S)):
        read.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
    assert digest_of(read) == digest_of(fold)
    broker.close()


@pytest.mark.broker
@pytest.mark.proves("F17")
def test_an_outage_is_over_when_any_client_reaches_the_broker_again(
    own_kafka: KafkaFactory,
) -> None:
    kafka = own_kafka()
    broker = KafkaBroker(kafka.bootstrap)
    where = TopicPartition(new_topic(broker, 1, LOG_CONFIG), 0)
    reader, writer = broker.reader({where: 0}), broker.writer()
    assert reader.bounds(where, TIMEOUT_S) == (0, 0)
    kafka.kill()
    until(lambda: bool(broker.outage()), lambda: reader.poll(10, 0.05))
    kafka.start()
    writer.append(where.topic, b"x", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    assert broker.outage() == ""
    until(lambda: bool(reader.poll(10, 0.05)))
    assert broker.outage() == ""
    broker.close()


@pytest.mark.broker
@pytest.mark.proves("F17")
def test_a_trainer_is_told_what_it_lacks_soon_after_the_broker_is_back(
    own_kafka: KafkaFactory, tmp_path: Path
) -> None:
    kafka = own_kafka()
    broker, root = KafkaBroker(kafka.bootstrap), f"file://{tmp_path}"
    world = LocalWorld(
        broker, open_store(root), config_of(root, new_name(), bootstrap=kafka.bootstrap)
    )
    sampler = world.open()
    sampler.resume(None)
    told: list[Exception] = []

    def ask() -> None:
        with pytest.raises((BrokerUnavailable, NotEnoughGroups)) as caught:
            sampler.next_batch(0, 1, timeout_s=0.5)
        told.append(caught.value)

    def is_told(kind: type[Exception], sentence: str) -> bool:
        return isinstance(told[-1], kind) and sentence in str(told[-1])

    ask()
    assert is_told(NotEnoughGroups, "")
    kafka.kill()
    until(lambda: is_told(BrokerUnavailable, "refused"), ask)
    kafka.start()
    assert REFUSED_OVER_AFTER_S < TIMEOUT_S < OVER_AFTER_S, "what it is told ends with the refusals"
    until(lambda: is_told(NotEnoughGroups, ""), ask)
    world.close()
