"""What of the admission log only a made clock, or a broker that is away, can show."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from harness.admission import announce, announced, granted, share, valid
from harness.brokers import LOG_CONFIG, TIMEOUT_S, new_topic, until
from harness.producers import new_layout
from rollstream.producers import NoPolicy, RolloutProducer, RunOver
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.newest import LIVES_S
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.streams.broker import Record, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable, NotAuthorised
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, shares_topic

ME = "p"


class SilentBroker(MemoryBroker):
    """Nobody answers while it is away."""

    away = refuses = False

    def reader(self, starts: Mapping[TopicPartition, int], **kwargs: Any) -> MemoryReader:
        if self.refuses:
            raise BrokerUnavailable("offsets of the log: all connections are down")
        return super().reader(starts, **kwargs)

    def outage(self) -> str:
        return "nobody answers" if self.away else ""


class PolledBroker(MemoryBroker):
    """Knows which thread read last, and what was ever read."""

    polled_by: threading.Thread | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.read = set[TopicPartition]()

    def reader(self, starts: Mapping[TopicPartition, int], **kwargs: Any) -> MemoryReader:
        reader = super().reader(starts, **kwargs)
        self.read |= {*starts}
        poll = reader.poll

        def polled(records_max: int, timeout_s: float) -> list[Record]:
            self.polled_by = threading.current_thread()
            return poll(records_max, timeout_s)

        reader.poll = polled  # type: ignore[method-assign]
        return reader


def test_a_sampler_that_announced_nothing_for_long_is_left_out() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    topic = new_topic(broker, 1, LOG_CONFIG)
    announce(broker, topic, announced(5, sampler="old"))
    with closing(AdmissionLog(broker, topic, ME, clock)) as log:
        log.wait(0, TIMEOUT_S)
        assert set(log.policies()) == {"old"}
        clock.advance(LIVES_S)
        announce(broker, topic, announced(1, sampler="new"))
        log.wait(1, 1.0)
        assert set(log.policies()) == {"old", "new"}
        clock.advance(1.0)
        announce(broker, topic, announced(1, sampler="new"))
        log.wait(2, 1.0)
        assert set(log.policies()) == {"new"}
        announce(broker, topic, announced(5, sampler="old"))
        log.wait(2, 1.0)
        assert set(log.policies()) == {"old", "new"}


@pytest.mark.parametrize("lineage", ["", "b"])
def test_a_run_that_ended_long_ago_is_over_unless_its_lineage_goes_on(lineage: str) -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    layout = new_layout(broker)
    topic = layout.admission("math")
    announce(broker, topic, announced(5, sampler="old", over=True))
    clock.advance(LIVES_S + 1.0)
    announce(broker, topic, announced(1, sampler="new", lineage=lineage))
    with RolloutProducer(broker=broker, namespace=layout.namespace, environment="math") as producer:
        policy = producer.policy()  # One model is in training.
        assert policy.lineage == lineage
        if lineage:
            with pytest.raises(RunOver, match=r"sampler 'old' is over, .* 'step-5' \(step 5\)"):
                producer.policy(lineage="", timeout_s=0.0)
        with pytest.raises(NoPolicy, match=r"of lineage 'another' .* check that its") as told:
            producer.policy(lineage="another", timeout_s=0.0)
        assert not isinstance(told.value, RunOver)


def test_shares_that_the_log_holds_are_as_old_as_its_newest_record_says() -> None:
    """Whatever the worker's clock and the broker's are apart."""
    brokers, workers = ManualClock(now_us=1_000_000_000_000_000), ManualClock()
    broker = MemoryBroker(clock=brokers)
    topic = new_topic(broker, 1, LOG_CONFIG)
    announce(broker, topic, granted(1, sampler="dead"), granted(1))
    brokers.advance(20.0)
    announce(broker, topic, granted(2))
    workers.advance(1_000.0)
    with closing(AdmissionLog(broker, topic, ME, workers)) as log:
        seen = log.wait(0, TIMEOUT_S)
        now_s = workers.monotonic_s()
        read_s = {name: one.read_s for name, one in log.shares().items()}
        assert read_s == {"a": now_s, "dead": now_s - 20.0}
        brokers.advance(5.0)
        announce(broker, topic, granted(3))  # What comes now counts from when it is read.
        log.wait(seen, TIMEOUT_S)
        assert log.shares()["a"].read_s == now_s
        assert log.shares()["dead"].read_s == now_s - 20.0


def test_shares_before_which_the_brokers_clock_went_back_count_from_when_they_are_read() -> None:
    brokers, workers = ManualClock(now_us=1_000_000_000_000_000), ManualClock()
    broker = MemoryBroker(clock=brokers)
    topic = new_topic(broker, 1, LOG_CONFIG)
    announce(broker, topic, granted(1))
    brokers.advance(-1_000_000.0)
    announce(broker, topic, granted(1, sampler="b"))
    with closing(AdmissionLog(broker, topic, ME, workers)) as log:
        log.wait(0, TIMEOUT_S)
        assert {one.read_s for one in log.shares().values()} == {workers.monotonic_s()}


def test_a_broker_that_is_away_is_named_when_the_time_is_up() -> None:
    broker = SilentBroker()
    topic = new_topic(broker, 1, LOG_CONFIG)
    with closing(AdmissionLog(broker, topic, ME, ManualClock())) as log:
        seen = log.wait(0, TIMEOUT_S)
        broker.away = True
        with pytest.raises(BrokerUnavailable, match="was not read within 5 s: nobody answers"):
            log.wait(seen, 4.99993)
        assert log.outage() == "nobody answers"


def test_a_broker_that_is_away_is_named_if_reading_fails_for_another_reason() -> None:
    """A client that fails says which log it asked for, and not at which address."""
    broker = SilentBroker()
    topic = new_topic(broker, 1, LOG_CONFIG)
    broker.refuses = broker.away = True
    with (
        closing(AdmissionLog(broker, topic, ME, SystemClock())) as log,
        pytest.raises(BrokerUnavailable, match=r"was not read within 0\.2 s: nobody answers"),
    ):
        log.wait(0, 0.2)


def test_what_was_read_once_is_read_on_by_whoever_asks() -> None:
    """An env worker asks for each group; another thread's turn costs more than the answer."""
    broker = PolledBroker()
    topic = new_topic(broker, 1, LOG_CONFIG)
    with closing(AdmissionLog(broker, topic, ME, SystemClock())) as log:
        log.wait(0, TIMEOUT_S)
        assert broker.polled_by is not threading.current_thread()
        announce(broker, topic, announced(1))
        until(lambda: broker.polled_by is threading.current_thread(), lambda: log.wait(0, 0.0))
        assert set(log.policies()) == {"a"}


@pytest.mark.proves("F5")
def test_while_shares_are_valid_nothing_is_read_of_the_first_generation() -> None:
    """Its records name all producers of older releases."""
    clock = ManualClock()
    broker = PolledBroker(clock=clock)
    topic = new_topic(broker, 1, LOG_CONFIG)
    spec = TopicSpec(shares_topic(topic), SHARES_PARTITIONS, LOG_CONFIG)
    broker.admin().create([spec], TIMEOUT_S)
    mine = partition_of(ME.encode(), SHARES_PARTITIONS)
    announce(broker, spec.name, valid(1), shares={ME: share(1, 4)}, partition=mine)
    with closing(AdmissionLog(broker, topic, ME, clock)) as log:
        log.wait(0, TIMEOUT_S)
        assert broker.read == {TopicPartition(spec.name, mine)}
        announce(broker, topic, granted(1, {ME: 9}))
        log.wait(0, 0.0)
        assert broker.read == {TopicPartition(spec.name, mine)}
        clock.advance(31.0)
        log.wait(0, 0.0)
        assert broker.read == {TopicPartition(spec.name, mine), TopicPartition(topic, 0)}


@pytest.mark.proves("F5")
def test_one_who_may_not_read_its_share_is_told_rather_than_kept_waiting() -> None:
    """Its id says that it reads it, so no sampler writes it elsewhere."""

    class Guarded(MemoryBroker):
        def reader(self, starts: Mapping[TopicPartition, int], **kwargs: Any) -> MemoryReader:
            for where in starts:
                if where.topic == shares_topic(topic):
                    raise NotAuthorised(f"{where} may not be read")
            return super().reader(starts, **kwargs)

    broker = Guarded()
    topic = new_topic(broker, 1, LOG_CONFIG)
    announce(broker, topic, announced(1), granted(1))
    with (
        closing(AdmissionLog(broker, topic, ME, SystemClock())) as log,
        pytest.raises(NotAuthorised, match=shares_topic(topic)),
    ):
        log.wait(0, TIMEOUT_S)


def test_one_that_is_dropped_without_close_ends_its_thread() -> None:
    broker = MemoryBroker()
    topic = new_topic(broker, 1, LOG_CONFIG)
    before = threading.enumerate()
    log = AdmissionLog(broker, topic, ME, SystemClock())
    log.wait(0, TIMEOUT_S)
    (thread,) = [one for one in threading.enumerate() if one not in before]
    dropped = weakref.ref(log)
    del log
    until(lambda: dropped() is None, gc.collect)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
