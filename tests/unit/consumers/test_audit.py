"""The audit compares what events say of a record with the record, while it is in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from harness.owned_logs import in_time, owner_of
from harness.rollouts import encode_record, members
from harness.seal_events import EntryRef, flushed
from rollstream.consumers.audit import AuditReport, audit
from rollstream.consumers.deployment import create_deployment
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
    StoreConfig,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import MemoryBlobs, project
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.topics.layout import Layout

LAYOUT = Layout("test")
ADDRESS = PartitionAddress("math", 1, 0)
SOURCE = TopicPartition(LAYOUT.rollouts("math"), 0)
CONFIG = RollstreamConfig(
    kafka=KafkaConfig(bootstrap="memory:0", namespace="test"),
    store=StoreConfig(root="file:///nowhere"),
    environments={"math": EnvironmentConfig(partitions=1)},
)


class Deployment:
    """The logs of one partition; its events settle entries without a group."""

    def __init__(self, *records: bytes) -> None:
        self._clock = ManualClock()
        self.logs = MemoryLogs(self._clock)
        self._broker = MemoryBroker(self.logs)
        self._blobs = MemoryBlobs()
        create_deployment(CONFIG, broker=self._broker, store=self._blobs, clock=self._clock)
        for record in records:
            self.logs.append(SOURCE, None, record)
        self._log = owner_of(self._broker, LAYOUT.groups_log(ADDRESS))
        self._log.claim(in_time())

    def settle(
        self, watermark: int, counts: Mapping[int, int] = {}, **settled: Sequence[EntryRef]
    ) -> None:
        log = self._log
        event = flushed(log.epoch, log.nonce, [], watermark, settled=settled, counts=counts)
        offset = log.wait_confirmed(log.append(event), in_time())
        project(self._blobs, ADDRESS, offset, event)

    def audit(self) -> AuditReport:
        return audit(CONFIG, broker=self._broker, store=self._blobs, clock=self._clock)


def record_of(count: int) -> bytes:
    return encode_record(members(count))


def test_entries_of_records_that_nobody_read_are_pending() -> None:
    report = Deployment(record_of(3), record_of(1), record_of(200)).audit()
    assert report.problems == ()
    (row,) = report.partitions
    assert (row.published, row.pending, row.sealed) == (204, 204, 0)


def test_more_records_than_are_read_together_are_all_counted() -> None:
    deployment = Deployment(*[record_of(1 + n % 3) for n in range(150)])
    deployment.settle(1, {1: 2}, failed=[0, (1, 0)])
    report = deployment.audit()
    assert report.problems == ()
    (row,) = report.partitions
    assert (row.published, row.pending, row.settled) == (300, 298, {"failed": 2})


@pytest.mark.proves("F4")
def test_an_event_that_says_three_entries_where_the_record_has_four_fails() -> None:
    sound, wrong = Deployment(record_of(4)), Deployment(record_of(4))
    sound.settle(1, {0: 4}, failed=[(0, entry) for entry in range(4)])
    assert sound.audit().problems == ()
    wrong.settle(1, {0: 3}, failed=[(0, entry) for entry in range(3)])
    (problem,) = wrong.audit().problems
    assert "0 has 4, not 3" in problem


def test_a_record_that_retention_took_keeps_the_count_of_its_events() -> None:
    deployment = Deployment(record_of(4), record_of(2))
    deployment.settle(1, {0: 4}, failed=[(0, entry) for entry in range(4)])
    deployment.logs.drop_before(SOURCE, 1)
    report = deployment.audit()
    assert report.problems == ()
    (row,) = report.partitions
    assert (row.published, row.pending, row.settled) == (6, 2, {"failed": 4})


@pytest.mark.proves("F4")
def test_a_record_that_retention_took_unsettled_fails_and_counts_as_one() -> None:
    deployment = Deployment(record_of(4), record_of(2))
    deployment.logs.drop_before(SOURCE, 1)
    before = deployment.audit()
    assert ["not settled (1, from 0 on)" in problem for problem in before.problems] == [True]
    deployment.settle(1, lost=[0])
    after = deployment.audit()
    assert ["records lost" in problem for problem in after.problems] == [True]
    for report in (before, after):
        (row,) = report.partitions
        assert (row.published, row.balanced) == (3, True)


@pytest.mark.proves("F4")
def test_retention_that_is_faster_than_the_audit_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deployment = Deployment(record_of(4), record_of(2), record_of(3))
    deployment.settle(1, {0: 4}, failed=[(0, entry) for entry in range(4)])
    bounds = MemoryReader.bounds

    def bounds_before_retention(
        reader: MemoryReader, where: TopicPartition, timeout_s: float
    ) -> tuple[int, int]:
        found = bounds(reader, where, timeout_s)
        if where == SOURCE:
            deployment.logs.drop_before(SOURCE, 2)
        return found

    monkeypatch.setattr(MemoryReader, "bounds", bounds_before_retention)
    report = deployment.audit()
    (problem,) = report.problems
    assert "retention deleted records that are not settled (1, from 1 on)" in problem
    assert report.environment("math").pending == 1 + 3


@pytest.mark.parametrize("torn", [b"junk", record_of(3)[:-1], record_of(3) + b"x"])
def test_a_record_of_a_broken_frame_is_one_entry(torn: bytes) -> None:
    deployment = Deployment(torn, record_of(3))
    assert deployment.audit().environment("math").published == 4
    deployment.settle(1, unreadable=[0])
    report = deployment.audit()
    assert report.problems == ()
    assert report.environment("math").pending == 3
