"""Reads a deployment's logs and files, and reports what does not hold."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from rollstream.consumers.audit.files import file_problems
from rollstream.consumers.audit.ledger import Ledger, repeated
from rollstream.consumers.audit.manifests import ComparedRollUps, Manifests
from rollstream.consumers.audit.records import IngestRecords
from rollstream.consumers.audit.repeats import Repeats
from rollstream.consumers.audit.retired import (
    LeftOut,
    RetiredSince,
    Retirement,
    Retirements,
    hash_of,
)
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, Followed, read_root_id
from rollstream.store.bounded import open_bounded
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower, PutAside
from rollstream.streams.reading import bounds_in_time
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, require_root

TIMEOUT_S = 600.0  # For all of it; a long log takes a while.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The figures of one partition: ``published + imported = pending + sealed + settled``.

    Attributes:
        published: entries of the ingest log, deleted ones included. A record that was deleted
            before anybody read it counts as one.
        imported: segments that came otherwise, by ``write_rollout_groups``; each is sealed.
        pending: entries that nothing has settled yet.
        sealed: segments that are in groups.
        settled: by reason, the entries that ended without a group.
        files: that events name, without retired ones.
    """

    environment: str
    partition: int
    published: int
    pending: int
    sealed: int
    settled: Mapping[str, int]
    groups: int
    files: int
    imported: int = 0

    @property
    def balanced(self) -> bool:
        """Whether the equation holds."""
        ended = self.pending + self.sealed + sum(self.settled.values())
        return self.published + self.imported == ended


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The figures of every partition, and every problem.

    Attributes:
        problems: in words, each with its log or file; empty if the audit holds.
        mistakes: of producers: rollouts that count twice, since they were published to two
            partitions under one uid, or again after the dedupe horizon. The audit holds all the
            same.
    """

    partitions: tuple[PartitionAudit, ...]
    problems: tuple[str, ...]
    mistakes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, nothing is sealed twice, and every file is as its event says."""
        return not self.problems

    def environment(self, name: str) -> PartitionAudit:
        """Returns the sums over the partitions of one environment. ``partition`` is -1."""
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
    """Checks that every published entry has exactly one end, and that every file is as it should
    be.

    For every partition ``published + imported = pending + sealed + settled`` must hold, entry by
    entry. Every record that is still in an ingest log must have as many entries as the events say.
    Every file that an event names, and that was not retired, must exist and be as the event says.
    A partition whose seal log cannot be read is a problem, and all others are checked.

    It may run at any time, beside sealers too. Its memory does not grow with the history.

    Args:
        config: which environments, and where their logs and files are.
        broker: instead of the configured one.
        store: likewise.
        clock: instead of the system's.
        digests: whether to decode every row and compare the groups' digests, too.
        timeout_s: for all of it.

    Raises:
        BrokerUnavailable: not read within ``timeout_s``.
        RootMismatch: the store's root is not the deployment's.
        StoreHangs: a call of the configured store did not end within ``store.timeout_s``.
    """
    kafka = config.kafka
    deadline = Deadline(timeout_s, clock or SystemClock())
    blobs = store or open_bounded(config.store)
    layout = Layout.of(kafka)
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        at_once = Deadline(deadline.slice_s(kafka.timeout_s), deadline.clock)
        root = StoreRoot(config.store.root, read_root_id(blobs), Followed(blobs))
        require_root(used, layout, config.environments, root, at_once)
        auditor = _Auditor(layout, used, blobs, deadline, kafka.timeout_s, digests)
        rows: list[PartitionAudit] = []
        problems: list[str] = []
        mistakes: list[str] = []
        for name, section in config.environments.items():
            with Repeats() as repeats:
                for address in layout.addresses({name: section.partitions}):
                    number = address.partition
                    ledger = Ledger(f"{name}[{number}]", number, repeats)
                    rows.append(auditor.audit_partition(address, ledger))
                    problems += ledger.problems
                twice = repeated(name, repeats, section.dedupe_horizon)
                problems += twice.problems
                mistakes += twice.mistakes
    return AuditReport(partitions=tuple(rows), problems=tuple(problems), mistakes=tuple(mistakes))


@dataclass(frozen=True, slots=True)
class _Auditor:
    layout: Layout
    broker: Broker
    blobs: Blobs
    deadline: Deadline
    request_timeout_s: float
    digests: bool

    def audit_partition(self, address: PartitionAddress, ledger: Ledger) -> PartitionAudit:
        """The figures of one partition; its problems are in ``ledger`` afterwards."""
        where = self.layout.groups_log(address)
        rollups = ComparedRollUps(self.blobs, address)
        aside: dict[TopicPartition, PutAside] = {}
        with (
            closing(Follower(self.broker, {where: 0}, aside=aside)) as follower,
            closing(self._ingest_records(address, ledger)) as records,
            Retirements(self._end(where)) as retired,
        ):
            # That no broker answers is reported early, however long all of it may take.
            for _, offset, _, event in follower.read_to_end(
                self.deadline, ends_within_s=self.request_timeout_s
            ):
                ledger.apply(offset, event)
                if isinstance(event, Retired):
                    for file in event.files:
                        retired.add(offset, file.offset, file.path)
                if not isinstance(event, Flushed):
                    continue
                # Record by record beside the events, so that nothing is remembered of offsets that
                # the watermark has passed.
                records.check(ledger.watermark)
                ledger.forget_passed()
                ledger.problems += rollups.problems(offset, [file.path for file in event.files])
            read_to = follower.next_offsets()[where]
            published, pending = ledger.close(records.check())
            left_out = LeftOut(self.blobs, address, read_to)
            manifests = Manifests(self.blobs, address)
            ledger.problems += self._file_problems(
                ledger.name, retired, manifests, left_out, follower, where
            )
            if where in aside:
                ledger.add_problem(
                    f"checked up to offset {read_to} of its seal log, behind which it cannot be "
                    f"read: {aside[where].error}"
                )
            else:  # Else nobody knows what of these was written after an event.
                ledger.problems += rollups.rest(read_to)
                ledger.problems += manifests.rest(ledger.name, read_to)
                ledger.problems += left_out.problems(ledger.name)
        row = PartitionAudit(
            environment=address.environment,
            partition=address.partition,
            published=published,
            pending=pending,
            imported=ledger.imported,
            sealed=ledger.sealed,
            settled=dict(ledger.settled),
            groups=ledger.groups,
            files=ledger.files,
        )
        if not row.balanced:
            ledger.add_problem(
                f"published {row.published} + imported {row.imported}, but pending {row.pending} + "
                f"sealed {row.sealed} + settled {sum(row.settled.values())}"
            )
        return row

    def _file_problems(
        self,
        name: str,
        retired: Retirements,
        manifests: Manifests,
        left_out: LeftOut,
        read: Follower,
        where: TopicPartition,
    ) -> Iterator[str]:
        """What is wrong with the files of the flushes that were read. The log is read once more, so
        that of each file it is known by then whether it was retired."""
        read_to = read.next_offsets()[where]
        # What was retired since then may be deleted by now.
        since = RetiredSince(lambda: (one[3] for one in read.read_to_end(self.deadline)))
        with closing(Follower(self.broker, {where: 0}, aside={})) as follower:
            for _, offset, _, event in follower.read_to_end(self.deadline):
                if offset >= read_to:
                    break
                if not isinstance(event, Flushed):
                    continue
                known = {hash_of(file.path) for file in (*event.files, *event.incomplete)}
                retired_by: dict[int, int] = {}  # To the event that retired it.
                for one in retired.up_to(offset):
                    if one.flush != offset or one.path not in known - retired_by.keys():
                        yield _never_named(name, one)
                    else:
                        retired_by[one.path] = one.event
                left = known - retired_by.keys()
                yield from manifests.problems(
                    offset,
                    event,
                    needed=bool(left) or offset >= retired.below,
                    retired=partial(since.has_all, offset, left),
                )
                groups = [*event.groups] if self.digests else []
                for index, file in enumerate((*event.files, *event.incomplete)):
                    retired_at = retired_by.get(hash_of(file.path))
                    # What the newest event retired, readers may use still.
                    if retired_at != retired.newest:
                        left_out.compare(offset, file.path, retired=retired_at is not None)
                    if retired_at is not None:
                        continue
                    self.deadline.log_waiting(partial("{} to be read".format, file.path))
                    if self.deadline.passed():
                        raise BrokerUnavailable(f"audit: {file.path} was not read within its time")
                    of_file = [group for group in groups if group.file == index]
                    problems = file_problems(self.blobs, file, of_file)
                    if problems and not since.has(file.path):
                        yield from problems
        for one in retired.up_to(sys.maxsize):
            yield _never_named(name, one)

    def _end(self, where: TopicPartition) -> int:
        with closing(self.broker.reader({where: 0})) as reader:
            return bounds_in_time(reader, where, self._at_once())[1]

    def _at_once(self) -> Deadline:
        return Deadline(self.deadline.slice_s(self.request_timeout_s), self.deadline.clock)

    def _ingest_records(self, address: PartitionAddress, ledger: Ledger) -> IngestRecords:
        where = self.layout.rollouts_log(address)
        return IngestRecords(self.broker, where, ledger, self.deadline, self.request_timeout_s)


def _never_named(name: str, file: Retirement) -> str:
    return (
        f"{name} event {file.event}: retires a file that flush {file.flush} does not name, or "
        "which was retired before"
    )
