"""How both producers are made, and when they refuse calls."""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Generic, TypeVar

import numpy as np

from rollstream.producers.admission.blocks import ADMISSION_TIMEOUT_S, ShareWanted
from rollstream.producers.admission.following import FollowedAdmission
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import Announced, PolicyLike, Wanted
from rollstream.producers.admission.shares import Allowance
from rollstream.producers.admission.standing import Standing
from rollstream.producers.admission.waiting import AdmissionQueue
from rollstream.producers.engine.connecting import connection
from rollstream.producers.engine.outbox import Outbox, Outgoing
from rollstream.producers.engine.process import watch
from rollstream.producers.engine.sending import Sender
from rollstream.producers.errors import ForkedProducer, ProducerClosed, ProducerDied
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.rollouts.membership import Membership
from rollstream.producers.rollouts.trajectory import Turns
from rollstream.producers.rollouts.validate import group_address
from rollstream.producers.settings import (
    at_least_1,
    check_policy_request,
    check_timeout,
)
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.other_names import refuses
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable, BufferFull
from rollstream.streams.topics.layout import DEFAULT_NAMESPACE

GroupT = TypeVar("GroupT")
TrajectoryT = TypeVar("TrajectoryT")
AdmittedT = TypeVar("AdmittedT")
_log = logging.getLogger("rollstream.admission")
LOOK_AGAIN_S = 60.0  # How often a producer asks whether its topics have the partitions they had.
LOOK_TIMEOUT_S = 0.5
_KEPT_BYTES = 8 * 1024 * 1024  # Several records; at most twice as many stay with the process.
TIMEOUT_S = 30.0  # How long a publish may wait: for room, for the topic's existence, for an answer.


class ProducerShell(ABC, Generic[GroupT, TrajectoryT, AdmittedT]):
    """A producer whose blocks are ``GroupT``, ``TrajectoryT`` and ``AdmittedT`` (see
    ``RolloutProducer``)."""

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
        made = connection(bootstrap, broker, timeout_s, origin, namespace, generation)
        self._broker, self._own_broker, name, layout = made
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._admissions: dict[str, AdmissionLog] = {}
        self._admitting: dict[str, AdmissionQueue] = {}
        self._outbox = Outbox(
            broker=name,
            environment=environment,
            replica_id=replica_id,
            worker_id=worker_id or f"{socket.gethostname()}:{os.getpid()}",
            lineage=lineage,
            layout=layout,
            uid_prefix=SystemEntropy().token(8),
            clock=self._clock,
        )
        self._look_again_s = self._clock.monotonic_s() + LOOK_AGAIN_S
        self._to_look_at: list[str] = []
        self._warned_of: set[str] = set()  # Environments.
        self._refusal: RollstreamError | None = None
        self._death: ProducerDied | None = None
        # Freeing a large block tells glibc to keep what is freed later (its thresholds for mmap and
        # trimming follow). Records are as large as what it would give back to the kernel at each
        # linger, and fresh pages cost more than encoding.
        np.empty(_KEPT_BYTES, np.uint8)
        # Records come whole, one of a partition at a time: there is nothing to linger for.
        writer = self._broker.writer(linger_ms=0.0, report_offsets=False)
        self._sender = Sender(writer, self._outbox, self._settle)
        self._begin()
        watch(self)

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
        if split == "eval":
            return self._group(membership, None)
        named = f"{membership.address.group_uid} of {example_id}"
        return self._group(membership, self._share_wanted(environment, 1, named, timeout_s))

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
        groups may be begun. So ask for few at once. When the block ends, groups for which nothing
        was published are given back.

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
        return self._admitted(self._share_wanted(environment, groups, "", timeout_s))

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
        return self._trajectory(Turns(self._outbox, address, rollout_uid))

    def _wanted_policy(
        self, newer_than: PolicyLike | None, environment: str, lineage: str | None
    ) -> Wanted:
        """What ``policy`` asks for, once it was checked."""
        self._refuse()
        environment = environment or self._outbox.environment
        check_policy_request(environment, lineage, newer_than)
        if lineage is None:
            lineage = self._outbox.lineage if newer_than is None else newer_than.lineage
        return Wanted(environment, lineage, newer_than)

    def _admission(self, environment: str) -> AdmissionLog:
        """What the environment's workers are told; nothing is read before its first ``wait``."""
        log = self._admissions.get(environment)
        if log is None:
            topic = self._outbox.layout.admission(environment)
            made = FollowedAdmission(self._broker, topic, self._outbox.producer_id, self._clock)
            log = self._admissions.setdefault(environment, made)  # Threads may share a producer.
        return log

    def _announced(self, environment: str) -> Announced:
        """The policies that are known without waiting; from the first call on they are followed."""
        self._refuse()
        log = self._admission(environment)
        if not log.policies():
            with suppress(RollstreamError):  # None is known.
                log.wait(0, 0.0)
        return log.policies()

    def _end_admission(self) -> None:
        for log in self._admissions.values():
            log.close()

    @abstractmethod
    def _begin(self) -> None:
        """Makes what the kind of producer has besides."""

    @abstractmethod
    def _settle(self, outgoing: Sequence[Outgoing], error: RollstreamError | None) -> None:
        """The entries of a record are in the log, or why they are, perhaps, not."""

    @abstractmethod
    def _group(self, membership: Membership, wanted: ShareWanted | None) -> GroupT:
        """The block of ``dispatch``, which waits for admission unless there is None to wait for."""

    @abstractmethod
    def _admitted(self, wanted: ShareWanted) -> AdmittedT:
        """The block of ``admit``."""

    @abstractmethod
    def _trajectory(self, turns: Turns) -> TrajectoryT:
        """The block of ``trajectory``."""

    def after_fork(self) -> None:
        """Runs in a forked child: the producer stays the parent's."""
        self._refusal = ForkedProducer(
            "this producer was made before the process was forked off; make one in each process"
        )
        for admission in self._admitting.values():
            admission.after_fork(self._refusal)

    @abstractmethod
    def at_exit(self, timeout_s: float) -> None:
        """Runs at the end of the process."""

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _die(self, cause: BaseException) -> None:
        """What runs behind the producer has ended with this: every further call raises it."""
        self._death = ProducerDied.of(cause)
        self._refusal = self._refusal or self._death
        self._end_waits(self._refusal)

    def _raise_what_failed(self) -> None:
        """Raises, when all is released, what the caller was not told."""
        self._outbox.raise_failures()
        if self._death is not None:
            raise self._death

    def _closes_now(self) -> bool:
        """Closes the producer for further calls; False where it was closed, or forked, before."""
        if self._refusal is not self._death:
            return False
        self._refusal = ProducerClosed()
        self._end_waits(self._refusal)
        return True

    def _end_waits(self, error: RollstreamError) -> None:
        for admission in list(self._admitting.values()):
            admission.refuse(error)

    def _share_wanted(
        self, environment: str, groups: int, group: str, timeout_s: float
    ) -> ShareWanted:
        """What a block of this environment asks for."""
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
            self._refuse()  # Else nobody would end its waits.
        published = partial(self._published, topic, standing)
        return ShareWanted(admission, environment, groups, group, timeout_s, published)

    def _published(self, topic: str, standing: Standing) -> int:
        """Entries that were gathered so far, without those that said that it lives."""
        return self._sender.appended(topic) - standing.told

    def _to_tell(self) -> tuple[list[str], float]:
        """The environments in which it is to tell now that it lives; in how many seconds next."""
        environments, next_s = [], inf
        for environment, admission in list(self._admitting.items()):
            tells, left_s = admission.tells_that_it_lives()
            environments += [environment] if tells else []
            next_s = min(next_s, left_s)
        return environments, next_s

    def _last_to_tell(self) -> Iterator[Outgoing]:
        """At its end: that nothing waits any more, where it told last that something does."""
        for environment, admission in list(self._admitting.items()):
            alive = self._outbox.alive(environment)
            if alive.topic in self._sender.partitions and admission.tells_that_none_waits():
                yield alive

    def _topic_to_look_at(self) -> str | None:
        """A topic whose partitions are to be asked for again, as each is once in a minute."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_AGAIN_S
            self._to_look_at = list(self._sender.partitions)
            self._warn_of_unlimited(now_s)
        return self._to_look_at.pop() if self._to_look_at else None

    def _warn_of_unlimited(self, now_s: float) -> None:
        """Says once that what is published fills what others wait for, where that is known: the
        environment's policies are followed, samplers grant shares, and no block asked for one."""
        for environment, log in list(self._admissions.items()):
            if environment in self._admitting or environment in self._warned_of:
                continue
            granted = any(
                now_s < one.read_s + one.shares.valid_s
                and self._outbox.lineage in (None, one.shares.lineage)
                for one in log.shares().values()
            )
            if granted and self._sender.appended(self._outbox.topic(environment)):
                self._warned_of.add(environment)
                _log.warning(
                    "samplers limit how many groups of %r are begun, and this producer publishes "
                    "without asking, so it fills what others wait for; publish in a block of "
                    'dispatch(), or of admit() where there are no groups; only split="eval" needs '
                    "neither",
                    environment,
                )

    def _answer_s(self, timeout_s: float) -> float:
        """How long a call with this bound may wait for what the broker has to say first."""
        return min(timeout_s or self._timeout_s, self._timeout_s)

    def _unreachable(self, topic: str, timeout_s: float) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"{self._outbox.broker} did not say within {timeout_s:g} s whether topic {topic} "
            "exists; check that the broker runs and can be reached from here; nothing was queued"
        )

    def _full(self, *, at_once: bool = False) -> BufferFull:
        cause = f" ({self._sender.full_cause})" if self._sender.full_cause else ""
        waited = "no room now" if at_once else f"no room for {self._timeout_s:g} s"
        return BufferFull(
            f"{waited}, with {self._sender.outstanding} rollouts and "
            f"events on their way to {self._outbox.broker}{cause}; check that the broker runs and "
            "can be reached, or publish more slowly; nothing was queued"
        )
