"""Who waits to begin groups, and whether a sampler tells them, as status measures it."""

from __future__ import annotations

from harness.admission import announce, announced, granted, share, valid
from harness.brokers import write
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.status import AdmissionFigures
from rollstream.status.admission import measure_admission
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.in_flight import ProducerStanding
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

TOPIC, SECOND = Layout().admission("math"), Layout().shares("math")
PRODUCERS = [ProducerStanding("a", 5, 2, 3), ProducerStanding("b", 7, 1, 0)]


class Logs:
    """The topic of an environment, and a clock that moves by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.broker.admin().create(specs_for(Layout(), {"math": 1}), 10)

    def measure(self) -> AdmissionFigures:
        now_us, deadline = self.clock.now_us(), Deadline(10, self.clock)
        logs = [TopicPartition(topic, 0) for topic in (TOPIC, SECOND)]
        return measure_admission(self.broker, logs, "math", PRODUCERS, now_us, deadline)


def test_producers_are_counted_and_nobody_tells_them_where_nothing_was_ever_written() -> None:
    figures = Logs().measure()
    assert (figures.environment, figures.producers, figures.waiting) == ("math", 2, 1)
    assert figures.told_by == {}


def test_a_sampler_tells_them_as_long_as_its_newest_shares_are_valid() -> None:
    logs = Logs()
    shares = granted(4, sampler="t", epoch=3, valid_s=30.0, limit="max_policy_lag")
    announce(logs.broker, TOPIC, shares, announced())
    write(logs.broker, TopicPartition(TOPIC, 0), [b"garbage"])
    announce(logs.broker, TOPIC, granted(9, sampler="t", epoch=1, valid_s=0.0))  # A zombie's.
    announce(logs.broker, TOPIC, granted(9, sampler="left", epoch=1, valid_s=0.0))
    assert logs.measure().told_by == {"t": "max_policy_lag"}
    logs.clock.advance(31.0)
    assert logs.measure().told_by == {}


def test_samplers_tell_them_in_either_generation_of_the_log() -> None:
    logs = Logs()
    announce(logs.broker, TOPIC, granted(4, sampler="older", limit="max_policy_lag"))
    shares = {"p": share(1, 4), "gone": None}
    announce(logs.broker, SECOND, valid(1, sampler="t", limit="capacity"), shares=shares)
    assert logs.measure().told_by == {"older": "max_policy_lag", "t": "capacity"}
