"""A dispatched group: what is being worked on, in a ``with`` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self, Unpack

from rollstream.producers.admission.blocks import Admitted, AsyncAdmitted
from rollstream.producers.arguments import MemberArguments, WholeArguments, takes
from rollstream.producers.membership import Membership
from rollstream.producers.outbox import Outgoing
from rollstream.producers.steps import Queue, Send, at_once
from rollstream.producers.trajectory import AsyncTrajectory, Trajectory, Turns
from rollstream.producers.validate import GroupAddress
from rollstream.schemas.errors import RollstreamError


class Group:
    """The members of one group; ``RolloutProducer.dispatch`` makes it.

    Entering the block waits for admission, then publishes that the group was dispatched. Leaving
    it, by its end or by an exception, publishes how many members are missing as failed, so the
    group is complete at once.
    """

    def __init__(
        self,
        membership: Membership,
        send: Queue,
        end: Callable[[GroupAddress], None],
        admitted: Admitted | None,
    ) -> None:
        self._membership = membership
        self._send = send
        self._end = end
        self._admitted = admitted

    @property
    def group_uid(self) -> str:
        """What the members share."""
        return self._membership.address.group_uid

    @takes(MemberArguments)
    def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member and returns its uid at once.

        Arguments and errors are those of ``RolloutProducer.publish``, without what ``dispatch`` was
        given (``environment``, ``example_id``, ``group_uid``, ``group_size``, ``split``) and
        without ``replica_id``.
        """
        return at_once(self._membership.publish(member, self._send))

    @takes(WholeArguments)
    def append(self, **rollout: Unpack[WholeArguments]) -> str:
        """Publishes one whole rollout more than ``group_size`` and returns its uid at once.

        Before the last member is published or failed, as the group is sealed then:
        ``InvalidRollout`` from then on. It is not waited for where the block is left. Arguments and
        other errors are those of ``publish``.
        """
        return at_once(self._membership.append(rollout, self._send))

    def wanted(self) -> bool:
        """Whether what the group is sampled by would still be served: the oldest policy that it was
        published with; before the first one, the newest that was known when this was first asked.
        False: stop, and leave the block. Asks nobody."""
        return self._membership.wanted()

    def fail(self, reason: str | BaseException, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come; they count towards the size."""
        at_once(self._membership.fail(self._send, reason, count))

    def trajectory(self, *, rollout_uid: str = "") -> Trajectory:
        """A member of several segments (see ``RolloutProducer.trajectory``)."""
        return Trajectory(Turns.of_member(self._membership, rollout_uid), self._send)

    def __enter__(self) -> Self:
        if self._admitted is not None:
            self._admitted.enter()
        dispatched = self._membership.dispatched()
        try:
            at_once(self._send(dispatched))
        except BaseException:
            if self._admitted is not None:
                self._admitted.end(int(dispatched.left))
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            at_once(self._membership.leave(error, partial(self._send, raise_earlier=False)))
        finally:
            self._end(self._membership.address)
            if self._admitted is not None:
                self._admitted.end(1)


class AsyncGroup:
    """``Group`` with ``await``: each call returns once the broker has what it published."""

    def __init__(
        self, membership: Membership, deliver: Send, admitted: AsyncAdmitted | None
    ) -> None:
        self._membership = membership
        self._deliver = deliver
        self._admitted = admitted

    @property
    def group_uid(self) -> str:
        """What the members share."""
        return self._membership.address.group_uid

    @takes(MemberArguments)
    async def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member (see ``Group.publish``); returns its uid once the broker has it."""
        return await self._membership.publish(member, self._deliver)

    @takes(WholeArguments)
    async def append(self, **rollout: Unpack[WholeArguments]) -> str:
        """One rollout more (see ``Group.append``); returns its uid once the broker has it."""
        return await self._membership.append(rollout, self._deliver)

    def wanted(self) -> bool:
        """As ``Group.wanted``; not awaited."""
        return self._membership.wanted()

    async def fail(self, reason: str | BaseException, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come; they count towards the size."""
        await self._membership.fail(self._deliver, reason, count)

    def trajectory(self, *, rollout_uid: str = "") -> AsyncTrajectory:
        """A member of several segments (see ``RolloutProducer.trajectory``)."""
        return AsyncTrajectory(Turns.of_member(self._membership, rollout_uid), self._deliver)

    async def __aenter__(self) -> Self:
        if self._admitted is not None:
            await self._admitted.enter()
        dispatched = self._membership.dispatched()
        try:
            await self._dispatch(dispatched)
        except BaseException:
            if self._admitted is not None:
                self._admitted.end(int(dispatched.left))
            raise
        return self

    async def _dispatch(self, dispatched: Outgoing) -> None:
        try:
            await self._deliver(dispatched)
        except (Exception, asyncio.CancelledError) as error:
            if dispatched.left:  # It may be in the log, and the block's end never comes.
                with suppress(RollstreamError):
                    await self._membership.leave(error, self._deliver)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._membership.leave(error, self._deliver)
        finally:
            if self._admitted is not None:
                self._admitted.end(1)
