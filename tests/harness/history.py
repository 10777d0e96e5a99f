"""What a test published, and whether a deployment accounts for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from io import BytesIO
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import AuditReport, audit
from rollstream.consumers.assembling.decisions import NO_SEGMENT
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import (
    NOT_INGESTED,
    Claimed,
    Flushed,
    Retired,
    SealedSegments,
    Settlements,
)
from rollstream.schemas.ingest.entry import STEP_KINDS
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.store import BlobMissing, Blobs, list_manifests, visible_files
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.reading import read_between
from rollstream.streams.topics.root import CREATOR


class EntryRef(NamedTuple):
    """Of an entry, in the ingest log."""

    partition: int
    offset: int
    entry: int


class Named(NamedTuple):
    """A segment; of an entry that is none, or names none, its event says so."""

    uid: str
    segment_idx: int


class Row(NamedTuple):
    """Where a row of a file comes from, and what it is."""

    ref: EntryRef
    epoch: int
    named: Named


def problems_of(world: SealWorld, uids: Iterable[str] = (), *, drained: bool = True) -> list[str]:
    """Everything that does not hold: the audit, and what only the test can know.

    Args:
        uids: each was published at least once, so each of its segments was sealed or settled
            exactly once, besides duplicates.
        drained: nothing may be pending.
    """
    report = audit(
        world.config, broker=world.broker, store=world.blobs, clock=world.clock, digests=True
    )
    problems = list(report.problems)
    sums = report.environment("math")
    if sums.published != world.published:
        problems.append(f"{world.published} were published, the log holds {sums.published}")
    if drained and sums.pending:
        problems.append(f"{sums.pending} are still pending")
    confirmed = world.confirmed_events()
    problems += _entries_not_once(world, confirmed, drained=drained)
    if drained:
        lost, twice = segments_not_once(confirmed, uids)
        problems += lost + twice
    problems += _unconfirmed(confirmed, world.blobs)
    problems += _rows_differ(confirmed, world.blobs)
    return problems


def holds(report: AuditReport) -> None:
    """Fails with every problem of the audit."""
    assert report.holds, "\n".join(report.problems)


def _entries_not_once(
    world: SealWorld, confirmed: list[ConfirmedEvent], *, drained: bool
) -> list[str]:
    """Entries that were published once and did not end once, or ended as something else."""
    published, first = _published(world)
    ends = Counter(ref for ref, _ in _ends(confirmed))
    problems = [f"{ref} ended {count} times" for ref, count in ends.items() if count > 1]
    if drained:
        problems += [f"{ref} never ended" for ref in published if ref not in ends]
        problems += _only_duplicates(published, confirmed)
    for ref, named in _ends(confirmed):
        if ref.offset < first[ref.partition]:
            continue  # Retention took the record; the events alone remember it.
        if ref not in published:
            problems.append(f"{ref} ended and was never published")
        elif named is not None and published[ref] not in (None, named):
            problems.append(f"{ref} is {published[ref]} and ended as {named}")
    return problems


def _only_duplicates(
    published: dict[EntryRef, Named | None], confirmed: list[ConfirmedEvent]
) -> list[str]:
    """Segments of which every entry is settled as a duplicate, of nothing."""
    flushes = [item.event for item in confirmed if isinstance(item.event, Flushed)]
    parts = [part for event in flushes for part in event.settled]
    duplicates = {s for part in parts if part.reason == "duplicate" for s in _segments_of(part)}
    others = {s for part in parts if part.reason != "duplicate" for s in _segments_of(part)}
    others |= {s for event in flushes for s in _segments_of(event.segments)}
    return [
        f"segment {named.segment_idx} of {named.uid} ended only as a duplicate"
        for named in sorted({*filter(None, published.values())} & duplicates - others)
    ]


def _published(world: SealWorld) -> tuple[dict[EntryRef, Named | None], dict[int, int]]:
    """The entries that the ingest log still has (None where no segment can be read, or there is no
    record), and the first offset of each partition."""
    published: dict[EntryRef, Named | None] = {}
    first: dict[int, int] = {}
    deadline = Deadline(TIMEOUT_S, world.clock)
    for partition in range(world.environment.partitions):
        where = world.source(partition)
        with closing(world.broker.reader({where: 0})) as reader:
            first[partition], end = reader.bounds(where, deadline.left_s())
            for record in read_between(reader, where, first[partition], end, deadline):
                names = enumerate(_names(record.value))
                published |= {
                    EntryRef(partition, record.offset, entry): name for entry, name in names
                }
            # Offsets without a record, which are markers, end as one entry each.
            offsets = {ref.offset for ref in published if ref.partition == partition}
            absent = set(range(first[partition], end)) - offsets
            published |= {EntryRef(partition, offset, 0): None for offset in absent}
    return published, first


def _is_segment(record: IngestRecord, entry: int) -> bool:
    return entry not in record.broken and record.kinds[entry] in (0, *STEP_KINDS)


def _names(value: bytes) -> list[Named | None]:
    try:
        record = decode_record(value)
    except UnreadableEvent:
        return [None]
    segments = zip(record.values("rollout_uid"), record.values("segment_idx"), strict=True)
    return [
        Named(*segment) if _is_segment(record, entry) else None
        for entry, segment in enumerate(segments)
    ]


def _ends(confirmed: list[ConfirmedEvent]) -> Iterator[tuple[EntryRef, Named | None]]:
    """Each time that an entry ended, and as what; None where its event names nothing. What was
    imported is no entry."""
    for item in confirmed:
        if isinstance(item.event, Flushed):
            parts: list[SealedSegments | Settlements] = [item.event.segments, *item.event.settled]
            for part in parts:
                refs = zip(part.offsets.tolist(), part.entries.tolist(), strict=True)
                names = list(_segments_of(part)) or [Named("", 0)] * len(part.offsets)
                for ref, named in zip(refs, names, strict=True):
                    if ref[0] == NOT_INGESTED:
                        continue
                    yield EntryRef(item.where.partition, *ref), named if named.uid else None
            for ranges in item.event.unread:
                for bounds in zip(ranges.firsts.tolist(), ranges.stops.tolist(), strict=True):
                    for offset in range(*bounds):
                        yield EntryRef(item.where.partition, offset, 0), None


def segments_not_once(
    confirmed: Iterable[ConfirmedEvent], uids: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Uids that are nowhere, and segments that were sealed or settled more than once."""
    counts: Counter[Named] = Counter()
    for item in confirmed:
        if isinstance(item.event, Flushed):
            counts.update(_segments_of(item.event.segments))
            for part in item.event.settled:
                if part.reason != "duplicate":
                    counts.update(_segments_of(part))
    ended = {named.uid for named in counts}
    lost = [f"{uid} was published and is nowhere" for uid in uids if uid not in ended]
    return lost, [
        f"segment {idx} of {uid} was sealed or settled {count} times"
        for (uid, idx), count in counts.items()
        # A failure may be reported more than once; it is no segment.
        if count > 1 and uid and idx != NO_SEGMENT
    ]


def _segments_of(part: SealedSegments | Settlements) -> Iterator[Named]:
    return map(Named, part.uids, part.segment_idxs.tolist())


def _unconfirmed(confirmed: list[ConfirmedEvent], blobs: Blobs) -> list[str]:
    """What readers without Kafka see beyond the seal log: manifests and files."""
    wanted = {
        (item.where.partition, item.offset) for item in confirmed if isinstance(item.event, Flushed)
    }
    projected = {(m.address.partition, m.offset) for m in list_manifests(blobs)}
    problems = [f"manifest {where} of an unconfirmed flush" for where in sorted(projected - wanted)]
    named = {
        f.path for item in confirmed if isinstance(item.event, Flushed) for f in item.event.files
    }
    problems += [f"{path} is visible" for path in visible_files(blobs) if path not in named]
    return problems


def unseen(confirmed: Iterable[ConfirmedEvent], blobs: Blobs) -> list[str]:
    """Files that flushes name, no event retires, and readers without Kafka do not see, where the
    last sealer ended in peace."""
    events = [item.event for item in confirmed]
    named = {f.path for event in events if isinstance(event, Flushed) for f in event.files}
    named -= {f.path for event in events if isinstance(event, Retired) for f in event.files}
    return [f"{path} is sealed and not visible" for path in sorted(named - {*visible_files(blobs)})]


def _rows_differ(confirmed: list[ConfirmedEvent], blobs: Blobs) -> list[str]:
    """Files whose rows are not, one for one, the entries that their event sealed."""
    problems = []
    for item in confirmed:
        if not isinstance(item.event, Flushed):
            continue
        for path, wanted in _rows_of(item.where.partition, item.event).items():
            try:
                rows = _rows_in(blobs.read(path))
            except (BlobMissing, pa.ArrowException):
                continue  # The audit names it.
            if rows != wanted:
                differing = [pair for pair in zip(rows, wanted, strict=False) if pair[0] != pair[1]]
                problems.append(f"{path}: {len(rows)} rows, not {len(wanted)}; {differing[:1]}")
    return problems


def _rows_of(partition: int, event: Flushed) -> dict[str, list[Row]]:
    """By file, the rows that an event says it has."""
    part = event.segments
    refs = zip(part.offsets.tolist(), part.entries.tolist(), strict=True)
    segments = iter(
        [
            Row(EntryRef(partition, *ref), event.epoch, named)
            for ref, named in zip(refs, _segments_of(part), strict=True)
        ]
    )
    rows: dict[str, list[Row]] = {}
    for group in event.groups:
        rows.setdefault(event.files[group.file].path, []).extend(islice(segments, group.rows))
    return rows


def _rows_in(data: bytes) -> list[Row]:
    names = ["log_partition", "log_offset", "log_entry", "log_epoch", "rollout_uid", "segment_idx"]
    table = pq.ParquetFile(BytesIO(data)).read(columns=names)
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return [
        Row(EntryRef(partition, offset, entry), epoch, Named(uid, idx))
        for partition, offset, entry, epoch, uid, idx in rows
    ]


def claims(confirmed: list[ConfirmedEvent]) -> int:
    """How often a partition was claimed by whoever works on it, not by `topics create`."""
    events = [item.event for item in confirmed]
    return sum(isinstance(event, Claimed) and event.owner != CREATOR for event in events)
