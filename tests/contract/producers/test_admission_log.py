"""The contract of ``AdmissionLog``, in memory and on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from harness.admission import announce, announced, granted
from harness.brokers import COMPACTED, LOG_CONFIG, TIMEOUT_S, World, write
from rollstream.producers.admission.following import FollowedAdmission
from rollstream.producers.admission.log import AdmissionLog
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Finished
from rollstream.streams.broker import Broker, TopicPartition, TopicSpec
from rollstream.streams.errors import UnknownTopic

SHORT_S = 0.3  # For what must not come.


@pytest.fixture
def broker(world: World) -> Broker:
    return world.broker()


@pytest.fixture
def topic(world: World) -> str:
    return world.topic()


@pytest.fixture
def log(broker: Broker, topic: str) -> Iterator[FollowedAdmission]:
    with closing(FollowedAdmission(broker, topic, SystemClock())) as made:
        yield made


def read_until(log: AdmissionLog, seen: int, steps: dict[str, int]) -> int:
    """Waits until these are the newest steps by sampler."""
    while {sampler: one.step for sampler, one in log.policies().items()} != steps:
        before, seen = seen, log.wait(seen, TIMEOUT_S)
        assert seen != before, log.policies()
    return seen


def test_an_empty_log_is_read_at_once_and_has_nothing(log: FollowedAdmission) -> None:
    seen = log.wait(0, TIMEOUT_S)
    assert seen != 0
    assert (dict(log.policies()), dict(log.shares())) == ({}, {})
    assert log.wait(seen, SHORT_S) == seen


def test_the_first_wait_returns_when_all_was_read(
    log: FollowedAdmission, broker: Broker, topic: str
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
    log: FollowedAdmission, broker: Broker, topic: str
) -> None:
    announce(broker, topic, announced(1))
    seen = read_until(log, 0, {"a": 1})
    announce(broker, topic, announced(2))
    read_until(log, seen, {"a": 2})


def test_what_is_in_the_log_at_a_call_is_known_after_it(
    log: FollowedAdmission, broker: Broker, topic: str
) -> None:
    seen = log.wait(0, TIMEOUT_S)
    for step in range(5):
        announce(broker, topic, announced(step))
        seen = read_until(log, seen, {"a": step})


def test_the_policy_with_the_highest_offset_holds_whoever_writes_last(
    log: FollowedAdmission, broker: Broker, topic: str
) -> None:
    newest = announced(5, offset=90, policy_epoch=1)
    zombie = announced(8, offset=70)
    announce(broker, topic, newest, zombie)
    seen = read_until(log, 0, {"a": 5})
    announce(broker, topic, zombie)
    assert log.wait(seen, SHORT_S) == seen
    assert log.policies()["a"].policy_epoch == 1


def test_the_shares_with_the_highest_epoch_and_number_hold(
    log: FollowedAdmission, broker: Broker, topic: str
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
    with closing(FollowedAdmission(broker, topic, clock)) as log:
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
    with closing(FollowedAdmission(broker, topic, SystemClock())) as log:
        seen = read_until(log, 0, {"a": 4})
        assert log.shares()["a"].shares.number == 4
        announce(broker, topic, announced(5))
        read_until(log, seen, {"a": 5})


def test_a_log_that_was_made_anew_is_read_from_its_beginning(
    log: FollowedAdmission, world: World, broker: Broker, topic: str
) -> None:
    announce(broker, topic, *(announced(step) for step in range(5)))
    seen = read_until(log, 0, {"a": 4})
    world.cut_back(TopicPartition(topic, 0), 1)
    announce(broker, topic, announced(9))
    read_until(log, seen, {"a": 9})


def test_what_cannot_be_read_is_passed_over_counted_and_said_once(
    log: FollowedAdmission, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
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
    with closing(FollowedAdmission(broker, topic, SystemClock())) as log:
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


def test_a_close_ends_every_wait_and_may_be_repeated(log: FollowedAdmission) -> None:
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
    with closing(FollowedAdmission(broker, topic, SystemClock())) as log:
        assert dict(log.policies()) == {}
        assert {*threading.enumerate()} <= before
