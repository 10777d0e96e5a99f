"""How both producers are made, and when they refuse calls."""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from rollstream.producers.admission.asking import newest_policy
from rollstream.producers.admission.blocks import ADMISSION_TIMEOUT_S, AdmittedBlock
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import Announced, FollowedPolicy, PolicyLike, Wanted
from rollstream.producers.admission.shares import Allowance
from rollstream.producers.admission.standing import ALIVE_S
from rollstream.producers.admission.waiting import AdmissionQueue
from rollstream.producers.engine.hooks import IDLE_S, Encoded
from rollstream.producers.engine.outbox import Outbox, Outgoing
from rollstream.producers.engine.producer import TIMEOUT_S, Connected
from rollstream.producers.engine.stats import ProducerStats
from rollstream.producers.engine.waits import Wait
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.rollouts.group import GroupBlock
from rollstream.producers.rollouts.membership import Membership
from rollstream.producers.rollouts.trajectory import TrajectoryBlock
from rollstream.producers.rollouts.validate import GroupAddress, group_address
from rollstream.producers.settings import at_least_1, check_policy_request, check_timeout
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ingest.wire import record_headers
from rollstream.schemas.other_names import refuses
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable, UnknownTopic
from rollstream.streams.topics.layout import DEFAULT_NAMESPACE

GroupT = TypeVar("GroupT", bound=GroupBlock)
TrajectoryT = TypeVar("TrajectoryT", bound=TrajectoryBlock)
AdmittedT = TypeVar("AdmittedT", bound=AdmittedBlock)
_log = logging.getLogger("rollstream.admission")


class ProducerShell(Connected, ABC, Generic[GroupT, TrajectoryT, AdmittedT]):
    """A producer whose blocks are ``GroupT``, ``TrajectoryT`` and ``AdmittedT`` (see
    ``RolloutProducer``). What its calls wait for, coroutines say: of a producer whose calls block,
    they never wait for a loop."""

    _group_block: type[GroupT]
    _trajectory_block: type[TrajectoryT]
    _admitted_block: type[AdmittedT]

    @refuses(environment_name="environment")
    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        environment: str = "",
        replica_id: str = "unknown",
        worker_id: str = "",
        lineage: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        generation: int = 1,
        timeout_s: float = TIMEOUT_S,
        broker: Broker | None = None,
        clock: Clock | None = None,
    ) -> None:
        origin = {
            "environment": environment,
            "replica_id": replica_id,
            "worker_id": worker_id,
            "lineage": lineage,
        }
        super().__init__(bootstrap, broker, timeout_s, origin, namespace, generation, clock)
        self._admissions: dict[str, AdmissionLog] = {}
        self._admitting: dict[str, AdmissionQueue] = {}
        self._warned_of: set[str] = set()  # Environments.
        self._outbox = Outbox(
            broker=self._broker_name,
            environment=environment,
            replica_id=replica_id,
            worker_id=worker_id or f"{socket.gethostname()}:{os.getpid()}",
            lineage=lineage,
            layout=self._layout,
            uid_prefix=SystemEntropy().token(8),
            clock=self._clock,
        )
        self._begin()

    @refuses(environment_name="environment")
    def dispatch(
        self,
        *,
        example_id: str,
        group_size: int,
        environment: str = "",
        group_uid: str = "",
        split: str = "train",
        timeout_s: float = ADMISSION_TIMEOUT_S,
    ) -> GroupT:
        """Returns a group that this env replica works on, for a ``with`` (``async with``) block.

        Entering the block waits until a sampler of the producer's lineage lets one more group
        begin. Producers that wait are admitted in their order. Nothing is waited for if no sampler
        grants any groups yet, nor with ``split="eval"``. Ask for the policy inside the block, since
        a newer one may have come.

        Leaving the block early fails the members that are missing, so the group is complete.

        Args:
            example_id: the problem.
            group_size: members of the complete group, failed ones included.
            environment: empty: the producer's.
            group_uid: empty: a new one.
            split: ``train`` or ``eval``.
            timeout_s: how long to wait for admission; 0: not at all, once the broker said what is
                granted (within the producer's ``timeout_s``).

        Raises:
            NotAdmitted: on entering the block: the time is up. It says which sampler holds you, and
                which groups this producer holds open. End one block before you wait for the next.
            RunOver: on entering the block: the run ended while it waited.
            InvalidRollout, InvalidSettings: name argument, value and remedy.
            SeveralLineages: on entering the block: samplers of two models grant shares, and the
                producer names no lineage.
            NotAuthorised, BrokerUnavailable: on entering the first block: the shares may not, or
                could not, be read.
        """
        environment = environment or self._outbox.environment
        address = group_address(environment, example_id, group_uid, group_size, split)
        announced = partial(self._announced, environment)
        membership = Membership(self._outbox, address, announced)
        admitted = None
        if split != "eval":
            named = f"{membership.address.group_uid} of {example_id}"
            admitted = self._admitted(environment, 1, named, timeout_s)
        return self._group_block(membership, self._deliver, self._group_ended, admitted)

    @refuses(environment_name="environment")
    def admit(
        self,
        *,
        groups: int = 1,
        environment: str = "",
        timeout_s: float = ADMISSION_TIMEOUT_S,
    ) -> AdmittedT:
        """Returns a block that may begin so many groups, for workers that publish without
        ``dispatch``.

        Entering the ``with`` (``async with``) block waits as ``dispatch`` does, until all of the
        groups may be begun. Smaller requests take turns with it meanwhile, so ask for few at once.
        When the block ends, groups for which nothing was published are given back.

        Args:
            groups: how many.
            environment: empty: the producer's.
            timeout_s: as in ``dispatch``.

        Raises:
            NotAdmitted, RunOver, SeveralLineages: as ``dispatch``.
            InvalidRollout, InvalidSettings: likewise.
            NotAuthorised, BrokerUnavailable: likewise.
            TooManyGroups: on entering the block: so many can never be open at one time. It is known
                only with ``groups_per_step``, or after 8 batches of one size; before, the call
                waits.
        """
        at_least_1("groups", groups)
        environment = checked("environment", environment or self._outbox.environment)
        return self._admitted(environment, groups, "", timeout_s)

    @refuses(environment_name="environment")
    def trajectory(
        self,
        *,
        example_id: str,
        environment: str = "",
        group_uid: str = "",
        group_size: int = 0,
        rollout_uid: str = "",
        split: str = "train",
    ) -> TrajectoryT:
        """Returns a rollout of several segments, for a ``with`` (``async with``) block.

        It is complete when the block ends, and failed when the block raises. The arguments are
        those of ``publish``; ``turn`` takes the others.
        """
        environment = environment or self._outbox.environment
        address = group_address(environment, example_id, group_uid, group_size, split)
        return self._trajectory_block(self._outbox, address, self._deliver, rollout_uid)

    async def _newest_policy(
        self,
        newer_than: PolicyLike | None,
        environment: str,
        lineage: str | None,
        timeout_s: float,
    ) -> FollowedPolicy:
        check_timeout(timeout_s, zero_allowed=True)
        self._engine.refuse()
        environment = environment or self._outbox.environment
        check_policy_request(environment, lineage, newer_than)
        if lineage is None:
            lineage = self._outbox.lineage if newer_than is None else newer_than.lineage
        wanted, log = Wanted(environment, lineage, newer_than), self._admission(environment)

        async def wait(seen: int, longest_s: float) -> int:
            self._engine.refuse()
            return await self._changed(environment, log, seen, longest_s)

        return await newest_policy(wanted, log, wait, self._pause, Deadline(timeout_s, self._clock))

    async def _find(self, topic: str, deadline: Deadline) -> None:
        """Returns once it is known how many partitions the topic has."""
        # The broker's time, whatever the producer's.
        wait = self._wait(deadline.left_s(), SystemClock())
        if not self._engine.find(topic, wait) and not await self._has_ended(wait):
            self._engine.give_up(wait)
            raise self._engine.topics.unreachable(topic, deadline.timeout_s)
        if wait.error is not None:
            raise wait.error

    def _admission(self, environment: str) -> AdmissionLog:
        """What the environment's workers are told; nothing is read before its first ``wait``."""
        log = self._admissions.get(environment)
        if log is None:
            topic = self._outbox.layout.admission(environment)
            made = AdmissionLog(self._broker, topic, self._outbox.producer_id, self._clock)
            log = self._admissions.setdefault(environment, made)  # Threads may share a producer.
        return log

    async def _read_announced(self, environment: str, deadline: Deadline) -> int:
        """Returns once all was read that trainers and samplers had announced; as
        ``AdmissionLog.wait``, but 0 where the environment has no such topic."""
        log = self._admission(environment)
        while True:
            self._engine.refuse()
            try:
                return await self._changed(environment, log, 0, deadline.left_s())
            except UnknownTopic:  # As in an older deployment.
                return 0
            except BrokerUnavailable as late:
                if deadline.passed():
                    why = log.outage()
                    raise BrokerUnavailable(
                        f"{self._broker_name} did not say within {deadline.timeout_s:g} s what "
                        f"trainers and samplers announced{why and ': '}{why}; check that the "
                        "broker runs and can be reached from here"
                    ) from late

    def _announced(self, environment: str) -> Announced:
        """The policies that are known without waiting; from the first call on they are followed."""
        self._engine.refuse()
        log = self._admission(environment)
        if not log.policies():
            with suppress(RollstreamError):  # None is known.
                log.wait(0, 0.0)
        return log.policies()

    @abstractmethod
    async def _deliver(self, outgoing: Sequence[Outgoing], *, raise_earlier: bool = True) -> None:
        """As ``Send``."""

    def _group_ended(self, address: GroupAddress) -> None:
        """Nothing more of this group comes."""

    @abstractmethod
    def _wait(self, timeout_s: float, clock: Clock) -> Wait:
        """A call that waits for the engine."""

    @abstractmethod
    async def _has_ended(self, wait: Wait) -> bool:
        """Waits until the engine ends the call; False where its time is up."""

    @abstractmethod
    async def _changed(
        self, environment: str, log: AdmissionLog, seen: int, timeout_s: float
    ) -> int:
        """As ``AdmissionLog.wait``."""

    def _in_turn(self, environment: str, deadline: Deadline) -> AbstractAsyncContextManager[None]:
        """A block that calls which begin groups of an environment enter one after the other, or
        once their time is up."""
        return nullcontext()

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Waits so long."""

    def _encode(self, record: Sequence[Outgoing], partitions: int) -> Encoded:
        return Encoded(self._outbox.encode(record, partitions), record_headers())

    def _ended(self, refusal: RollstreamError) -> None:
        for admission in list(self._admitting.values()):
            admission.refuse(refusal)

    def _after_fork(self) -> None:
        for admission in self._admitting.values():
            admission.renew_lock()
        super()._after_fork()

    def _release(self) -> None:
        for log in self._admissions.values():
            log.close()

    def _admitted(self, environment: str, groups: int, group: str, timeout_s: float) -> AdmittedT:
        """A block that waits for admission."""
        check_timeout(timeout_s, zero_allowed=True)
        topic = self._outbox.topic(environment)
        standing = self._outbox.standing(environment)
        admission = self._admitting.get(environment)
        if admission is None:
            allowance = Allowance(environment, self._outbox.producer_id, self._outbox.lineage)
            made = AdmissionQueue(
                environment,
                self._outbox.lineage,
                allowance,
                standing,
                self._admission(environment),
                self._clock,
            )
            admission = self._admitting.setdefault(environment, made)  # Threads may ask at once.
            self._engine.refuse()  # Else nobody would end its waits.
        published = partial(self._engine.topics.gathered.__getitem__, topic)
        read = partial(self._read_granted, environment, admission)
        tell = partial(self._tell_waiting, environment, admission)
        return self._admitted_block(admission, groups, group, timeout_s, published, read, tell)

    async def _read_granted(
        self, environment: str, admission: AdmissionQueue, timeout_s: float
    ) -> None:
        # What the broker has to say first may take as long as any call.
        deadline = Deadline(min(timeout_s or self._timeout_s, self._timeout_s))
        async with self._in_turn(environment, deadline):
            await self._find(self._outbox.topic(environment), deadline)
            changed = partial(self._changed, environment, self._admission(environment))
            while not admission.was_read:
                seen = await self._read_announced(environment, deadline)
                try:
                    await admission.wait_for_shares(seen, changed, deadline)
                except BrokerUnavailable:
                    if deadline.passed():
                        raise
        # It may be asleep for longer than a producer may be silent.
        self._engine.stay_awake(ALIVE_S)

    def stats(self) -> ProducerStats:
        stats, standings = super().stats(), [*self._outbox.standings.values()]
        admission = sum(len(standing.waiting) for standing in standings)
        return replace(stats, waiting={**stats.waiting, "admission": admission})

    def _to_tell(self) -> tuple[Iterable[Outgoing], float]:
        if not self._admitting:
            return (), IDLE_S
        environments, next_s = [], ALIVE_S  # A block that begins wakes nobody.
        for environment, admission in list(self._admitting.items()):
            tells, left_s = admission.tells()
            environments += [environment] if tells else []
            next_s = min(next_s, left_s)
        return map(self._outbox.alive, environments), next_s

    def _last(self) -> Iterable[Outgoing]:
        """At its end: that nothing waits any more, where it told last that something does."""
        for environment, admission in list(self._admitting.items()):
            if admission.tells(ends=True)[0]:
                yield self._outbox.alive(environment)

    def _looked_around(self) -> None:
        """Says once that what is published fills what others wait for, where that is known: the
        environment's policies are followed, samplers grant shares, and no block asked for one."""
        now_s = self._clock.monotonic_s()
        for environment, log in list(self._admissions.items()):
            if environment in self._admitting or environment in self._warned_of:
                continue
            granted = any(
                now_s < one.ends_s and self._outbox.lineage in (None, one.shares.lineage)
                for one in log.shares().values()
            )
            if granted and self._engine.topics.gathered[self._outbox.topic(environment)]:
                self._warned_of.add(environment)
                _log.warning(
                    "samplers limit how many groups of %r are begun, and this producer publishes "
                    "without asking, so it fills what others wait for; publish in a block of "
                    'dispatch(), or of admit() where there are no groups; only split="eval" needs '
                    "neither",
                    environment,
                )

    def _tell_waiting(self, environment: str, admission: AdmissionQueue) -> None:
        if admission.tells()[0]:
            self._engine.tell(self._outbox.alive(environment))
