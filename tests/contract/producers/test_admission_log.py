"""The contract of ``AdmissionLog``, in memory and on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from harness.admission import announce, announced, granted, share, valid
from harness.brokers import COMPACTED, LOG_CONFIG, TIMEOUT_S, World, until, write
from rollstream.producers.admission.log import AdmissionLog
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Finished, SharesGranted
from rollstream.streams.broker import Broker, TopicPartition, TopicSpec
from rollstream.streams.errors import UnknownTopic
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, shares_topic

ME = "p"
SHORT_S = 0.3  # For what must not come.


@pytest.fixture
def broker(world: World) -> Broker:
    return world.broker()


@pytest.fixture
def topic(world: World) -> str:
    return world.topic()


@pytest.fixture
def log(broker: Broker, topic: str) -> Iterator[AdmissionLog]:
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as made:
        yield made


def read_until(log: AdmissionLog, seen: int, steps: dict[str, int]) -> int:
    """Waits until these are the newest steps by sampler."""
    while {sampler: one.step for sampler, one in log.policies().items()} != steps:
        before, seen = seen, log.wait(seen, TIMEOUT_S)
        assert seen != before, log.policies()
    return seen


def test_an_empty_log_is_read_at_once_and_has_nothing(log: AdmissionLog) -> None:
    seen = log.wait(0, TIMEOUT_S)
    assert seen != 0
    assert (dict(log.policies()), dict(log.shares())) == ({}, {})
    assert log.wait(seen, SHORT_S) == seen


def test_the_first_wait_returns_when_all_was_read(
    log: AdmissionLog, broker: Broker, topic: str
) -> None:
    announce(broker, topic, *(announced(step) for step in range(40)), announced(7, sampler="b"))
    announce(broker, topic, granted(3, {"p": 5}))
    log.wait(0, TIMEOUT_S)
    assert {name: policy.step for name, policy in log.policies().items()} == {"a": 39, "b": 7}
    policy = log.policies()["a"]
    assert (policy.policy_version, policy.weights) == ("step-39", "/weights/39")
    shares = log.shares()["a"].shares
    assert (shares.producer_ids, shares.totals.tolist()) == (("p",), [5])


def test_a_wait_returns_when_something_new_was_read(
    log: AdmissionLog, broker: Broker, topic: str
) -> None:
    announce(broker, topic, announced(1))
    seen = read_until(log, 0, {"a": 1})
    announce(broker, topic, announced(2))
    read_until(log, seen, {"a": 2})


def test_what_is_in_the_log_at_a_call_is_known_after_it(
    log: AdmissionLog, broker: Broker, topic: str
) -> None:
    seen = log.wait(0, TIMEOUT_S)
    for step in range(5):
        announce(broker, topic, announced(step))
        seen = read_until(log, seen, {"a": step})


def test_the_policy_with_the_highest_offset_holds_whoever_writes_last(
    log: AdmissionLog, broker: Broker, topic: str
) -> None:
    newest = announced(5, offset=90, policy_epoch=1)
    zombie = announced(8, offset=70)
    announce(broker, topic, newest, zombie)
    seen = read_until(log, 0, {"a": 5})
    announce(broker, topic, zombie)
    assert log.wait(seen, SHORT_S) == seen
    assert log.policies()["a"].policy_epoch == 1


def test_the_shares_with_the_highest_epoch_and_number_hold(
    log: AdmissionLog, broker: Broker, topic: str
) -> None:
    announce(broker, topic, granted(1, {"p": 9}, epoch=7), granted(50, {"p": 8}, epoch=3))
    seen = log.wait(0, TIMEOUT_S)
    assert log.shares()["a"].shares.totals.tolist() == [9]
    announce(broker, topic, granted(2, {"p": 4}, epoch=7))
    while log.shares()["a"].shares.number != 2:
        seen = log.wait(seen, TIMEOUT_S)


def test_shares_are_valid_from_when_they_were_read_first(broker: Broker, topic: str) -> None:
    clock = ManualClock()
    announce(broker, topic, granted(1))
    with closing(AdmissionLog(broker, topic, ME, clock)) as log:
        seen = log.wait(0, TIMEOUT_S)
        read_s = log.shares()["a"].read_s
        clock.advance(100)
        announce(broker, topic, granted(1), announced(1))
        while not log.policies():
            seen = log.wait(seen, TIMEOUT_S)
        assert log.shares()["a"].read_s == read_s


def test_a_compacted_log_is_read_over_its_gaps(world: World, broker: Broker) -> None:
    topic = world.topic(config=COMPACTED)
    for step in range(5):
        announce(broker, topic, announced(step), granted(step))
    world.compact(TopicPartition(topic, 0))
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as log:
        seen = read_until(log, 0, {"a": 4})
        assert log.shares()["a"].shares.number == 4
        announce(broker, topic, announced(5))
        read_until(log, seen, {"a": 5})


def test_a_log_that_was_made_anew_is_read_from_its_beginning(
    log: AdmissionLog, world: World, broker: Broker, topic: str
) -> None:
    announce(broker, topic, *(announced(step) for step in range(5)))
    seen = read_until(log, 0, {"a": 4})
    world.cut_back(TopicPartition(topic, 0), 1)
    announce(broker, topic, announced(9))
    read_until(log, seen, {"a": 9})


def test_what_cannot_be_read_is_passed_over_counted_and_said_once(
    log: AdmissionLog, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = TopicPartition(topic, 0)
    other = encode(Finished(epoch=0, nonce="", now_ts=0, trainer_epoch=0))
    torn = encode(announced(3))[:-1]
    write(broker, where, [b"", b"garbage", b"\xc3\x01" + bytes(20), other, torn], key=b"policy/a")
    announce(broker, topic, announced(1))
    read_until(log, 0, {"a": 1})
    assert log.unreadable == 5
    said = [line for line in caplog.messages if "passed over" in line]
    assert len(said) == 1
    assert f"{topic}[0], offset 0" in said[0]


def test_a_topic_that_is_missing_is_named_and_read_once_it_is_made(broker: Broker) -> None:
    topic = f"test.{uuid4().hex}"
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as log:
        with pytest.raises(UnknownTopic, match=topic):
            log.wait(0, TIMEOUT_S)
        broker.admin().create([TopicSpec(topic, 1, LOG_CONFIG)], TIMEOUT_S)
        announce(broker, topic, announced(1))
        seen = 0
        while not log.policies():
            try:
                seen = log.wait(seen, TIMEOUT_S)
            except UnknownTopic:  # The client may not know of it yet.
                continue
        assert log.policies()["a"].step == 1


def test_a_close_ends_every_wait_and_may_be_repeated(log: AdmissionLog) -> None:
    seen = log.wait(0, TIMEOUT_S)
    waits = [threading.Thread(target=log.wait, args=(seen, 1e6)) for _ in range(3)]
    for wait in waits:
        wait.start()
    log.close()
    log.close()
    for wait in waits:
        wait.join(TIMEOUT_S)
        assert not wait.is_alive()
    assert log.wait(seen, 1e6) == seen


def test_a_log_that_nobody_asked_has_no_thread(broker: Broker, topic: str) -> None:
    before = {*threading.enumerate()}
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as log:
        assert dict(log.policies()) == {}
        assert {*threading.enumerate()} <= before


@pytest.fixture
def newer(broker: Broker, topic: str) -> str:
    """The second generation of the topic."""
    name = shares_topic(topic)
    broker.admin().create([TopicSpec(name, SHARES_PARTITIONS, COMPACTED)], TIMEOUT_S)
    return name


MINE = partition_of(ME.encode(), SHARES_PARTITIONS)


def shares_until(log: AdmissionLog, total: int | None, sampler: str = "a") -> SharesGranted:
    """The sampler's newest shares, once this is what they let this producer begin."""
    seen, wanted = 0, [] if total is None else [total]
    while True:
        known = log.shares().get(sampler)
        if known is not None and known.shares.totals.tolist() == wanted:
            return known.shares
        before, seen = seen, log.wait(seen, TIMEOUT_S)
        assert seen != before, log.shares()


@pytest.mark.proves("F5")
def test_a_producer_reads_its_own_share_and_what_holds_for_all(
    log: AdmissionLog, broker: Broker, newer: str
) -> None:
    shares = {"another": share(3, 8), ME: share(4, 5, 2)}
    announce(broker, newer, announced(7), shares=shares, partition=MINE)
    announce(broker, newer, valid(2, limit="max_policy_lag", most=9), partition=MINE)
    found = shares_until(log, 5)
    assert (found.producer_ids, found.needed.tolist()) == ((ME,), [2])
    assert (found.valid_s, found.limit, found.most) == (30.0, "max_policy_lag", 9)
    assert log.policies()["a"].step == 7
    announce(broker, newer, shares={ME: share(5, 6)}, partition=MINE)
    assert shares_until(log, 6).needed.tolist() == [0]


@pytest.mark.proves("F5")
def test_a_producer_without_a_share_or_whose_share_was_removed_may_begin_nothing(
    log: AdmissionLog, broker: Broker, newer: str
) -> None:
    announce(broker, newer, valid(1), partition=MINE)
    assert shares_until(log, None).valid_s == 30.0
    announce(broker, newer, shares={ME: share(1, 6)}, partition=MINE)
    shares_until(log, 6)
    announce(broker, newer, shares={ME: None}, partition=MINE)
    shares_until(log, None)


@pytest.mark.proves("F5")
def test_a_share_with_the_highest_epoch_and_number_holds_whoever_writes_last(
    log: AdmissionLog, broker: Broker, newer: str
) -> None:
    announce(broker, newer, valid(1, epoch=7), shares={ME: share(2, 6, epoch=7)}, partition=MINE)
    shares_until(log, 6)
    for older in (share(90, 8, epoch=3), share(1, 9, epoch=7)):
        announce(broker, newer, valid(99, epoch=3), shares={ME: older}, partition=MINE)
    announce(broker, newer, valid(2, epoch=7), partition=MINE)
    while log.shares()["a"].shares.number != 2:
        log.wait(0, SHORT_S)
    assert log.shares()["a"].shares.totals.tolist() == [6]


@pytest.mark.proves("F5")
def test_until_a_sampler_writes_the_second_generation_the_first_one_holds(
    log: AdmissionLog, broker: Broker, topic: str, newer: str
) -> None:
    announce(broker, topic, announced(1), granted(8, {ME: 3}, epoch=4))
    shares_until(log, 3)
    assert log.policies()["a"].step == 1
    # It goes on writing the first one, for others.
    announce(broker, topic, granted(9, {"older": 3}, epoch=6))
    announce(broker, newer, valid(1, epoch=6), shares={ME: share(2, 5, epoch=6)}, partition=MINE)
    shares_until(log, 5)
    announce(broker, topic, granted(10, {"older": 4}, epoch=6))
    announce(broker, newer, announced(2), partition=MINE)
    read_until(log, 0, {"a": 2})
    assert log.shares()["a"].shares.totals.tolist() == [5]


def test_a_deployment_may_do_without_the_first_generation(broker: Broker) -> None:
    topic = f"test.{uuid4().hex}"
    spec = TopicSpec(shares_topic(topic), SHARES_PARTITIONS, COMPACTED)
    broker.admin().create([spec], TIMEOUT_S)
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as log:
        assert log.wait(0, TIMEOUT_S) != 0
        assert dict(log.policies()) == {}
        announce(broker, spec.name, announced(7), partition=MINE)
        read_until(log, 0, {"a": 7})


@pytest.mark.proves("F5")
def test_a_sampler_that_went_back_to_an_older_release_is_followed_again(
    broker: Broker, topic: str, newer: str
) -> None:
    clock = ManualClock()
    announce(broker, newer, valid(1, epoch=6), shares={ME: share(2, 5, epoch=6)}, partition=MINE)
    with closing(AdmissionLog(broker, topic, ME, clock)) as log:
        shares_until(log, 5)
        announce(broker, topic, granted(1, {ME: 7}, epoch=9))
        clock.advance(31.0)
        until(lambda: log.shares()["a"].shares.totals.tolist() == [7], lambda: log.wait(0, 0.0))
