"""Several sealers of one environment under a seed: they join, crash, sleep and leave, while every
kind of record is published, and groups are imported.

At each step of a flush and at each call to the broker a sealer may die, or be evicted from its
consumer group while others take its partitions; appends get lost, late or doubtful.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from harness.dispatches import dispatch_problems
from harness.failing_blobs import PassingBlobs
from harness.faults import Append, Fate, always_pass, write_now
from harness.history import claims, problems_of, unseen
from harness.importing import group
from harness.in_flight import in_flight_problems, reports
from harness.retention import RetentionWorld
from harness.rollouts import make_alive, make_dispatched, make_entry, make_failed
from harness.sealing import Crash, EvictableBroker, SealWorld
from rollstream.consumers import ImportUnfinished, Sealer, write_rollout_groups
from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.consumers.sealing.reports import REPORT_EVERY_S
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import GroupsBegun
from rollstream.schemas.ingest.entry import Entry, EntryKind, Producer
from rollstream.schemas.records import RolloutGroup
from rollstream.store import Blobs, Bytes, Pieces, StoreFull
from rollstream.streams.broker import Broker, Record
from rollstream.streams.memory import MemoryLogs
from rollstream.streams.memory.member import MemoryGroupReader
from simulation.world import TurningBroker, Violation

TURNS = 14
IMPORT_RATE = 0.15  # Of turns.
LIVES_MAX = 3
DEPTH_MAX = 3  # How many sealers' turns may stand inside one another.
SLICE_S = 0.05
CALM_S = 8 * REPORT_EVERY_S  # What was left behind takes a flush a turn.
SETTLE_S = 100.0  # Longer than anything may stay pending in these worlds.
BAD_FATES = [fate for fate in Fate if fate is not Fate.PASS]

Wrap = Callable[[Broker], Broker]


class Life:
    """One sealer's process, from its start to its end."""

    def __init__(self, world: Sealers) -> None:
        self._world = world
        self.busy = False
        self.own = SlowBroker(world.world.logs, world.dice.choice((2, 20, 500)))
        self.turning = TurningBroker(
            self.own, world.maybe_turn, self._fate, clock=world.world.clock
        )
        self.sealer = world.world.sealer(
            broker=world.wrap(self.turning),
            store=_Blobs(world),
            steps=tuple(step._replace(run=self._around(step)) for step in world.steps),
        )

    def turn(self, seconds: float) -> None:
        """It works for a while, and may end in it."""
        world, clock = self._world, self._world.world.clock
        deadline = Deadline(seconds, clock)
        self.busy = True
        try:
            while not deadline.passed():
                self.sealer.step(Deadline(min(SLICE_S, deadline.left_s()), clock))
        except Crash:
            world.end(self, "crashes")
        finally:
            self.busy = False

    def _fate(self, append: Append) -> Fate:
        world = self._world
        if not world.has_fault():
            return Fate.PASS
        if world.dice.random() < 0.3:
            if world.dice.random() < 0.5:
                write_now(self.own, append)
            raise Crash
        return world.dice.choice(BAD_FATES)

    def _around(self, step: FlushStep) -> Callable[[Flush], None]:
        def run(flush: Flush) -> None:
            world = self._world
            if world.has_fault():
                if world.dice.random() < 0.5:
                    raise Crash
                world.reached["evictions"] += 1
                self.own.evict()
                world.turn_of_another(seconds=2.0)
            step.run(flush)
            if world.has_fault():
                raise Crash

        return run


class SlowBroker(EvictableBroker):
    """Whose members read so many records at once."""

    def __init__(self, logs: MemoryLogs, records_max: int) -> None:
        super().__init__(logs)
        self._records_max = records_max

    def group_reader(self, *args: Any, **settings: Any) -> MemoryGroupReader:
        member = super().group_reader(*args, **settings)
        poll = member.poll

        def poll_few(records_max: int, timeout_s: float) -> list[Record]:
            return poll(min(records_max, self._records_max), timeout_s)

        member.poll = poll_few  # type: ignore[method-assign]
        return member


class Sealers:
    """The world of one seed.

    Args:
        wrap: around each sealer's broker: a defect.
        steps: of a flush; another tuple is a defect.
        wrap_store: around the store: a defect.
    """

    samplers: tuple[str, ...] = ()

    def __init__(
        self,
        seed: int,
        *,
        wrap: Wrap = lambda broker: broker,
        steps: tuple[FlushStep, ...] = STEPS,
        wrap_store: Callable[[Blobs], Blobs] = lambda store: store,
    ) -> None:
        self.dice = random.Random(seed)
        self.wrap = wrap
        self.steps = steps
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self.world = RetentionWorld(
            samplers=self.samplers,
            seed=seed,
            partitions=self.dice.choice((1, 2, 2, 4)),
            target_group_size=3,
            min_group_size=2,
            seal_timeout_s=10,
            expire_after_s=20,
            grouping="mixed",
            max_flush_rollouts=self.dice.choice((4, 8, 64)),
        )
        self.world.blobs = wrap_store(self.world.blobs)
        self._published: dict[str, Entry] = {}
        self._import_dice = random.Random(f"import {seed}")
        self._imported: list[RolloutGroup] = []
        self._producers = Producers(self.dice)
        self._lives: list[Life] = []
        self._fault_rate = self.dice.choice((0.0, 0.05, 0.15))
        self._turn_rate = self.dice.choice((0.0, 0.02, 0.1))
        self._old: list[TurningBroker] = []  # Of sealers that ended: what they held may still land.

    def run(self) -> None:
        """Publishes while sealers come and go; then one that nothing disturbs settles all of it.

        Raises:
            Violation: with what did not hold.
        """
        for number in range(TURNS):
            publish_anything(self.world, self.dice, 20 * number, self._published, self._producers)
            if self._import_dice.random() < IMPORT_RATE:
                self._import()
            self._act()
        self._settle_down()
        problems = dispatch_problems(self.world, calm=False)
        for producer in self._producers.alive:
            self.world.publish_entries(make_alive(producer.producer_id), producer=producer)
        sealer = self.world.sealer()
        self.world.run(sealer, seconds=CALM_S)
        problems += dispatch_problems(self.world, calm=True)
        problems += in_flight_problems(self.world, alive=self._producers.alive)
        sealer.close()
        events = [item.event for item in self.world.confirmed_events()]
        told = [report for _, report in reports(self.world)]
        self.reached["begun groups named"] += sum(isinstance(one, GroupsBegun) for one in events)
        self.reached["producers reported"] += len(told)
        owners = {report.epoch for report in told if report.complete}
        self.reached["reports of a new owner"] += len(owners)
        self.reached["producers that died"] += self._producers.died
        finish(self.world)
        problems += dispatch_problems(self.world, calm=True)
        problems += in_flight_problems(self.world)
        uids = (one.rollout_uid for group in self._imported for one in group.rollouts)
        problems += problems_of(self.world, [*self._published, *uids])
        problems += unseen(self.world.confirmed_events(), self.world.blobs)
        self.reached["imported groups"] += len(self._imported)
        self.reached["adoptions"] += claims(self.world.confirmed_events())
        if problems:
            raise Violation("; ".join(problems[:5]))

    def has_fault(self) -> bool:
        """Whether something goes wrong here."""
        bad = self.dice.random() < self._fault_rate
        self.faults += bad
        return bad

    def maybe_turn(self) -> None:
        """Now and then another sealer works while this one waits."""
        if self.dice.random() < self._turn_rate:
            self.turn_of_another(seconds=SLICE_S)

    def turn_of_another(self, seconds: float) -> None:
        """One that is not at work already, where there is one."""
        idle = [life for life in self._lives if not life.busy]
        if idle and len(self._lives) - len(idle) < DEPTH_MAX:
            self.dice.choice(idle).turn(seconds)

    def end(self, life: Life, how: str) -> None:
        """The process is no more; its session ends too."""
        self.reached[how] += 1
        self._lives.remove(life)
        self._old.append(life.turning)
        life.own.close()

    def _import(self) -> None:
        """Somebody imports new groups and old ones, and does not wait for the answer."""
        dice, first = self._import_dice, len(self._imported)
        for number in range(first, first + dice.randint(1, 3)):
            version = f"step-{dice.randint(0, 1)}"
            self._imported.append(group(f"imported-{number}", policy_version=version))
        world = self.world
        with suppress(ImportUnfinished):
            write_rollout_groups(
                world.config.store.root,
                self._imported[dice.randint(0, first) :],
                config=world.config,
                broker=world.new_broker(),
                store=world.blobs,
                clock=world.clock,
                timeout_s=SLICE_S,
            )

    def _act(self) -> None:
        roll = self.dice.random()
        if not self._lives or (len(self._lives) < LIVES_MAX and roll < 0.3):
            self._lives.append(Life(self))
        elif roll < 0.4:
            life = self.dice.choice(self._lives)
            life.turning.fate = always_pass
            if self.dice.random() < 0.5:
                self._close(life)
            else:
                self.end(life, "crashes")
        elif roll < 0.5:
            self._land()
        elif roll < 0.55:
            self.world.clock.wait(threading.Event(), 15.0)  # Groups time out.
        for life in list(self._lives):
            if life in self._lives:
                life.turn(self.dice.choice((0.1, 0.5, 2.0)))

    def _close(self, life: Life) -> None:
        rates = self._fault_rate, self._turn_rate
        self._fault_rate = self._turn_rate = 0.0
        life.sealer.close()
        self._fault_rate, self._turn_rate = rates
        self.end(life, "left")

    def _land(self) -> None:
        rate, self._turn_rate = self._turn_rate, 0.0
        for broker in (*self._old, *(life.turning for life in self._lives)):
            self.reached["landed late"] += broker.land()
        self._turn_rate = rate

    def _settle_down(self) -> None:
        self._fault_rate = self._turn_rate = 0.0
        self._land()
        for life in list(self._lives):
            self.end(life, "crashes")


class _Blobs(PassingBlobs):
    """A store in which writes are refused, repeated, or the last that their process does."""

    def __init__(self, world: Sealers) -> None:
        super().__init__(world.world.blobs)
        self._world = world

    def create(self, path: str, data: Bytes | Pieces) -> None:
        if not self._world.has_fault():
            return super().create(path, data)
        roll = self._world.dice.random()
        if roll < 0.4:
            raise StoreFull("no space is left")
        if roll < 0.7:
            super().create(path, data)
        raise Crash


def finish(world: SealWorld) -> Sealer:
    """A sealer that is not killed settles everything."""
    sealer = world.sealer()
    for _ in range(4):
        world.run(sealer, seconds=1)
        world.clock.wait(threading.Event(), SETTLE_S / 4)
    world.run(sealer, seconds=1)
    return sealer


class Producers:
    """Those that dispatch: they live, wait, and die with groups open.

    Attributes:
        alive: how each stands.
        died: how many did.
    """

    def __init__(self, rng: random.Random) -> None:
        self.alive = [Producer(f"producer-{number}", 0, 0) for number in range(3)]
        self.died = 0
        self._rng = rng

    def published(self, entries: list[Entry]) -> Producer:
        """One of them published these; how it stands then. Now and then one dies, and another takes
        its place."""
        index = self._rng.randrange(len(self.alive))
        if self._rng.random() < 0.03:
            self.died += 1
            name = f"producer-{len(self.alive) + self.died}"
            self.alive[index] = Producer(name, 0, 0)
        begun = sum(
            one.kind == EntryKind.DISPATCHED and one.fields["split"] == "train" for one in entries
        )
        one = self.alive[index]
        one = one._replace(begun=one.begun + begun, waiting=self._rng.randint(0, 2))
        if self._rng.random() < 0.2:
            entries.append(make_alive(one.producer_id))
        if any(each.kind in (EntryKind.DISPATCHED, EntryKind.ALIVE) for each in entries):
            self.alive[index] = one
        return one


def publish_anything(
    world: SealWorld,
    rng: random.Random,
    first: int,
    published: dict[str, Entry],
    producers: Producers,
) -> None:
    """Twenty entries in records of up to eight; bytes that are no record among them."""
    waiting: list[Entry] = []
    for number in range(first, first + 20):
        roll = rng.random()
        if roll < 0.08:
            partition = rng.randrange(world.environment.partitions)
            world.put(bytes([rng.randint(0, 255) for _ in range(20)]), partition=partition)
        else:
            waiting.append(_anything(rng, number, published))
        if len(waiting) == rng.randint(1, 8):
            producer = producers.published(waiting)
            world.publish_entries(*waiting, producer=producer)
            waiting.clear()
    world.publish_entries(*waiting)


def _anything(rng: random.Random, number: int, published: dict[str, Entry]) -> Entry:
    group = f"grp-{rng.randint(0, 12)}" if rng.random() < 0.5 else ""
    fields: dict[str, Any] = {
        "group_uid": group,
        "group_size": 3 if group else 0,
        "example_id": f"ex-{rng.randint(0, 4)}",
    }
    roll = rng.random()
    if roll < 0.08 and group:
        return make_dispatched(**fields, split=rng.choice(("train", "train", "eval")))
    if roll < 0.14 and group:
        return make_failed(rollout_uid=f"failed-{number}", **fields)
    if published and rng.random() < 0.1:
        # A retry keeps its key, so it comes to the partition of its original.
        return published[rng.choice(list(published))]
    uid = f"u{number}"
    published[uid] = make_entry(
        rollout_uid=uid,
        segment_idx=rng.choice([0, 0, 0, 1]),
        is_last_segment=rng.random() < 0.8,
        policy_version=f"step-{rng.randint(0, 2)}",
        **fields,
    )
    return published[uid]
