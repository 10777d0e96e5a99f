"""Reads a deployment's logs and files, and says what does not hold."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from rollstream.consumers.audit.files import digest_problems, file_problem, manifest_problem
from rollstream.consumers.audit.ledger import Ledger, UidBook
from rollstream.consumers.audit.report import AuditReport, PartitionAudit
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, open_store
from rollstream.store.layout import manifest_path, manifests_prefix
from rollstream.streams.broker import Broker, LogReader, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

POLL_RECORDS = 200  # A flush event may have megabytes.
PENDING_RECORDS = 1_000
SLICE_S = 0.2
TIMEOUT_S = 600.0  # For all of it; a long log takes a while.


def audit(
    config: RollstreamConfig,
    *,
    broker: Broker | None = None,
    store: Blobs | None = None,
    clock: Clock | None = None,
    digests: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> AuditReport:
    """Checks that ``published = pending + sealed + settled`` for every partition, offset by offset,
    and that every file which an event names is there as the event says.

    It may run at any time, beside sealers too: what they settle meanwhile counts as pending.

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
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        auditor = _Auditor(
            Layout(kafka.namespace, kafka.generation),
            used,
            store or open_store(config.store.root),
            Deadline(timeout_s, clock or SystemClock()),
            clock or SystemClock(),
            digests,
            kafka.timeout_s,
        )
        rows: list[PartitionAudit] = []
        problems: list[str] = []
        for environment, section in config.environments.items():
            found = auditor.environment(environment, section.partitions)
            rows += found.partitions
            problems += found.problems
        return AuditReport(partitions=tuple(rows), problems=tuple(problems))


class _Book:
    """One partition, while its seal log is read."""

    def __init__(self, name: str, uids: UidBook) -> None:
        self.ledger = Ledger(name, uids)
        self.manifests: set[str] = set()  # Paths that confirmed events have.
        self.missing: list[int] = []  # Offsets of events without a manifest.
        self.newest = -1  # Offset of the newest flush.
        self.read_to = 0  # The seal log was read up to here.
        self.groups: dict[str, list[SealedGroup]] = {}  # By file; only where digests are checked.


class _Auditor:
    def __init__(
        self,
        layout: Layout,
        broker: Broker,
        blobs: Blobs,
        deadline: Deadline,
        clock: Clock,
        digests: bool,
        request_timeout_s: float,
    ) -> None:
        self._layout = layout
        self._broker = broker
        self._blobs = blobs
        self._deadline = deadline
        self._clock = clock
        self._digests = digests
        self._request_timeout_s = request_timeout_s

    def environment(self, name: str, partitions: int) -> AuditReport:
        uids = UidBook()
        books = [_Book(f"{name}[{number}]", uids) for number in range(partitions)]
        self._read_seal_log(name, books)
        rows = [self._close(name, number, book) for number, book in enumerate(books)]
        problems = [problem for book in books for problem in book.ledger.problems]
        return AuditReport(partitions=tuple(rows), problems=tuple(problems))

    def _read_seal_log(self, name: str, books: list[_Book]) -> None:
        topic = self._layout.groups(name)
        starts = {TopicPartition(topic, number): 0 for number in range(len(books))}
        follower = Follower(self._broker, starts)
        reader = self._broker.reader(starts)
        try:
            ends = {where: reader.bounds(where, self._request_s())[1] for where in starts}
            while any(follower.next_offsets()[where] < end for where, end in ends.items()):
                self._expect_time(f"the seal log of {name}")
                for confirmed in follower.poll(POLL_RECORDS, self._deadline.slice_s(SLICE_S)):
                    book = books[confirmed.where.partition]
                    book.ledger.apply(confirmed.offset, confirmed.event)
                    if isinstance(confirmed.event, Flushed):
                        self._note(
                            name, confirmed.where.partition, book, confirmed.offset, confirmed.event
                        )
            for where, read_to in follower.next_offsets().items():
                books[where.partition].read_to = read_to
        finally:
            follower.close()
            reader.close()

    def _note(self, name: str, number: int, book: _Book, offset: int, event: Flushed) -> None:
        address = PartitionAddress(name, self._layout.generation, number)
        book.newest = offset
        book.manifests.add(manifest_path(address, offset))
        problem = manifest_problem(self._blobs, address, offset, event)
        if problem == "":
            book.missing.append(offset)
        elif problem is not None:
            book.ledger.problems.append(problem)
        if self._digests:
            for group in event.groups:
                book.groups.setdefault(event.files[group.file].path, []).append(group)

    def _close(self, name: str, number: int, book: _Book) -> PartitionAudit:
        """The ingest log's end is asked for now: whatever is settled lies below it."""
        ledger = book.ledger
        where = TopicPartition(self._layout.rollouts(name), number)
        reader = self._broker.reader({where: 0})
        try:
            first, end = reader.bounds(where, self._request_s())
            pending = ledger.unsettled(end)
            ledger.close(end)
            self._check_pending(name, ledger, reader, where, first, pending)
        finally:
            reader.close()
        self._check_files(name, number, book)
        row = PartitionAudit(
            environment=name,
            partition=number,
            published=end,
            pending=len(pending),
            sealed=ledger.sealed,
            settled=dict(ledger.settled),
            groups=ledger.groups,
            files=len(ledger.files),
            flushes=ledger.flushes,
            watermark=ledger.watermark,
            manifests_missing=len(book.missing),
        )
        if not row.balanced:
            ledger.problems.append(
                f"{name}[{number}]: published {row.published}, but pending {row.pending} + sealed "
                f"{row.sealed} + settled {sum(row.settled.values())}"
            )
        return row

    def _check_pending(
        self,
        name: str,
        ledger: Ledger,
        reader: LogReader,
        where: TopicPartition,
        first: int,
        pending: NDArray[np.int64],
    ) -> None:
        """What nothing settled is still in the log, and can be read."""
        gone = pending[pending < first]
        if len(gone):
            ledger.problems.append(
                f"{name}[{where.partition}]: retention deleted {len(gone)} offsets from {gone[0]} "
                "on that nothing settled; a sealer will settle them as lost"
            )
        wanted = pending[pending >= first]
        if not len(wanted):
            return
        position, stop = int(wanted[0]), int(wanted[-1]) + 1
        reader.seek(where, position)
        while position < stop:
            self._expect_time(f"{where} at {position}")
            for record in reader.poll(PENDING_RECORDS, self._deadline.slice_s(SLICE_S)):
                if record.offset > position and len(
                    skipped := wanted[(wanted >= position) & (wanted < record.offset)]
                ):
                    ledger.problems.append(
                        f"{name}[{where.partition}]: {len(skipped)} offsets from {skipped[0]} on "
                        "are not in the log, and nothing settled them"
                    )
                position = record.offset + 1

    def _check_files(self, name: str, number: int, book: _Book) -> None:
        problems = book.ledger.problems
        for file in book.ledger.files.values():
            self._expect_time(file.path)
            problem = file_problem(self._blobs, file)
            if problem is not None:
                problems.append(problem)
            elif file.path in book.groups:
                problems += digest_problems(self._blobs, file, book.groups[file.path])
        for offset in book.missing:
            # An owner projects one flush before it appends the next.
            if offset != book.newest:
                problems.append(f"{name}[{number}]: flush {offset} has no manifest")
        prefix = manifests_prefix(PartitionAddress(name, self._layout.generation, number))
        for blob in self._blobs.list(prefix):
            if blob.path not in book.manifests and not self._appended_since(blob.path, book):
                problems.append(f"{blob.path} is the manifest of a flush that does not count")

    def _appended_since(self, path: str, book: _Book) -> bool:
        """Whether the manifest may be that of a flush behind what was read."""
        offset = int(path.rpartition("/")[2].removesuffix(".json"))
        return offset >= book.read_to

    def _request_s(self) -> float:
        """For one question: that the broker is away is told early, however long all may take."""
        return max(0.001, self._deadline.slice_s(self._request_timeout_s))

    def _expect_time(self, what: str) -> None:
        self._deadline.log_waiting(lambda: f"{what} to be read")
        if self._deadline.passed():
            raise BrokerUnavailable(f"audit: {what} was not read within its time")
