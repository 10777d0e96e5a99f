"""Sealers that nothing kills, while a coordinator or a leader is silent, a store hangs, a broker's
clock is an hour ahead, a seal log gets a record that nobody can read, or a Kafka client fails.

What is silent or hangs hinders its own partitions alone: groups that are whole are sealed at once
in all others. That a store hangs is told beside the offsets of its partitions. Once everything
answers again, the same sealers settle all that was published.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

from harness.faults import Append, Fate, FaultyBroker
from harness.held_workers import HeldWorkers
from harness.history import claims, problems_of
from harness.rollouts import encode_record, make_entry
from harness.sealing import TIMEOUT_S, SealWorld
from harness.wrong_clock import HOUR_US, WrongClock
from rollstream.consumers import InlineExecutor
from rollstream.consumers.beside.threads import SealerThreads
from rollstream.consumers.sealing.offsets import TELL_EVERY_S
from rollstream.consumers.sealing.partition import STEP_LASTS_S
from rollstream.runtime.clock import Clock
from rollstream.schemas.events import Flushed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import (
    Admin,
    Committed,
    GroupReader,
    Headers,
    LogReader,
    Record,
    TopicPartition,
)
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.troubles import note_in
from simulation.consumers.sealers import SETTLE_S, finish
from simulation.world import Violation

TURNS = 12
TURN_S = 4.0
PROMPT_S = 2.0  # In which a whole group is sealed where nothing hinders its partition.
MEMBERS = 3
SEAL_TIMEOUT_S = 10.0
TOLD_S = STEP_LASTS_S + TELL_EVERY_S + PROMPT_S
RECOVERY_S = 30.0  # After it nothing of a silence is left: what was in doubt is claimed over.
UNREADABLE = MARKER + bytes(8) + b"newer"
SILENT = BrokerUnavailable("the world's broker is silent")
P = ParamSpec("P")
T = TypeVar("T")


class Silences:
    """The world of one seed.

    Args:
        clock: of the sealers, made of the world's.
    """

    def __init__(self, seed: int, *, clock: Callable[[Clock], Clock] = lambda clock: clock) -> None:
        self.dice = random.Random(f"silences-{seed}")
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self.world = SealWorld(
            seed=seed,
            partitions=self.dice.choice((2, 3, 4)),
            target_group_size=MEMBERS,
            min_group_size=1,
            seal_timeout_s=SEAL_TIMEOUT_S,
            expire_after_s=2 * SEAL_TIMEOUT_S,
        )
        self.coordinator_is_silent = False
        self.silent: set[int] = set()  # Partitions whose leader answers nothing.
        self._ahead: set[int] = set()  # Partitions whose leader's clock is an hour ahead.
        self._unreadable: dict[int, int] = {}  # Offsets in seal logs.
        self._begun_us: dict[str, int] = {}  # When the first member of a group was published.
        self._uids: list[str] = []
        self._stamp()
        self._lives = [_Life(self, clock) for _ in range(self.dice.choice((1, 2)))]

    def run(self) -> None:
        """Publishes while this and that is silent; then everything answers.

        Raises:
            Violation: with what did not hold.
        """
        self._work(TURN_S)
        problems = [problem for turn in range(TURNS) for problem in self._turn(turn)]
        self._work(TOLD_S)
        problems += self._not_told()
        self._end_silences()
        self._work_now_and_then(SETTLE_S)
        for life in self._lives:
            life.sealer.close()
        for number, offset in self._unreadable.items():
            self.world.logs.cut_back(self._seal_log(number), offset)
        if self._unreadable:
            finish(self.world)
        problems += [*self._cut_early(), *problems_of(self.world, self._uids)]
        self.reached["adoptions"] += claims(self.world.confirmed_events())
        if problems:
            raise Violation("; ".join(problems[:5]))

    def _turn(self, turn: int) -> Iterator[str]:
        """Something may begin or end; then groups are published, whole ones and others."""
        self._begin_or_end(turn)
        count, whole = self.world.environment.partitions, dict[str, int]()
        for number in sorted(set(range(count)) - self.silent - self._unreadable.keys()):
            whole[self._publish(number, f"whole-{turn}", MEMBERS)] = number
            if self.dice.random() < 0.5:
                self._publish(number, f"part-{turn}", self.dice.randint(1, MEMBERS - 1))
        self._work(PROMPT_S)
        sealed = {uid for uids in self.world.groups() for uid in uids}
        hindered = {number for life in self._lives for number in life.hindered()}
        for name, number in whole.items():
            if number not in hindered and f"{name}/0" not in sealed:
                yield f"{name} was not sealed within {PROMPT_S:g} s; silent: {self.silent}"
        self._work(TURN_S - PROMPT_S)

    def _not_told(self) -> Iterator[str]:
        """Partitions of a store that hangs for long, and nobody knows."""
        group, deaf = self.world.layout.sealer_group("math"), self.silent | self._unreadable.keys()
        for life in self._lives if not self.coordinator_is_silent else ():
            for number in life.hindered() - deaf:
                where = self.world.source(number)
                found = self.world.broker.admin().committed(group, [where], TIMEOUT_S)[where]
                self.reached["hangs told"] += 1
                if not note_in(found.metadata).trouble:
                    yield f"nobody was told that the store of {where} hangs"

    def _begin_or_end(self, turn: int) -> None:
        roll, count = self.dice.random(), self.world.environment.partitions
        number = self.dice.randrange(count)
        if roll < 0.3:
            self._end_silences()
            self._work_now_and_then(RECOVERY_S)
        elif roll < 0.45:
            self.coordinator_is_silent = True
            self._began("silent coordinators")
        elif roll < 0.65:
            if number not in self.silent:
                self._publish(number, f"last-{turn}", MEMBERS)
            self.silent.add(number)
            self._began("silent leaders")
        elif roll < 0.75:
            self.dice.choice(self._lives).store.holding = True
            self._began("hanging stores")
        elif roll < 0.85:
            self._ahead.add(number)
            self._began("clocks ahead")
        elif roll < 0.9 and number not in self.silent | self._unreadable.keys():
            where = self._seal_log(number)
            self._unreadable[number] = self.world.logs.bounds(where)[1]
            self.world.logs.append(where, None, UNREADABLE)
            self._began("unreadable records")
        elif roll >= 0.95:
            self.dice.choice(self._lives).broker.fail_writers()
            self._began("failed clients")

    def _began(self, what: str) -> None:
        self.faults += 1
        self.reached[what] += 1

    def _end_silences(self) -> None:
        self.coordinator_is_silent = False
        self.silent.clear()
        for life in self._lives:
            self.reached["landed late"] += life.broker.land()
            life.store.go_on()
            life.claimers.go_on()

    def _publish(self, number: int, name: str, members: int) -> str:
        name = self.world.key_in(number, f"{name}-{number}")
        self._begun_us[name] = self.world.clock.now_us()
        for member in range(members):
            uid = f"{name}/{member}"
            self._uids.append(uid)
            entry = make_entry(rollout_uid=uid, group_uid=name, group_size=MEMBERS)
            value = encode_record([entry], partitions=self.world.environment.partitions)
            self.world.put(value, partition=number)
        return name

    def _work(self, seconds: float) -> None:
        self.world.run(*(life.sealer for life in self._lives), seconds=seconds)

    def _work_now_and_then(self, seconds: float) -> None:
        self.world.run_now_and_then(*(life.sealer for life in self._lives), seconds=seconds)

    def _seal_log(self, number: int) -> TopicPartition:
        return TopicPartition(self.world.layout.groups("math"), number)

    def _cut_early(self) -> Iterator[str]:
        """Groups that were not whole, and were sealed before their time."""
        for item in self.world.confirmed_events():
            if not isinstance(item.event, Flushed) or item.where.partition in self._ahead:
                continue
            start = 0
            for group in item.event.groups:
                name = item.event.segments.uids[start].rpartition("/")[0]
                start += group.rows
                waited_s = (item.timestamp_us - self._begun_us[name]) / 1e6
                if group.rows < MEMBERS and waited_s < SEAL_TIMEOUT_S - 1:
                    yield f"{name} was cut after {waited_s:g} s, with {group.rows} members"

    def _stamp(self) -> None:
        """Leaders stamp records by their own clocks."""
        logs, append = self.world.logs, self.world.logs.append

        def stamped(
            where: TopicPartition, key: bytes | None, value: bytes, headers: Headers = ()
        ) -> Record:
            clock = logs.clock
            ahead = where.partition in self._ahead and where.topic in self._of_environment
            logs.clock = WrongClock(clock, HOUR_US) if ahead else clock
            try:
                return append(where, key, value, headers)
            finally:
                logs.clock = clock

        layout = self.world.layout
        self._of_environment = {layout.rollouts("math"), layout.groups("math")}
        vars(logs)["append"] = stamped


class _Life:
    """One sealer, with threads of its own that may stand still.

    Attributes:
        store: what calls the store.
    """

    def __init__(self, world: Silences, clock: Callable[[Clock], Clock]) -> None:
        self.broker = _SilentBroker(world)
        self.store = HeldWorkers(begins=True)
        self.claimers = _Claimers(world)
        inline = InlineExecutor()
        threads = SealerThreads(
            self.store, self.claimers, self.claimers, inline, self.store, inline
        )
        with patch.object(SealerThreads, "of", lambda workers, _: threads):
            self.sealer = world.world.sealer(broker=self.broker, clock=clock(world.world.clock))

    def hindered(self) -> set[int]:
        """The partitions whose files cannot be written."""
        held = self.sealer.stats().partitions if self.store.holding else ()
        return {one.partition for one in held}


class _Claimers(HeldWorkers):
    """The claim of a log whose leader is silent waits; everything else runs at once."""

    def __init__(self, world: Silences) -> None:
        super().__init__(begins=True)
        self._world = world

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        of = getattr(getattr(fn, "__self__", None), "address", None)
        self.holding = of is not None and of.partition in self._world.silent
        return super().submit(fn, *args, **kwargs)


class _SilentBroker(FaultyBroker):
    """What a silent leader was sent lands once it answers; nobody says so."""

    def __init__(self, world: Silences) -> None:
        super().__init__(MemoryBroker(world.world.logs), self._fate)
        self._world = world
        self._seal_logs = world.world.layout.groups("math")

    def group_reader(self, *args: Any, **settings: Any) -> GroupReader:
        member, world = super().group_reader(*args, **settings), self._world
        commit = member.commit

        def commit_unless_silent(where: TopicPartition, offset: int, note: str) -> Future[bool]:
            return Future() if world.coordinator_is_silent else commit(where, offset, note)

        vars(member).update(commit=commit_unless_silent)
        return member

    def reader(self, *args: Any, **settings: Any) -> LogReader:
        reader, world = super().reader(*args, **settings), self._world
        bounds, ingest = reader.bounds, world.world.layout.rollouts("math")

        def bounds_unless_silent(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
            if where.topic == ingest and where.partition in world.silent:
                raise SILENT
            return bounds(where, timeout_s)

        vars(reader).update(bounds=bounds_unless_silent)
        return reader

    def admin(self) -> Admin:
        admin, world = super().admin(), self._world
        committed = admin.committed

        def committed_unless_silent(*args: Any) -> dict[TopicPartition, Committed]:
            if world.coordinator_is_silent:
                raise SILENT
            return committed(*args)

        vars(admin).update(committed=committed_unless_silent)
        return admin

    def _fate(self, append: Append) -> Fate:
        is_silent = append.topic == self._seal_logs and append.partition in self._world.silent
        return Fate.HOLD if is_silent else Fate.PASS
