"""A dispatched group: what is being worked on, in a ``with`` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, Unpack

from rollstream.producers.admission.blocks import AdmittedBlock
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.rollouts.arguments import (
    ManyArguments,
    MemberArguments,
    WholeArguments,
    takes,
)
from rollstream.producers.rollouts.blocks import Send
from rollstream.producers.rollouts.membership import Membership
from rollstream.producers.rollouts.trajectory import AsyncTrajectory, Trajectory
from rollstream.producers.rollouts.validate import GroupAddress
from rollstream.runtime.at_once import at_once
from rollstream.schemas.errors import InvalidRollout, RollstreamError

_IN_A_BLOCK = (
    "write `with producer.dispatch(…) as group`, or `async with` for an async producer, and "
    "publish in the block"
)


@dataclass(eq=False, repr=False)
class GroupBlock:
    """A block that publishes the members of one group.

    Args:
        send: gets what the group publishes on its way.
        end: called when nothing more of it comes.
        admitted: waits for admission; None: there is none to wait for.
    """

    _membership: Membership
    _send: Send
    _end: Callable[[GroupAddress], None]
    _admitted: AdmittedBlock | None
    _begun: bool = False

    @property
    def group_uid(self) -> str:
        """The uid that the members share."""
        return self._membership.address.group_uid

    def wanted(self) -> bool:
        """Returns whether the trainer would still take this group; if False, leave the block.

        It asks nobody: it looks at the oldest policy that a member was published with. Before the
        first member, it looks at the newest policy that was known when you first asked.
        """
        return self._membership.wanted()

    def _members(self) -> Membership:
        """The members; ``InvalidRollout`` before the block begins."""
        if not self._begun:
            finding = f"{self.group_uid} has not begun: it was neither admitted nor dispatched"
            raise InvalidRollout("group", self.group_uid, _IN_A_BLOCK, finding)
        return self._membership

    async def _enter(self) -> None:
        if self._begun:
            finding = f"{self.group_uid} has begun before, and a group begins once"
            raise InvalidRollout("group", self.group_uid, "dispatch another group", finding)
        if self._admitted is not None:
            await self._admitted.enter()
        dispatched = self._membership.dispatched()
        try:
            await self._dispatch(dispatched)
        except BaseException:
            if self._admitted is not None:
                self._admitted.end(int(dispatched.left))
            raise
        self._begun = True

    async def _dispatch(self, dispatched: Outgoing) -> None:
        try:
            await self._send((dispatched,))
        except (Exception, asyncio.CancelledError) as error:
            if dispatched.left:  # It may be in the log, and the block's end never comes.
                with suppress(RollstreamError):
                    await self._membership.leave(error, self._send)
            raise

    async def _leave(self, error: BaseException | None) -> None:
        try:
            await self._membership.leave(error, partial(self._send, raise_earlier=False))
        finally:
            self._end(self._membership.address)
            if self._admitted is not None:
                self._admitted.end(1)


class Group(GroupBlock):
    """Publishes the members of one group; ``RolloutProducer.dispatch`` makes it.

    Entering the block waits for admission, then publishes that the group was dispatched. Leaving it
    publishes the missing members as failed, so the group is complete at once.
    """

    @takes(MemberArguments)
    def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member and returns its uid at once.

        Arguments and errors are those of ``RolloutProducer.publish``, without ``replica_id`` and
        the arguments of ``dispatch``.
        """
        return at_once(self._members().publish(member, self._send))

    @takes(ManyArguments)
    def publish_many(self, **members: Unpack[ManyArguments]) -> list[str]:
        """Publishes several members and returns their uids at once; queues all of them, or none.

        Arguments are those of ``publish``. Each may be one value for all members, or a list with a
        value for each. A policy is one for all.

        Args:
            weight_step (int): one number for all members. A list with a value for each is refused.
            output_tokens (list of int32 [n]): an array for each member; so it says how many there
                are.
            prompt_tokens (int32 [prompt], or a list of these): one array for all, or one for each.

        Raises:
            InvalidRollout: names the member's index, field, value and remedy; nothing was queued.
            Others: as ``publish``.

        Examples:
            >>> group.publish_many(
            ...     policy=policy, prompt_tokens=prompt, output_tokens=outputs,
            ...     logprobs=logprobs, reward=rewards,
            ... )
        """
        return at_once(self._members().publish_many(members, self._send))

    @takes(WholeArguments)
    def append(self, **rollout: Unpack[WholeArguments]) -> str:
        """Publishes a whole rollout beyond ``group_size`` and returns its uid at once.

        Call it before the last member is published or failed, since the group is sealed then; later
        calls raise ``InvalidRollout``. Leaving the block does not wait for such members. Arguments
        and other errors are those of ``publish``.
        """
        return at_once(self._members().append(rollout, self._send))

    def fail(self, reason: str | BaseException, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come. They count towards the group's size.

        Args:
            reason: why, as text or an error; the first 200 characters are kept.
            count: how many members.
        """
        at_once(self._members().fail(self._send, reason, count))

    def trajectory(self, *, rollout_uid: str = "") -> Trajectory:
        """Returns a member of several segments, as ``RolloutProducer.trajectory`` does."""
        group = self._members()
        return Trajectory(group.outbox, group.address, self._send, rollout_uid, group)

    def __enter__(self) -> Self:
        at_once(self._enter())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        at_once(self._leave(error))


class AsyncGroup(GroupBlock):
    """Publishes the members of one group with ``await``; see ``Group``. Each call returns once the
    broker has what it published.
    """

    @takes(MemberArguments)
    async def publish(self, **member: Unpack[MemberArguments]) -> str:
        """Publishes a member (see ``Group.publish``); returns its uid once the broker has it."""
        return await self._members().publish(member, self._send)

    @takes(ManyArguments)
    async def publish_many(self, **members: Unpack[ManyArguments]) -> list[str]:
        """Publishes several members, as ``Group.publish_many`` does; returns their uids once the
        broker has all of them.
        """
        return await self._members().publish_many(members, self._send)

    @takes(WholeArguments)
    async def append(self, **rollout: Unpack[WholeArguments]) -> str:
        """Publishes one more rollout, as ``Group.append`` does; returns its uid once the broker has
        it.
        """
        return await self._members().append(rollout, self._send)

    async def fail(self, reason: str | BaseException, *, count: int = 1) -> None:
        """Publishes that ``count`` members will never come, as ``Group.fail`` does."""
        await self._members().fail(self._send, reason, count)

    def trajectory(self, *, rollout_uid: str = "") -> AsyncTrajectory:
        """Returns a member of several segments, as ``RolloutProducer.trajectory`` does."""
        group = self._members()
        return AsyncTrajectory(group.outbox, group.address, self._send, rollout_uid, group)

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)
