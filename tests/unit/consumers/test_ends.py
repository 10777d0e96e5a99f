"""The ends of many logs cost one question, and a silent leader holds up no others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.brokers import LOG_CONFIG
from harness.held_workers import HeldWorkers
from rollstream.consumers.sealing.ends import ENDS_AT_ONCE, Ends
from rollstream.runtime.clock import ManualClock
from rollstream.streams.broker import IDLE_S, Bounds, Logs, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.owned.clients import OwnerClients

LOGS = [TopicPartition("logs", number) for number in range(256)]


class AskedReader(MemoryReader):
    """Takes down what it is asked, and does not answer about silent logs."""

    def __init__(self, broker: AskedBroker) -> None:
        super().__init__(broker.logs, {})
        self._broker = broker

    def bounds(self, where: TopicPartition, timeout_s: float) -> tuple[int, int]:
        return self.all_bounds([where], timeout_s)[where]

    def all_bounds(self, logs: Logs, timeout_s: float) -> Bounds:
        self._broker.asked.append(list(logs))
        if self._broker.silent.intersection(logs):
            raise BrokerUnavailable("silent")
        return {where: self._broker.logs.bounds(where) for where in logs}


class AskedBroker(MemoryBroker):
    def __init__(self) -> None:
        logs = MemoryLogs(ManualClock())
        logs.create(TopicSpec(LOGS[0].topic, len(LOGS), LOG_CONFIG))
        super().__init__(logs)
        self.asked: list[list[TopicPartition]] = []
        self.silent: set[TopicPartition] = set()
        self.readers = 0

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        self.readers += 1
        return AskedReader(self)


def ends_of(broker: AskedBroker) -> tuple[Ends, HeldWorkers]:
    askers, clock = HeldWorkers(), broker.logs.clock
    return Ends(OwnerClients(broker, ENDS_AT_ONCE), askers, clock, 5.0), askers


@pytest.mark.proves("F25")
def test_the_ends_of_many_logs_are_one_question() -> None:
    broker = AskedBroker()
    ends, askers = ends_of(broker)
    askers.holding = True
    found = [ends.ask(where) for where in LOGS]
    broker.logs.append(LOGS[7], None, b"came before the question")
    askers.go_on()
    assert [end.result(0) for end in found] == [int(where == LOGS[7]) for where in LOGS]
    assert (broker.asked, broker.readers) == ([LOGS], 1)


def test_an_end_is_one_after_the_question() -> None:
    broker = AskedBroker()
    ends, _ = ends_of(broker)
    for offset in range(3):
        assert ends.ask(LOGS[0]).result(0) == offset
        broker.logs.append(LOGS[0], None, b"one more")


def test_a_silent_leader_holds_up_its_own_logs_alone() -> None:
    broker = AskedBroker()
    ends, askers = ends_of(broker)
    broker.silent = {*LOGS[:100]}

    def asked_of_all() -> list[bool]:
        askers.holding = True
        found = [ends.ask(where) for where in LOGS]
        askers.go_on()
        return [end.exception(0) is None for end in found]

    assert asked_of_all() == [where not in broker.silent for where in LOGS]
    broker.asked.clear()
    assert asked_of_all() == [where not in broker.silent for where in LOGS]
    assert LOGS[100:] in broker.asked, "those that answered are asked about together again"
    broker.silent.clear()
    assert all(asked_of_all())
    broker.asked.clear()
    assert all(asked_of_all())
    assert broker.asked == [LOGS]
