"""A dispatched group: what is being worked on, in a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from rollstream.producers.arguments import MemberArguments, takes
from rollstream.producers.membership import Membership
from rollstream.producers.outbox import IN_DOUBT, Deliver, Send
from rollstream.producers.trajectory import AsyncTrajectory, Trajectory, TurnsOfMember


class Group:
    """The members of one group; ``RolloutProducer.dispatch`` makes it.

    Entering the block publishes that the group was dispatched. Leaving it, by its end or by an
    exception, publishes how many members are missing as failed, so the group is complete at once.
    """

    def __init__(self, membership: Membership, send: Send) -> None:
        self._membership = membership
        self._send = send

    @property
    def group_uid(self) -> str:
        """What the members share."""
        return self._membership.place.group_uid

    @takes(MemberArguments)
    def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member; returns its uid at once (see ``RolloutProducer.publish``)."""
        fields = self._membership.fields(member)
        uid: str = fields["rollout_uid"]
        try:
            self._send(self._membership.outbox.segment(fields))
        except BaseException:
            self._membership.withdraw(uid)
            raise
        self._membership.sent(fields)
        return uid

    def fail(self, reason: str, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come; they count towards the size."""
        failed = self._membership.fail(reason, count)
        try:
            self._send(failed)
        except BaseException:
            self._membership.take_back(count)
            raise

    def trajectory(self, *, rollout_uid: str = "") -> Trajectory:
        """A member of several segments (see ``RolloutProducer.trajectory``)."""
        return Trajectory(TurnsOfMember(self._membership, rollout_uid), self._send)

    def __enter__(self) -> Self:
        self._send(self._membership.dispatched())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        missing = self._membership.leave(error)
        if missing is not None:
            self._send(missing, tell=False)


class AsyncGroup:
    """The same with ``await``; each call returns once the broker has what it says."""

    def __init__(self, membership: Membership, deliver: Deliver) -> None:
        self._membership = membership
        self._deliver = deliver

    @property
    def group_uid(self) -> str:
        """What the members share."""
        return self._membership.place.group_uid

    @takes(MemberArguments)
    async def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member; returns its uid once the broker has it."""
        fields = self._membership.fields(member)
        uid: str = fields["rollout_uid"]
        try:
            await self._deliver(self._membership.outbox.segment(fields))
        except BaseException:
            self._membership.withdraw(uid)
            raise
        self._membership.sent(fields)
        return uid

    async def fail(self, reason: str, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come; they count towards the size."""
        failed = self._membership.fail(reason, count)
        try:
            await self._deliver(failed)
        except IN_DOUBT:
            raise
        except BaseException:
            self._membership.take_back(count)
            raise

    def trajectory(self, *, rollout_uid: str = "") -> AsyncTrajectory:
        """A member of several segments (see ``RolloutProducer.trajectory``)."""
        return AsyncTrajectory(TurnsOfMember(self._membership, rollout_uid), self._deliver)

    async def __aenter__(self) -> Self:
        await self._deliver(self._membership.dispatched())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        missing = self._membership.leave(error)
        if missing is not None:
            await self._deliver(missing)
