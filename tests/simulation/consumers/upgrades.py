"""Sealers under a seed that are older than some producers: their partitions stop, and go on whole
once a newer sealer has them.

Every group has three members, published together in records of their own. So a group that is sealed
with fewer is torn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from harness.history import claims, problems_of
from harness.newer_records import NEWER_HEADERS, newer, upgraded
from harness.rollouts import encode_record, make_entry
from rollstream.schemas.events import Flushed
from rollstream.streams.broker import TopicPartition
from simulation.consumers.sealers import SETTLE_S, TURNS, Sealers, finish
from simulation.world import Violation

GROUPS_A_TURN = 4
MEMBERS = 3


class Upgrades(Sealers):
    """The world of one seed: producers are upgraded before the sealers."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self._first_newer: dict[int, int] = {}  # Offset of the first newer record, by partition.
        self._uids: list[str] = []
        self._dice = random.Random(f"upgrades-{seed}")
        count = self.world.environment.partitions
        self._of_newer = self._dice.sample(range(count), self._dice.randint(1, max(1, count - 1)))

    def run(self) -> None:
        """Publishes while older sealers come and go; then they are upgraded.

        Raises:
            Violation: with what did not hold.
        """
        newer_from = self._dice.randrange(TURNS)
        for turn in range(TURNS):
            self._publish(turn, newer_from)
            self._act()
        self._settle_down()
        problems = list(self.problems_of_older())
        with upgraded():
            finish(self.world)
            problems += self.torn()
            problems += problems_of(self.world, self._uids)
        self.reached["adoptions"] += claims(self.world.confirmed_events())
        if problems:
            raise Violation("; ".join(problems[:5]))

    def _publish(self, turn: int, newer_from: int) -> None:
        """Some groups; where producers are newer, each record may be of one."""
        count, dice = self.world.environment.partitions, self._dice
        entries = []
        for number in range(GROUPS_A_TURN):
            name = self.world.key_in(dice.randrange(count), f"grp-{turn}-{number}")
            uids = [f"{name}-{member}" for member in range(MEMBERS)]
            self._uids += uids
            entries += [make_entry(rollout_uid=u, group_uid=name, group_size=MEMBERS) for u in uids]
        dice.shuffle(entries)
        for entry in entries:
            partition = self.world.partition_of(entry.key)
            value = encode_record([entry], partitions=count)
            may_be_newer = turn >= newer_from and partition in self._of_newer
            if may_be_newer and dice.random() < 0.5:
                end = self.world.logs.bounds(self.world.source(partition))[1]
                self._first_newer.setdefault(partition, end)
                self.reached["newer records"] += 1
                self.world.put(newer(value), partition=partition, headers=NEWER_HEADERS)
            else:
                self.world.put(value, partition=partition)

    def problems_of_older(self) -> Iterator[str]:
        """What a sealer left to do that nothing disturbs, or did and must not."""
        sealer = self.world.sealer()
        self.world.run(sealer, seconds=1)
        self.world.run_now_and_then(sealer, seconds=SETTLE_S)
        for one in sealer.stats().partitions:
            first = self._first_newer.get(one.partition)
            end = self.world.logs.bounds(self.world.source(one.partition))[1]
            if first is None and (one.aside or one.watermark != end):
                yield f"partition {one.partition} did not go on: {one}"
            elif first is not None and "a newer producer wrote this record" not in one.aside:
                yield f"partition {one.partition} did not stop at {first}: {one}"
            self.reached["went on" if first is None else "stopped"] += 1
        sealer.close()
        for partition, offset in self._settled():
            if offset >= self._first_newer.get(partition, offset + 1):
                yield f"partition {partition} was settled at {offset} by an older sealer"
                break
        yield from self.torn()

    def _settled(self) -> Iterator[tuple[int, int]]:
        """Partition and offset of every entry that ended."""
        for where, event in self._flushed():
            parts = [event.segments.offsets, *(one.offsets for one in event.settled)]
            for offsets in parts:
                yield from ((where.partition, offset) for offset in offsets.tolist())

    def _flushed(self) -> Iterator[tuple[TopicPartition, Flushed]]:
        for item in self.world.confirmed_events():
            if isinstance(item.event, Flushed):
                yield item.where, item.event

    def torn(self) -> Iterator[str]:
        """Groups that were sealed without a member."""
        for uids in self.world.groups():
            if len(uids) != MEMBERS:
                yield f"a group was torn: {len(uids)} of {MEMBERS} members: {', '.join(uids)}"
