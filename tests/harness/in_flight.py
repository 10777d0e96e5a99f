"""Whether reports say what each producer has open, by the logs alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from harness.dispatches import group_of, read_dispatches, settled_by
from harness.history import EntryRef
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode
from rollstream.schemas.events import PartitionReport, ProducerColumns, ProducerInFlight
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import Producer
from rollstream.streams.broker import EARLIEST
from rollstream.streams.folds.in_flight import ProducerStanding
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.reading import read_between


class _Dispatch(NamedTuple):
    """One that counts, when it was appended, and the group that it is of."""

    ref: EntryRef
    appended_us: int
    producer_id: str
    group: tuple[str, str]


def report(
    *producers: ProducerInFlight,
    epoch: int = 0,
    nonce: str = "n",
    seal_offset: int = -1,
    now_ts: int = 0,
    complete: bool = False,
) -> PartitionReport:
    """One that names these producers."""
    return PartitionReport(
        epoch=epoch,
        nonce=nonce,
        seal_offset=seal_offset,
        now_ts=now_ts,
        complete=complete,
        producers=ProducerColumns.of(producers),
        waiting=0,
        continuations=(),
    )


def reports(world: SealWorld) -> list[tuple[PartitionAddress, PartitionReport]]:
    """Those that are kept, in their order in each partition."""
    found = []
    for address in world.layout.addresses({"math": world.environment.partitions}):
        where = world.layout.reports_log(address)
        deadline = Deadline(TIMEOUT_S, world.clock)
        with closing(world.broker.reader({where: EARLIEST})) as reader:
            first, end = reader.bounds(where, TIMEOUT_S)
            for record in read_between(reader, where, first, end, deadline):
                event = decode(record.value)
                assert isinstance(event, PartitionReport), event
                found.append((address, event))
    return found


def standings(world: SealWorld) -> list[ProducerStanding]:
    """Of every producer that ever said something."""
    fold = ReportedNow()
    for address, event in reports(world):
        fold.apply(address, event)
    return fold.in_flight.standings("math", 0)


def in_flight_problems(world: SealWorld, *, alive: Collection[Producer] = ()) -> list[str]:
    """Producers that are said to have more or less open than they have, once a sealer has read
    everything and had time to report; and events that took back what was reported before.

    Args:
        alive: how those stand that said so last, and lately.
    """
    confirmed = world.confirmed_events()
    dispatches = [
        _Dispatch(ref, appended_us, record.producer.producer_id, group_of(ref, record))
        for ref, appended_us, record in read_dispatches(world)
        if record.producer is not None and record.values("split")[ref.entry] == "train"
    ]
    settled = settled_by(confirmed)
    # Whoever dispatched a pending group last has it open.
    newest = {(one.ref.partition, one.group): one for one in dispatches if one.ref not in settled}
    opened = Counter(one.producer_id for one in newest.values())
    found = {one.producer_id: one for one in standings(world)}
    problems = [
        f"{name} has {opened[name]} open, and {found.get(name, 'nothing')} is said"
        for name in sorted({*opened, *found})
        if opened[name] != (found[name].open if name in found else 0)
    ]
    for producer in alive:
        said = found.get(producer.producer_id)
        if said is None or (said.begun, said.waiting) != producer[1:]:
            problems.append(f"{producer} is alive, and {said} is said")
    return problems + _wrong_between(world, confirmed, dispatches, settled)


def _wrong_between(
    world: SealWorld,
    confirmed: Sequence[ConfirmedEvent],
    dispatches: Sequence[_Dispatch],
    settled: Mapping[EntryRef, int],
) -> list[str]:
    """By each report a producer has at least that open which was read when it was named, by
    whomever, and is not settled up to where the report holds: a new owner that reads it again tells
    no less meanwhile. Once that one has named all, it has at most what is not settled."""
    own: defaultdict[PartitionAddress, ReportedNow] = defaultdict(ReportedNow)
    epochs: dict[PartitionAddress, int] = {}
    named_us: dict[tuple[PartitionAddress, str], int] = {}  # The latest.
    complete: set[PartitionAddress] = set()  # By their present owner.
    problems = []
    for number, (address, event) in enumerate(reports(world)):
        if event.epoch < epochs.get(address, -1):
            continue  # Of an owner that has a successor.
        if event.epoch > epochs.get(address, -1):
            epochs[address] = event.epoch
            complete.discard(address)
        if event.complete:
            complete.add(address)
        own[address].apply(address, event)
        for one in event.producers:
            key = (address, one.producer_id)
            # What came later in the same millisecond has its time-stamp, and was not read.
            named_us[key] = max(named_us.get(key, 0), event.now_ts // 1000 * 1000)
        unsettled = [
            one
            for one in dispatches
            if one.ref.partition == address.partition
            and (one.ref not in settled or confirmed[settled[one.ref]].offset > event.seal_offset)
        ]
        newest = {one.group: one for one in unsettled}
        least = Counter(
            one.producer_id
            for one in newest.values()
            if one.appended_us < named_us.get((address, one.producer_id), 0)
        )
        opened = {one.producer_id: one.open for one in own[address].in_flight.standings("math", 0)}
        problems += [
            f"report {number} leaves {name} {opened.get(name, 0)} open groups, not {count}"
            for name, count in least.items()
            if opened.get(name, 0) < count
        ]
        most = Counter(one.producer_id for one in unsettled)
        if address in complete:
            problems += [
                f"report {number} leaves {name} {count} open groups, not {most[name]}"
                for name, count in opened.items()
                if count > most[name]
            ]
    return problems
