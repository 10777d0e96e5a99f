"""Env workers that begin as many groups as they may."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from harness.rollouts import encode_record, make_alive, make_dispatched, make_entry, make_failed
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import newest_of
from rollstream.producers.admission.shares import Allowance
from rollstream.producers.admission.standing import Request, Standing
from rollstream.producers.admission.waiting import GRANTED_AFTER_S, AdmissionQueue
from rollstream.producers.errors import TooManyGroups
from rollstream.schemas.events import PolicyAnnounced
from rollstream.schemas.ids import READS_ITS_SHARE
from rollstream.schemas.ingest.entry import Entry
from rollstream.streams.partitioning import partition_of
from simulation.admission.stepped import ReachedBroker

if TYPE_CHECKING:
    from simulation.admission.admitted import Admitted

MEMBERS = 2
TAKES_S_MAX = 5.0  # The longest that a group takes.
REWARDS = ((0.0, 1.0), (0.0, 1.0), (1.0, 1.0))


class Block:
    """Groups that are begun together, or wait to be: one that is dispatched, or several for which
    the worker holds a part of its share.

    Attributes:
        uids: of its groups.
        ends_s: when it does, by the world's clock; 0: it was not begun.
    """

    def __init__(self, uids: Sequence[str], request: Request) -> None:
        self.uids = uids
        self.request = request
        self.ends_s = 0.0
        self.policy: tuple[str, int, int] = ("", 0, 0)

    @property
    def is_dispatched(self) -> bool:
        return bool(self.request.group)


class Worker:
    """A process with one producer, which runs several groups at a time.

    Args:
        together: how many it begins at one time.
        is_older: it is of a release that knows one generation of the log.

    Attributes:
        asleep_until_s: while it does nothing, not even say that it lives.
    """

    def __init__(
        self, world: Admitted, environment: str, name: str, together: int, is_older: bool
    ) -> None:
        dice = world.dice
        self.environment, self.name = environment, name if is_older else name + READS_ITS_SHARE
        self.clock = world.own_clock()
        self.broker = ReachedBroker(world.new_broker(), world)
        self.log = AdmissionLog(
            self.broker, world.layout.admission(environment), self.name, self.clock
        )
        if is_older:
            self.log._again_s = inf
        self.standing = Standing(self.name)
        allowance = Allowance(environment, self.name, None)
        self.admission = AdmissionQueue(
            environment, None, allowance, self.standing, self.log, self.clock
        )
        self.asleep_until_s = 0.0
        self._world = world
        self._blocks: list[Block] = []
        self._at_once = dice.choice((2, 4, 8))
        self.together = together
        self._takes_s = dice.choice((0.5, 1.0, TAKES_S_MAX / 1.7))
        self._policy_s: float | None = None
        self._groups = 0
        self._queued: list[Entry] = []

    def turn(self) -> None:
        """It reads what it was granted, ends groups, begins others, and says how it stands."""
        if self._world.now_s < self.asleep_until_s:
            return
        self.log.look()
        if not self._may_begin():
            return
        self._end_blocks()
        self.admission._serve()
        while len(self._blocks) < self._at_once:
            self._ask()
        for block in self._blocks:
            if not block.ends_s and not block.request.waits:
                self._begin(block)
        if self.admission.tells()[0]:
            self._queued.append(make_alive(self.name))
        self._send()

    def close(self) -> None:
        """The process is no more."""
        self.broker.close()

    def _may_begin(self) -> bool:
        """As ``AdmissionQueue.read``: who knows a policy waits a moment for shares."""
        policies = self.log.policies()
        if self._policy_s is None and policies:
            self._policy_s = self._world.now_s
        if self._policy() is None or self._policy_s is None:
            return False
        waited = self._world.now_s >= self._policy_s + GRANTED_AFTER_S
        return waited or {*policies} <= {*self.log.shares()}

    def _policy(self) -> PolicyAnnounced | None:
        """All sample with the weights of the first trainer."""
        return newest_of({k: v for k, v in self.log.policies().items() if k == "first"}, None)

    def _ask(self) -> None:
        uids = [f"{self.name}-{self._groups + number}" for number in range(self.together)]
        group = uids[0] if self.together == 1 else ""
        try:
            request = self.admission.ask(self.together, group, lambda: None)
        except TooManyGroups as error:  # It asks for what it was told, which is then waited for.
            self.together = error.most
            self._world.reached["refused as too many"] += 1
            return
        self._groups += self.together
        self._blocks.append(Block(uids, request))
        if request.waits:
            self._world.reached["waits"] += 1

    def _begin(self, block: Block) -> None:
        world = self._world
        newest = self._policy()
        if newest is not None:  # Else its trainer goes back just now.
            block.policy = newest.policy_version, newest.policy_epoch, newest.step
        block.ends_s = world.now_s + self._takes_s * world.dice.uniform(0.3, 1.7)
        world.reached["groups begun"] += len(block.uids)
        for uid in block.uids:
            world.begun(self, uid, is_told=block.is_dispatched)
        if block.is_dispatched:
            self._queued.append(make_dispatched(**self._group(block.uids[0])))

    def _end_blocks(self) -> None:
        now_s = self._world.now_s
        for block in [one for one in self._blocks if one.ends_s and one.ends_s <= now_s]:
            self._blocks.remove(block)
            for uid in block.uids:
                self._publish(uid, block)
            self.admission.end(block.request, len(block.uids))

    def _publish(self, uid: str, block: Block) -> None:
        dice, group = self._world.dice, self._group(uid)
        if block.is_dispatched and dice.random() < 0.05:
            self._queued.append(make_failed(count=MEMBERS, rollout_uid=f"{uid}-failed", **group))
            return
        version, epoch, step = block.policy
        self._queued += [
            make_entry(
                rollout_uid=f"{uid}-{number}",
                reward=reward,
                policy_version=version,
                policy_epoch=epoch,
                weight_step=step,
                **group,
            )
            for number, reward in enumerate(dice.choice(REWARDS))
        ]

    def _group(self, uid: str) -> dict[str, Any]:
        return {"group_uid": uid, "example_id": uid, "group_size": MEMBERS}

    def _send(self) -> None:
        """As a producer does, which keeps what it cannot send."""
        world = self._world
        if world.away or not self._queued:
            return
        partitions = world.config.environments[self.environment].partitions
        by_partition: dict[int, list[Entry]] = {}
        for entry in self._queued:
            where = partition_of(entry.key.encode(), partitions)
            by_partition.setdefault(where, []).append(entry)
        self._queued.clear()
        for partition, entries in by_partition.items():
            value = encode_record(
                entries,
                environment=self.environment,
                partitions=partitions,
                producer=self.standing.says(),
            )
            world.publish(self.environment, partition, value)
