"""Owners of many logs share few clients."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.brokers import LOG_CONFIG
from harness.entropy import SeededEntropy
from harness.seal_events import flushed
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.streams.broker import IDLE_S, Record, TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable, ClaimFailed
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.memory.writer import MemoryWriter
from rollstream.streams.owned.clients import FIND_EVERY_S, OwnerClients
from rollstream.streams.owned.log import OwnedLog

TOPIC = "logs"
LOGS = 50


class CountingBroker(MemoryBroker):
    """Counts what it makes."""

    made = 0

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> MemoryWriter:
        self.made += 1
        return super().writer(linger_ms=linger_ms, retries=retries)

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        self.made += 1
        return super().reader(starts, idle_s=idle_s)


def counting_broker() -> CountingBroker:
    logs = MemoryLogs(ManualClock())
    logs.create(TopicSpec(TOPIC, LOGS, LOG_CONFIG))
    return CountingBroker(logs)


def deadline(broker: CountingBroker) -> Deadline:
    return Deadline(5.0, broker.logs.clock)


def owner(broker: CountingBroker, clients: OwnerClients, number: int) -> OwnedLog[SealFold]:
    return OwnedLog(
        broker,
        TopicPartition(TOPIC, number),
        owner=f"owner-{number}",
        make_fold=lambda: SealFold(dedupe_horizon=10),
        entropy=SeededEntropy(number),
        clients=clients,
    )


@pytest.mark.proves("F25")
def test_the_number_of_clients_does_not_grow_with_the_logs() -> None:
    broker = counting_broker()
    clients = OwnerClients(broker)
    owners = [owner(broker, clients, number) for number in range(LOGS)]
    for log in owners:
        log.claim(deadline(broker))
        log.check_still_owner(deadline(broker))
        log.fold_arrived(deadline(broker))
    assert broker.made == 2, "one appends, one reads"
    owners[0].release()
    owners[1].check_still_owner(deadline(broker))


def test_claims_that_come_together_ask_for_the_leaders_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = counting_broker()
    clients, asked = OwnerClients(broker), list[str]()
    monkeypatch.setattr(MemoryWriter, "partitions", lambda _, topic, __: asked.append(topic))
    for number in range(LOGS):
        owner(broker, clients, number).claim(deadline(broker))
    assert asked == [TOPIC]
    clients.find_leaders(TOPIC, broker.logs.clock.monotonic_s() + FIND_EVERY_S)
    assert asked == [TOPIC, TOPIC]


def test_a_reader_that_all_others_have_is_waited_for_up_to_the_deadline() -> None:
    broker = counting_broker()
    clients, where = OwnerClients(broker, 2), TopicPartition(TOPIC, 0)
    with clients.reader(where, deadline(broker)), clients.reader(where, deadline(broker)):
        none_free = pytest.raises(BrokerUnavailable, match="no reader was free")
        with none_free, clients.reader(where, Deadline(0.01)):
            pass
    with clients.reader(where, deadline(broker)) as reader:
        assert reader.bounds(where, 1.0) == (0, 0)


def test_readers_that_nobody_uses_are_polled_whether_they_raise_or_not() -> None:
    """A client keeps what it logs until then."""
    broker = counting_broker()
    polled: list[MemoryReader] = []

    class Polled(MemoryReader):
        def poll(self, records_max: int, timeout_s: float) -> list[Record]:
            polled.append(self)
            raise BrokerUnavailable("away")

    broker.reader = lambda starts, **given: Polled(broker.logs, starts)  # type: ignore[method-assign]
    clients, where = OwnerClients(broker, 2), TopicPartition(TOPIC, 0)
    with clients.reader(where, deadline(broker)), clients.reader(where, deadline(broker)):
        clients.serve(10.0)
        assert polled == []
    clients.serve(10.5)
    assert polled == []
    clients.serve(11.0)
    assert len({*polled}) == 2


def test_what_an_owner_gave_up_and_lands_late_does_not_count() -> None:
    """The client is shared, so that nobody takes back what was sent."""
    broker = counting_broker()
    clients = OwnerClients(broker)
    log = owner(broker, clients, 0)
    log.claim(deadline(broker))
    old = log.epoch, log.nonce
    log.claim(deadline(broker))
    assert (log.epoch, log.nonce) != old
    reported: list[object] = []
    late = codec.encode(flushed(*old, range(3), 3))
    clients.append(log.where, late, reported.append)
    clients.poll()
    log.fold_arrived(deadline(broker))
    assert reported
    assert log.fold.watermark == 0


def test_a_client_that_is_full_of_what_others_append_is_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = counting_broker()
    clients = OwnerClients(broker)
    log = owner(broker, clients, 0)
    monkeypatch.setattr("rollstream.streams.memory.writer.QUEUED_RECORDS_MAX", 0)
    with pytest.raises(ClaimFailed, match="records are queued"):
        log.claim(deadline(broker))
    monkeypatch.undo()
    log.claim(deadline(broker))
    monkeypatch.setattr("rollstream.streams.memory.writer.QUEUED_RECORDS_MAX", 0)
    ticket = log.append(flushed(log.epoch, log.nonce, range(3), 3))
    with pytest.raises(BrokerUnavailable, match="records are queued"):
        log.wait_confirmed(ticket, deadline(broker))
