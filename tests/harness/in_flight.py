"""Whether the seal log says what each producer has open, by the logs alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from harness.dispatches import group_of, read_dispatches, settled_by
from harness.history import EntryRef
from harness.sealing import SealWorld
from rollstream.schemas.events import Flushed, InFlight
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import Producer
from rollstream.streams.folds.sampler.in_flight import InFlightGroups, ProducerStanding
from rollstream.streams.owned.follow import ConfirmedEvent


class _Dispatch(NamedTuple):
    """One that counts, when it was appended, and the group that it is of."""

    ref: EntryRef
    appended_us: int
    producer_id: str
    group: tuple[str, str]


def standings(world: SealWorld) -> list[ProducerStanding]:
    """Of every producer that ever said something."""
    fold = InFlightGroups()
    for item in world.confirmed_events():
        fold.apply(_address(world, item), item.event)
    return fold.standings("math", 0)


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
    """After each event a producer has at least that open which was read when it was named, by
    whomever, and is not settled: a new owner that reads it again tells no less meanwhile. Once that
    one has named all, it has at most what is not settled."""
    folds: defaultdict[int, InFlightGroups] = defaultdict(InFlightGroups)
    named_us: dict[tuple[int, str], int] = {}  # The latest, by partition and producer.
    complete: set[tuple[int, int]] = set()  # Partitions and claims.
    problems = []
    for number, item in enumerate(confirmed):
        event, partition = item.event, item.where.partition
        if not isinstance(event, InFlight | Flushed):
            continue
        folds[partition].apply(_address(world, item), event)
        for one in event.producers if isinstance(event, InFlight) else event.in_flight:
            key = (partition, one.producer_id)
            # What came later in the same millisecond has its time-stamp, and was not read.
            named_us[key] = max(named_us.get(key, 0), event.now_ts // 1000 * 1000)
        if isinstance(event, InFlight) and event.complete:
            complete.add((partition, event.epoch))
        unsettled = [
            one
            for one in dispatches
            if one.ref.partition == partition and settled.get(one.ref, len(confirmed)) > number
        ]
        newest = {one.group: one for one in unsettled}
        least = Counter(
            one.producer_id
            for one in newest.values()
            if one.appended_us < named_us.get((partition, one.producer_id), 0)
        )
        opened = {one.producer_id: one.open for one in folds[partition].standings("math", 0)}
        problems += [
            f"event {number} leaves {name} {opened[name]} open groups, not {count}"
            for name, count in least.items()
            if opened[name] < count
        ]
        most = Counter(one.producer_id for one in unsettled)
        if (partition, event.epoch) in complete:
            problems += [
                f"event {number} leaves {name} {count} open groups, not {most[name]}"
                for name, count in opened.items()
                if count > most[name]
            ]
    return problems


def _address(world: SealWorld, item: ConfirmedEvent) -> PartitionAddress:
    return PartitionAddress("math", world.layout.generation, item.where.partition)
