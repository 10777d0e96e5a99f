"""The audit compares what events say of a record with the record, while it is in the log."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.owned_logs import in_time, owner_of
from harness.retiring import retired
from harness.rollouts import encode_record, members
from harness.seal_events import EntryRef, flushed, one_group
from rollstream.consumers.audit import AuditReport, audit, spilled
from rollstream.consumers.deployment import create_deployment
from rollstream.consumers.retention.files import project_retired
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.schemas.digest import checksum
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobInfo, MemoryBlobs, project
from rollstream.store.layout import manifest_path, retired_path, rollup_path, rollups_prefix
from rollstream.store.retired import encode_retired, load_retired
from rollstream.store.rollups import ROLLED_TOGETHER, NamedFiles, RollUp, encode_rollup
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


def _row() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    return bytes(sink.getvalue())


ROW = _row()  # A Parquet file of one row.


class Listed(MemoryBlobs):
    """Lists as a disk or an object store does, without a copy of all that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] | None = None

    def look(self) -> None:
        """What there is now is listed from now on."""
        self.paths = [blob.path for blob in super().list("")]

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        if self.paths is None:
            return super().list(prefix, after=after, limit=limit)
        found = (BlobInfo(path, 0) for path in self.paths if path.startswith(prefix))
        return islice((blob for blob in found if blob.path > after), limit)


class Deployment:
    """The logs of one partition, and its files."""

    def __init__(self, *records: bytes) -> None:
        self._clock = ManualClock()
        self.logs = MemoryLogs(self._clock)
        self._broker = MemoryBroker(self.logs)
        self.blobs = Listed()
        create_deployment(CONFIG, broker=self._broker, store=self.blobs, clock=self._clock)
        for record in records:
            self.logs.append(SOURCE, None, record)
        self._log = owner_of(self._broker, LAYOUT.groups_log(ADDRESS))
        self._log.claim(in_time())

    def settle(
        self, watermark: int, counts: Mapping[int, int] = {}, **settled: Sequence[EntryRef]
    ) -> None:
        log = self._log
        self._flush(flushed(log.epoch, log.nonce, [], watermark, settled=settled, counts=counts))

    def seal(self, source: int) -> int:
        """Seals the only entry of the record at this offset as a group, named for it."""
        log, name = self._log, f"{source:05d}"
        self.blobs.create(f"{name}.parquet", ROW)
        owned: Any = {"epoch": log.epoch, "nonce": log.nonce}
        file: Any = {"size": len(ROW), "checksum": checksum(ROW)}
        return self._flush(one_group(name, [source], source + 1, **owned, **file))

    def retire(self, *files: tuple[int, str], previous: int = -1) -> int:
        log = self._log
        event = retired(log.epoch, log.nonce, files, previous=previous)
        offset = log.wait_confirmed(log.append(event), in_time())
        where = LAYOUT.groups_log(ADDRESS)
        self.blobs.look()
        project_retired(self.blobs, self._broker, where, ADDRESS, offset, in_time())
        return offset

    def roll_up(self, manifests: Mapping[int, tuple[str, ...]], level: int = 1) -> str:
        """Writes a roll-up that says so of flushes, by offset; its path."""
        path = rollup_path(ADDRESS, level, min(manifests), max(manifests))
        named = tuple(NamedFiles(offset, 0, files) for offset, files in manifests.items())
        self.blobs.create(path, encode_rollup(RollUp(ADDRESS, named)))
        return path

    def _flush(self, event: Flushed) -> int:
        offset = self._log.wait_confirmed(self._log.append(event), in_time())
        project(self.blobs, ADDRESS, offset, event)
        return offset

    def audit(self) -> AuditReport:
        self.blobs.look()
        return self.audit_again()

    def audit_again(self) -> AuditReport:
        """With no other blobs than before."""
        return audit(CONFIG, broker=self._broker, store=self.blobs, clock=self._clock)


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


def sealed(count: int) -> tuple[Deployment, list[int]]:
    """A deployment with so many flushes, of a group each, and their offsets."""
    deployment = Deployment(*[record_of(1)] * count)
    return deployment, [deployment.seal(source) for source in range(count)]


def test_what_is_wrong_with_a_manifest_is_told_and_the_newest_may_be_missing() -> None:
    deployment, flushes = sealed(5)
    assert deployment.audit().problems == ()
    for flush in (flushes[1], flushes[2], flushes[4]):
        deployment.blobs.delete(manifest_path(ADDRESS, flush))
    other = manifest_path(ADDRESS, flushes[4] + 1)
    for path in (manifest_path(ADDRESS, 0), other):
        deployment.blobs.create(path, b"{}")
    deployment.blobs.replace(manifest_path(ADDRESS, flushes[3]), b"{}")
    assert deployment.audit().problems == (
        f"{manifest_path(ADDRESS, 0)} is the manifest of a flush that does not count",
        f"{manifest_path(ADDRESS, flushes[3])} differs from its event in the seal log",
        f"math[0]: flushes without a manifest (2): {flushes[1]}, {flushes[2]}",
    ), "one above the end may be that of a newer flush"


def test_what_is_wrong_with_a_roll_up_is_told_once() -> None:
    deployment, flushes = sealed(6)
    files = {flush: (f"{number:05d}.parquet",) for number, flush in enumerate(flushes)}
    first, second = dict(list(files.items())[:3]), dict(list(files.items())[3:])
    for part in (first, second):
        deployment.roll_up(part)
    deployment.roll_up(files, level=2)
    deployment.roll_up({flushes[-1] + 1: ("newer.parquet",)})
    assert deployment.audit().problems == ()
    wrong = [
        deployment.roll_up({flushes[0]: ("x",), flushes[1]: ("y",)}),
        deployment.roll_up({flushes[0]: files[flushes[0]], flushes[3]: ("x",)}, level=2),
        deployment.roll_up({0: ("of no flush",)}),
    ]
    none = f"{rollups_prefix(ADDRESS)}1-other.json"
    deployment.blobs.create(none, b"")
    problems = deployment.audit().problems
    assert sorted(problem.split()[0] for problem in problems) == sorted([*wrong, none])


def test_retired_files_are_not_looked_for() -> None:
    deployment, flushes = sealed(4)
    for number in (0, 2):
        deployment.blobs.delete(f"{number:05d}.parquet")
    missing = deployment.audit()
    assert missing.problems == ("00000.parquet is missing", "00002.parquet is missing")
    newest = deployment.retire((flushes[2], "00002.parquet"))
    deployment.retire((flushes[0], "00000.parquet"), previous=newest)
    report = deployment.audit()
    assert (report.problems, report.partitions[0].files) == ((), 2)


def test_what_readers_leave_out_is_what_was_retired() -> None:
    deployment, flushes = sealed(5)
    first = deployment.retire((flushes[0], "00000.parquet"))
    newest = deployment.retire((flushes[2], "00002.parquet"), previous=first)
    path = retired_path(ADDRESS, newest)
    right = load_retired(deployment.blobs, path)
    wrong = {
        "readers leave out files that were not retired (1): 00001.parquet": right._replace(kept=()),
        "readers use retired files (1): 00000.parquet": right._replace(below=flushes[0]),
    }
    for problem, written in wrong.items():
        deployment.blobs.replace(path, encode_retired(written))
        assert deployment.audit().problems == (f"math[0]: {problem}",)
    deployment.blobs.replace(path, encode_retired(right)[:-9])
    (problem,) = deployment.audit().problems
    assert problem.startswith(path)
    assert "delete it" in problem
    deployment.blobs.delete(path)
    assert deployment.audit().problems == (), "its owner may be about to write it"


@pytest.mark.parametrize("again", [(0, "other"), (1, "00000"), (2, "00000"), (3, "00001")])
def test_a_file_that_no_such_flush_names_cannot_be_retired(again: tuple[int, str]) -> None:
    deployment, flushes = sealed(2)
    offsets = [*flushes, flushes[0], flushes[1] + 50]
    files = [(flushes[0], "00000.parquet"), (offsets[again[0]], f"{again[1]}.parquet")]
    event = deployment.retire(*files)
    (problem,) = deployment.audit().problems
    assert problem.startswith(f"math[0] event {event}: retires a file that flush {files[1][0]} ")


def test_what_an_audit_holds_does_not_grow_with_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spilled, "BUFFER_BYTES_MAX", 48)

    def held(count: int) -> int:
        deployment, flushes = sealed(count)
        named = {flush: (f"{number:05d}.parquet",) for number, flush in enumerate(flushes)}
        for start in range(0, count, ROLLED_TOGETHER):
            part = flushes[start : start + ROLLED_TOGETHER]
            deployment.roll_up({flush: named[flush] for flush in part})
        newest = -1
        for start in range(0, count // 2, 16):
            part = flushes[start : start + 16]
            newest = deployment.retire(*((flush, *named[flush]) for flush in part), previous=newest)
        deployment.audit()  # Makes what is made once for all.
        gc.freeze()  # Garbage is collected as in a process that holds nothing else.
        tracemalloc.start()
        try:
            assert deployment.audit_again().problems == ()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.unfreeze()

    few, many = held(768), held(1536)  # With fewer, what is read at once is not yet full.
    assert many - few < 768 * 50, "a path alone takes twice as much"
