"""Whether the seal log says which dispatched groups are not back, and which never came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from harness.history import EntryRef
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.folds.life.dispatched import DispatchedGroups
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.reading import read_between

_GroupKey = tuple[str, str]
"""group_uid and example_id"""


def dispatch_problems(world: SealWorld, *, calm: bool) -> list[str]:
    """Groups that are said to be dispatched and are not, or are counted otherwise than they ended.

    Args:
        calm: a sealer has read everything, and had time to name what is pending: what is said is
            then all that there is.
    """
    published = _published(world)
    confirmed = world.confirmed_events()
    fold = DispatchedGroups()
    for item in confirmed:
        address = PartitionAddress("math", world.layout.generation, item.where.partition)
        fold.apply(address, item.event)
    settled = settled_by(confirmed)
    unsettled = [(ref.partition, key) for ref, key in published.items() if ref not in settled]
    # A key has one pending group, however often it was dispatched; others of it may be decided.
    at_most, at_least = (Counter(key[1] for _, key in found) for found in (unsettled, {*unsettled}))
    named = Counter(group.example_id for _, groups in fold.open() for group in groups)
    problems = [f"{example} is back, and counts as dispatched" for example in named - at_most]
    if calm:
        missing = at_least - named
        problems += [f"{example} was dispatched, and nothing says so" for example in missing]
    return problems + _wrongly_ended(confirmed, published, settled, fold)


def _wrongly_ended(
    confirmed: Sequence[ConfirmedEvent],
    published: Mapping[EntryRef, _GroupKey],
    settled: Mapping[EntryRef, int],
    fold: DispatchedGroups,
) -> list[str]:
    """Examples that never came more or less often than their groups ended without being sealed."""
    sealed = {
        (item.where.partition, number, (group.group_uid, group.example_id))
        for number, item in enumerate(confirmed)
        if isinstance(item.event, Flushed)
        for group in item.event.groups
    }
    at_least: set[tuple[int, int, _GroupKey]] = set()
    at_most: Counter[str] = Counter()
    for ref, key in published.items():
        if ref in settled:
            ended = (ref.partition, settled[ref], key)
            at_most[key[1]] += 1
            if ended not in sealed:
                at_least.add(ended)
    never_back: Counter[str] = Counter()
    for by_environment in fold.never_back.by_kind().values():
        for counts in by_environment.values():
            never_back.update(counts)
    wanted = Counter(key[1] for _, _, key in at_least)
    return [
        f"{example} never came {never_back[example]} times, not {wanted[example]}"
        for example in {*wanted, *never_back}
        if not wanted[example] <= never_back[example] <= at_most[example]
    ]


def _published(world: SealWorld) -> dict[EntryRef, _GroupKey]:
    """The dispatches in the ingest log."""
    return {ref: group_of(ref, record) for ref, _, record in read_dispatches(world)}


def group_of(ref: EntryRef, record: IngestRecord) -> _GroupKey:
    """Of an entry of this record."""
    return record.values("group_uid")[ref.entry], record.values("example_id")[ref.entry]


def read_dispatches(world: SealWorld) -> Iterator[tuple[EntryRef, int, IngestRecord]]:
    """The dispatches in the ingest log, by partition and offset, when they were appended,
    microseconds, and their records."""
    deadline = Deadline(TIMEOUT_S, world.clock)
    for partition in range(world.environment.partitions):
        where = world.source(partition)
        with closing(world.broker.reader({where: 0})) as reader:
            first, end = reader.bounds(where, deadline.left_s())
            for record in read_between(reader, where, first, end, deadline):
                try:
                    read = decode_record(record.value)
                except UnreadableEvent:
                    continue
                for entry, kind in enumerate(read.kinds):
                    if kind == EntryKind.DISPATCHED:
                        ref = EntryRef(partition, record.offset, entry)
                        yield ref, record.timestamp_us, read


def settled_by(confirmed: Sequence[ConfirmedEvent]) -> dict[EntryRef, int]:
    """By the event that settled them, the entries that ended without a group."""
    return {
        EntryRef(item.where.partition, offset, entry): number
        for number, item in enumerate(confirmed)
        if isinstance(item.event, Flushed)
        for part in item.event.settled
        for offset, entry in zip(part.offsets.tolist(), part.entries.tolist(), strict=True)
    }
