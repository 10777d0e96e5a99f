"""Adoption within the byte bound: sealers with little memory take over many partitions, whose
groups are not whole or were never read.

No sealer has more bytes of records in memory than its bound. Every group is sealed whole, however
often its partition moves and however long it waits: none expires, and none is cut.
"""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from mmap import mmap
from typing import Any
from unittest.mock import patch

from harness.history import claims, problems_of
from harness.rollouts import make_entry
from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.sealing import scratch
from rollstream.runtime.config.sections import SealersConfig
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.streams.broker import Record
from rollstream.streams.memory.member import MemoryGroupReader
from simulation.consumers.sealers import SlowBroker
from simulation.world import Violation

ROUNDS = 3
MEMBERS = 3
SEAL_TIMEOUT_S = 30.0  # Longer than a round.
ASLEEP_S = 3 * SEAL_TIMEOUT_S
LOOK_EVERY = 16
KIB = 1024
LARGE = tuple(size * KIB for size in (2, 8, 32))
BOUNDS = (0, 48 * KIB, 160 * KIB)
FILE_BYTES = 64 * KIB  # Of scratch: small, so that records are moved on.


class Adopting:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"adopting-{seed}")
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self.world = SealWorld(
            seed=seed,
            partitions=self.dice.choice((4, 8)),
            target_group_size=MEMBERS,
            min_group_size=1,
            seal_timeout_s=SEAL_TIMEOUT_S,
            expire_after_s=2 * SEAL_TIMEOUT_S,
            max_flush_rollouts=self.dice.choice((4, 16, 64)),
        )
        self._bound = self.dice.choice(BOUNDS)
        bounded = SealersConfig(memory_bytes=self._bound)
        self.world.config = self.world.config.model_copy(update={"sealers": bounded})
        self._lives: list[tuple[Sealer, SlowBroker]] = []
        self._uids: list[str] = []
        self._looks = 0
        self._problems: list[str] = []

    def run(self) -> None:
        """Partitions move while their groups are not whole; then all of them wait to be read.

        Raises:
            Violation: with what did not hold.
        """
        with patch.object(scratch, "FILE_BYTES", FILE_BYTES):
            self._move_and_wait()
        whole = [uids for uids in self.world.groups() if len(uids) == MEMBERS]
        if MEMBERS * len(whole) != len(self._uids) or self.world.settled():
            cut = sorted({*self.world.groups()}.difference(whole))
            self._problems.append(f"not sealed whole: {cut[:3]}, {dict(self.world.settled())}")
        problems = [*self._problems, *problems_of(self.world, self._uids)]
        self.reached["adoptions"] += claims(self.world.confirmed_events())
        if problems:
            raise Violation("; ".join(problems[:5]))

    def _move_and_wait(self) -> None:
        for number in range(ROUNDS):
            while len(self._lives) < 2:
                self._begin()
            groups = [f"{number}-{index}" for index in range(self.dice.randint(8, 24))]
            self._publish(groups, range(MEMBERS - 1))
            self._work(2.0)
            self._move()
            if self.dice.random() < 0.5:
                self._work(2.0)
            self._publish(groups, range(MEMBERS - 1, MEMBERS))
            self._work(4.0)
        while self._lives:
            self._crash()
        self._publish([f"asleep-{index}" for index in range(24)], range(MEMBERS))
        self.world.clock.wait(threading.Event(), ASLEEP_S)
        self._begin()
        self._work(6.0)

    def look(self) -> None:
        """A sealer is about to read; each of its figures takes as long as reading a few records."""
        self._looks += 1
        if self._looks % LOOK_EVERY:
            return
        for sealer, _ in self._lives:
            waits = [one.waits_for_room for one in sealer.stats().partitions]
            self.reached["waits for room"] += sum(waits)

    def _begin(self) -> None:
        broker = _WatchedBroker(self)
        self._lives.append((self.world.sealer(broker=broker), broker))

    def _move(self) -> None:
        """The partitions of a sealer go to another one."""
        roll = self.dice.random()
        self.faults += 1
        if roll < 0.3:
            self.reached["evictions"] += 1
            self.dice.choice(self._lives)[1].evict()
            return
        for _ in range(1 if roll < 0.7 else 2):
            self._crash()
        if not self._lives:
            self._begin()

    def _crash(self) -> None:
        self.reached["crashes"] += 1
        _, broker = self._lives.pop(self.dice.randrange(len(self._lives)))
        broker.close()

    def _publish(self, groups: list[str], members: range) -> None:
        """The groups of a round come all at once: none is whole before the last of them begins."""
        for member in members:
            for name in groups:
                uid = f"{name}/{member}"
                self._uids.append(uid)
                fields: dict[str, Any] = {"group_uid": name, "group_size": MEMBERS}
                self.world.publish_entries(make_entry(rollout_uid=uid, **fields, **self._large()))

    def _large(self) -> dict[str, Any]:
        size, roll = self.dice.choice(LARGE), self.dice.random()
        if roll < 0.2:
            return {"attachments": {"page": bytes(size)}}
        if roll < 0.4:
            return {"metadata": '{"x": "' + "字" * (size // 3) + '"}'}
        return {"output_tokens": range(size // 8)}

    def _work(self, seconds: float) -> None:
        for _ in range(8):
            self.world.run(*(sealer for sealer, _ in self._lives), seconds=seconds / 8)
            bound = self._bound * len(self._lives)
            if self._in_memory() > bound:
                gc.collect()  # Records of sealers that ended may be left.
                size = self._in_memory()
                if size > bound:
                    self._problems.append(f"{size} bytes in memory, of {bound}")

    def _in_memory(self) -> int:
        """Bytes of all records whose payload is in memory, whoever counts them."""
        size = 0
        for record in gc.get_objects():
            if type(record) is IngestRecord:  # Of millions of objects.
                in_scratch = isinstance(record.payload.obj, mmap)
                self.reached["payloads in scratch"] += in_scratch
                size += 0 if in_scratch else record.size
        return size


class _WatchedBroker(SlowBroker):
    """The world looks before each read."""

    def __init__(self, world: Adopting) -> None:
        super().__init__(world.world.logs, world.dice.choice((2, 20, 500)))
        self._world = world

    def group_reader(self, *args: Any, **settings: Any) -> MemoryGroupReader:
        member = super().group_reader(*args, **settings)
        poll = member.poll

        def look_and_poll(records_max: int, timeout_s: float) -> list[Record]:
            self._world.look()
            return poll(records_max, timeout_s)

        member.poll = look_and_poll  # type: ignore[method-assign]
        return member
