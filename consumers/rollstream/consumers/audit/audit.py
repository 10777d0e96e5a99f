"""Reads a deployment's logs and files, and reports what does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from rollstream.consumers.audit.files import digest_problems, file_problem, manifest_problems
from rollstream.consumers.audit.ledger import Ledger, SegmentHashes
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import EnvironmentConfig, RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Flushed, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.record import decode_record
from rollstream.store import BlobMissing, Blobs, open_store
from rollstream.store.layout import manifest_path, manifests_prefix
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable, OffsetLost
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 600.0  # For all of it; a long log takes a while.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """One partition: ``published = pending + sealed + settled``.

    Attributes:
        published: entries of the ingest log, deleted ones included; of a record that was deleted
            before anybody read it, one.
        pending: those that nothing has settled yet.
        sealed: those of segments that are in groups.
        settled: by reason, the entries that ended without a group.
        watermark: every entry of every offset below it is settled.
        manifests_missing: flushes without a manifest; the newest may lack its own.
    """

    environment: str
    partition: int
    published: int
    pending: int
    sealed: int
    settled: Mapping[str, int]
    groups: int
    files: int
    flushes: int
    watermark: int
    manifests_missing: int

    @property
    def balanced(self) -> bool:
        """Whether the equation holds."""
        return self.published == self.pending + self.sealed + sum(self.settled.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The figures of every partition, and every problem.

    Attributes:
        problems: in words, each with its log or file; empty where the audit holds.
    """

    partitions: tuple[PartitionAudit, ...]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, nothing is sealed twice, and every file is as its event says."""
        return not self.problems

    def environment(self, name: str) -> PartitionAudit:
        """The sums over the partitions of one environment; ``partition`` is -1, and ``watermark``
        the sum of theirs."""
        rows = [row for row in self.partitions if row.environment == name]
        settled = sum((Counter(row.settled) for row in rows), Counter[str]())
        counts = {f.name for f in fields(PartitionAudit)} - {"environment", "partition", "settled"}
        sums: dict[str, Any] = {key: sum(getattr(row, key) for row in rows) for key in counts}
        return PartitionAudit(environment=name, partition=-1, settled=settled, **sums)


def audit(
    config: RollstreamConfig,
    *,
    broker: Broker | None = None,
    store: Blobs | None = None,
    clock: Clock | None = None,
    digests: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> AuditReport:
    """Checks that ``published = pending + sealed + settled`` for every partition, entry by entry,
    that every record which is still in an ingest log has as many entries as the events say, and
    that every file which an event names exists and is as the event says.

    It may run at any time, beside sealers too: what they settle meanwhile counts as pending. It
    reads the seal logs and what is kept of the ingest logs, a few records at a time.

    Args:
        config: which environments, and where their logs and files are.
        broker, store, clock: from ``config`` and the system unless given.
        digests: also decode every row and compare the groups' digests.
        timeout_s: for all of it.

    Raises:
        BrokerUnavailable: not read within ``timeout_s``. UnreadableEvent, CorruptLog: a seal log
        holds what no sealer writes.
    """
    kafka = config.kafka
    deadline = Deadline(timeout_s, clock or SystemClock())
    blobs = store or open_store(config.store.root)
    layout = Layout.of(kafka)
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        auditor = _Auditor(layout, used, blobs, deadline, kafka.timeout_s, digests)
        return auditor.report(config.environments)


@dataclass(slots=True)
class _Book:
    """What an audit knows of one partition.

    Attributes:
        manifests: paths that confirmed events have.
        missing: offsets of events without a manifest.
        newest: offset of the newest flush.
        read_to: the seal log was read up to here.
        groups: by file; only where digests are checked.
    """

    address: PartitionAddress
    ledger: Ledger
    manifests: set[str] = field(default_factory=set)
    missing: list[int] = field(default_factory=list)
    newest: int = -1
    read_to: int = 0
    groups: dict[str, list[SealedGroup]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Auditor:
    layout: Layout
    broker: Broker
    blobs: Blobs
    deadline: Deadline
    request_timeout_s: float
    digests: bool

    def report(self, environments: Mapping[str, EnvironmentConfig]) -> AuditReport:
        rows: list[PartitionAudit] = []
        problems: list[str] = []
        for name, config in environments.items():
            hashes = SegmentHashes()
            books = [
                _Book(address, Ledger(f"{name}[{address.partition}]", hashes))
                for address in self.layout.addresses({name: config.partitions})
            ]
            self._read_seal_logs(books)
            rows += [self._close(book) for book in books]
            problems += [problem for book in books for problem in book.ledger.problems]
        return AuditReport(partitions=tuple(rows), problems=tuple(problems))

    def _read_seal_logs(self, books: list[_Book]) -> None:
        by_log = {self.layout.groups_log(book.address): book for book in books}
        with closing(Follower(self.broker, dict.fromkeys(by_log, 0))) as follower:
            # That no broker answers is reported early, however long all of it may take.
            for confirmed in follower.read_to_end(
                self.deadline, ends_within_s=self.request_timeout_s
            ):
                book = by_log[confirmed.where]
                book.ledger.apply(confirmed.offset, confirmed.event)
                if isinstance(confirmed.event, Flushed):
                    self._check_manifest(book, confirmed.offset, confirmed.event)
            for where, read_to in follower.next_offsets().items():
                by_log[where].read_to = read_to

    def _check_manifest(self, book: _Book, offset: int, event: Flushed) -> None:
        book.newest = offset
        book.manifests.add(manifest_path(book.address, offset))
        try:
            book.ledger.problems += manifest_problems(self.blobs, book.address, offset, event)
        except BlobMissing:
            book.missing.append(offset)
        if self.digests:
            for group in event.groups:
                book.groups.setdefault(event.files[group.file].path, []).append(group)

    def _close(self, book: _Book) -> PartitionAudit:
        ledger = book.ledger
        # The end is asked for only now: every offset that the seal log settles is below it.
        published, pending = self._check_records(book)
        ledger.problems += self._file_problems(book)
        row = PartitionAudit(
            environment=book.address.environment,
            partition=book.address.partition,
            published=published,
            pending=pending,
            sealed=ledger.sealed,
            settled=dict(ledger.settled),
            groups=ledger.groups,
            files=len(ledger.files),
            flushes=ledger.flushes,
            watermark=ledger.watermark,
            manifests_missing=len(book.missing),
        )
        if not row.balanced:
            ledger.add_problem(
                f"published {row.published}, but pending {row.pending} + sealed {row.sealed} + "
                f"settled {sum(row.settled.values())}"
            )
        return row

    def _check_records(self, book: _Book) -> tuple[int, int]:
        """Counts the entries of every record that is still in the ingest log, and closes the
        ledger."""
        where = self.layout.rollouts_log(book.address)
        with closing(self.broker.reader({where: 0})) as reader:

            def bounds() -> tuple[int, int]:
                request_s = max(0.001, self.deadline.slice_s(self.request_timeout_s))
                return reader.bounds(where, request_s)

            first, end = bounds()
            position = first
            while position < end:
                try:
                    for record in read_between(reader, where, position, end, self.deadline):
                        book.ledger.check_record(record.offset, _entry_count(record.value))
                        position = record.offset + 1
                    position = end  # Behind the last record there may be offsets without one.
                except OffsetLost:
                    first, _ = bounds()
                    if first <= position:
                        raise
                    position = first  # Retention was faster.
        return book.ledger.close(first, end)

    def _file_problems(self, book: _Book) -> Iterator[str]:
        for file in book.ledger.files.values():
            self.deadline.log_waiting(partial("{} to be read".format, file.path))
            if self.deadline.passed():
                raise BrokerUnavailable(f"audit: {file.path} was not read within its time")
            problem = file_problem(self.blobs, file)
            if problem is not None:
                yield problem
            elif file.path in book.groups:
                yield from digest_problems(self.blobs, file, book.groups[file.path])
        for offset in book.missing:
            # An owner projects one flush before it appends the next.
            if offset != book.newest:
                yield f"{book.ledger.name}: flush {offset} has no manifest"
        for blob in self.blobs.list(manifests_prefix(book.address)):
            # A manifest at or above `read_to` may be that of a newer flush.
            offset = int(blob.path.rpartition("/")[2].removesuffix(".json"))
            if blob.path not in book.manifests and offset < book.read_to:
                yield f"{blob.path} is the manifest of a flush that does not count"


def _entry_count(value: bytes) -> int:
    """Of a record; one whose frame is broken ends as one dead letter of one entry."""
    try:
        return decode_record(value).count
    except UnreadableEvent:
        return 1
