"""Reads a deployment's logs and files, and reports what does not hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from rollstream.consumers.audit.files import file_problems, rollup_problems
from rollstream.consumers.audit.ledger import Ledger, repeat_problems
from rollstream.consumers.audit.records import IngestRecords
from rollstream.consumers.audit.repeats import Repeats
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed, Retired, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, open_store, read_root_id
from rollstream.store.layout import manifest_path, manifests_prefix
from rollstream.store.manifests import Manifest, is_manifest_of
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, require_root

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
        files: that events name, but for retired ones.
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
    that every file which an event names, and none retired, exists and is as the event says.

    It may run at any time, beside sealers too: what they settle meanwhile counts as pending. It
    reads the seal logs and what is kept of the ingest logs, a few records at a time.

    Args:
        config: which environments, and where their logs and files are.
        broker, store, clock: from ``config`` and the system unless given.
        digests: also decode every row and compare the groups' digests.
        timeout_s: for all of it.

    Raises:
        BrokerUnavailable: not read within ``timeout_s``. CorruptLog: a seal log holds what no
        sealer writes. RootMismatch: the store's root is not the deployment's.
    """
    kafka = config.kafka
    deadline = Deadline(timeout_s, clock or SystemClock())
    blobs = store or open_store(config.store.root)
    layout = Layout.of(kafka)
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        root = StoreRoot(config.store.root, read_root_id(blobs))
        at_once = Deadline(deadline.slice_s(kafka.timeout_s), deadline.clock)
        require_root(used, layout, config.environments, root, at_once)
        auditor = _Auditor(layout, used, blobs, deadline, kafka.timeout_s, digests)
        rows: list[PartitionAudit] = []
        problems: list[str] = []
        for name, section in config.environments.items():
            with Repeats() as repeats:
                for address in layout.addresses({name: section.partitions}):
                    number = address.partition
                    ledger = Ledger(f"{name}[{number}]", number, repeats)
                    rows.append(auditor.audit_partition(address, ledger))
                    problems += ledger.problems
                problems += repeat_problems(name, repeats)
    return AuditReport(partitions=tuple(rows), problems=tuple(problems))


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
        missing: list[int] = []  # Offsets of flushes without a manifest.
        flushes: dict[int, Sequence[str]] = {}  # The files of each, by offset.
        groups: defaultdict[str, list[SealedGroup]] = defaultdict(list)  # By file, for digests.
        with (
            closing(Follower(self.broker, {where: 0})) as follower,
            closing(self._ingest_records(address)) as records,
        ):
            # That no broker answers is reported early, however long all of it may take.
            for _, offset, _, event in follower.read_to_end(
                self.deadline, ends_within_s=self.request_timeout_s
            ):
                ledger.apply(offset, event)
                if not isinstance(event, Flushed):
                    continue
                # Record by record beside the events, so that nothing is remembered of offsets that
                # the watermark has passed.
                records.check_below(ledger.watermark, ledger)
                ledger.forget_passed()
                flushes[offset] = [file.path for file in event.files]
                manifest = manifest_path(address, offset)
                expected = Manifest(address, offset, event)
                try:
                    if not is_manifest_of(self.blobs.read(manifest), expected):
                        ledger.problems.append(f"{manifest} differs from its event in the seal log")
                except BlobMissing:
                    missing.append(offset)
                for group in event.groups if self.digests else ():
                    if 0 <= group.file < len(event.files):  # Else the ledger names it.
                        groups[event.files[group.file].path].append(group)
            read_to = follower.next_offsets()[where]
            published, pending = ledger.close(records.check_rest(ledger))
            ledger.problems += self._file_problems(ledger, groups, follower)
        ledger.problems += self._manifest_problems(address, ledger, missing, read_to)
        ledger.problems += rollup_problems(self.blobs, address, flushes, read_to)
        row = PartitionAudit(
            environment=address.environment,
            partition=address.partition,
            published=published,
            pending=pending,
            sealed=ledger.sealed,
            settled=dict(ledger.settled),
            groups=ledger.groups,
            files=len(ledger.files),
            flushes=len(ledger.flushes),
            watermark=ledger.watermark,
            manifests_missing=len(missing),
        )
        if not row.balanced:
            ledger.add_problem(
                f"published {row.published}, but pending {row.pending} + sealed {row.sealed} + "
                f"settled {sum(row.settled.values())}"
            )
        return row

    def _file_problems(
        self, ledger: Ledger, groups: Mapping[str, Sequence[SealedGroup]], follower: Follower
    ) -> Iterator[str]:
        retired: set[str] = set()  # Since the log was read to its end; they may be deleted by now.
        for file in ledger.files.values():
            self.deadline.log_waiting(partial("{} to be read".format, file.path))
            if self.deadline.passed():
                raise BrokerUnavailable(f"audit: {file.path} was not read within its time")
            problems = file_problems(self.blobs, file, groups.get(file.path, ()))
            if problems:
                for _, _, _, event in follower.read_to_end(self.deadline):
                    if isinstance(event, Retired):
                        retired.update(one.path for one in event.files)
                if file.path not in retired:
                    yield from problems

    def _ingest_records(self, address: PartitionAddress) -> IngestRecords:
        where = self.layout.rollouts_log(address)
        return IngestRecords(self.broker, where, self.deadline, self.request_timeout_s)

    def _manifest_problems(
        self, address: PartitionAddress, ledger: Ledger, missing: Sequence[int], read_to: int
    ) -> Iterator[str]:
        """Flushes without a manifest, and manifests below ``read_to`` without a flush that counts:
        one above may be that of a newer flush."""
        for offset in missing:
            # An owner projects one flush before it appends the next.
            if offset != ledger.flushes[-1]:
                yield f"{ledger.name}: flush {offset} has no manifest"
        manifests = {manifest_path(address, offset) for offset in ledger.flushes}
        for blob in self.blobs.list(manifests_prefix(address)):
            offset = int(blob.path.rpartition("/")[2].removesuffix(".json"))
            if blob.path not in manifests and offset < read_to:
                yield f"{blob.path} is the manifest of a flush that does not count"
