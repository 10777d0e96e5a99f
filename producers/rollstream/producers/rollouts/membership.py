"""The members of a dispatched group: what it publishes, and what it still lacks. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rollstream.producers.admission.policies import Announced, is_stale, newest_of, ref_of
from rollstream.producers.engine.outbox import Outbox, Outgoing
from rollstream.producers.rollouts.arguments import ManyArguments, MemberArguments
from rollstream.producers.rollouts.blocks import Send
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.rollouts.validate import GroupAddress, Segment, policy_of, unknown
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.order import PolicyRef

LEFT_EARLY = "left early"
_OF_A_MEMBER = frozenset(MemberArguments.__annotations__)
_OF_MANY = frozenset(ManyArguments.__annotations__)


class Membership:
    """Counts a group's members up to its size; one uid counts once, however often it is retried."""

    def __init__(
        self, outbox: Outbox, address: GroupAddress, announced: Callable[[], Announced]
    ) -> None:
        if address.group_size < 1:
            remedy = "a group has at least 1 member"
            raise InvalidRollout("group_size", address.group_size, remedy)
        if not address.group_uid:
            address = address._replace(group_uid=f"g-{outbox.new_uid()}")
        self.address = address
        self.outbox = outbox
        self._stamped = outbox.stamped(address)
        self._lock = threading.Lock()  # Held while members are counted: threads share a group.
        self._members: dict[str, bool] = {}  # By uid: whether it was published to its end.
        self._failed = 0
        self._announced = announced
        self._sampled_by: PolicyRef | None = None  # The oldest policy of what was published.
        self._shared: tuple[Any, ...] = ()  # Of the newest segment that was.
        self._newest_before: PolicyRef | None = None  # The newest one when it was first asked for.

    def dispatched(self) -> Outgoing:
        """What the group's block begins with."""
        return self.outbox.dispatched(self.address)

    async def publish(self, given: Mapping[str, Any], send: Send) -> str:
        """Publishes one member's segment (``MemberArguments``); returns its uid."""
        _refuse_others("publish", given, _OF_A_MEMBER)
        segment = self.outbox.segment(given, self._stamped)
        (uid,) = await self._publish([segment], send, ends=given.get("is_last_segment", True))
        return uid

    async def publish_many(self, given: Mapping[str, Any], send: Send) -> list[str]:
        """Publishes whole members (``ManyArguments``), all or none; returns their uids."""
        _refuse_others("publish_many", given, _OF_MANY)
        return await self._publish(self.outbox.together(given, self._stamped), send, ends=True)

    async def _publish(self, segments: Sequence[Segment], send: Send, *, ends: bool) -> list[str]:
        outgoing = [self.outbox.rollout(one) for one in segments]
        uids = [one.rollout_uid for one in outgoing]
        new = self.admit(*uids)
        for one in segments:
            self.sampled_by(one)
        try:
            await send(outgoing)
        except BaseException as error:
            kept = sent_though(error, outgoing)
            for uid in uids if ends else ():
                if uid in kept:
                    self.end(uid)
            for uid in new:  # The others may be tried again.
                if uid not in kept and not self._members.get(uid, True):
                    del self._members[uid]
            raise
        if ends:
            for uid in uids:
                self.end(uid)
        return uids

    async def append(self, given: Mapping[str, Any], send: Send) -> str:
        """Publishes one whole rollout more (``WholeArguments``), beside the members that are
        counted here; returns its uid."""
        _refuse_others("append", given, _OF_A_MEMBER)  # ``appended`` refuses a segment's.
        if self._missing() <= 0:
            uid, size = self.address.group_uid, self.address.group_size
            remedy = "append before the last of them is published"
            finding = f"{uid} has all its {size} members, so it is sealed"
            raise InvalidRollout("group", uid, remedy, finding)
        of_no_size = self.outbox.stamped(self.address._replace(group_size=0))  # As it is by then.
        segment = self.outbox.appended(given, of_no_size)
        outgoing = self.outbox.rollout(segment)
        self.sampled_by(segment)
        await send((outgoing,))
        return outgoing.rollout_uid

    async def fail(
        self, send: Send, reason: str | BaseException, count: int = 1, rollout_uid: str = ""
    ) -> None:
        """Publishes that members will never come; they count unless that was not queued.

        A failure in doubt counts and is not repeated: if both were written, its members would be
        counted twice and the group would be complete without some that were published. At worst the
        group waits.
        """
        said = reason_of(reason) if isinstance(reason, BaseException) else reason
        why, count = checked("reason", said), checked("count", count)
        failed = self.outbox.failed(self.address, why, count, rollout_uid)
        with self._lock:
            missing = self._missing()
            if count > missing:
                uid, size = self.address.group_uid, self.address.group_size
                finding = f"is {count}, but {missing} of the {size} members of group {uid} are "
                raise InvalidRollout("count", count, f"give at most {missing}", f"{finding}missing")
            self._failed += count
            self._members.pop(rollout_uid, None)
        try:
            await send((failed,))
        except BaseException:
            if not failed.left:
                with self._lock:
                    self._failed -= count
            raise

    async def leave(self, error: BaseException | None, send: Send) -> None:
        """Publishes that whatever is missing when the block ends has failed."""
        missing = self._missing()
        if missing > 0:
            await self.fail(send, LEFT_EARLY if error is None else reason_of(error), missing)

    def admit(self, *uids: str) -> Collection[str]:
        """Counts members in, or refuses them if they are too many; returns those that are new."""
        size, members = self.address.group_size, self._members
        with self._lock:
            new = {uid: False for uid in uids if uid not in members}
            missing = size - len(members) - self._failed
            if len(new) > missing:
                uid = self.address.group_uid
                remedy = "give fewer members, dispatch another group, or a larger group_size"
                finding = f"{uid} has all its {size} members"
                if missing > 0:
                    finding = f"{uid} lacks {missing} of its {size} members, and gets {len(new)}"
                raise InvalidRollout("group", uid, remedy, finding)
            members |= new
        return new

    def sampled_by(self, segment: Segment) -> None:
        """A segment of a member is to be published."""
        if segment[1].shared is self._shared:
            return
        self._shared, policy = segment[1].shared, policy_of(segment)
        if self._sampled_by is None or policy < self._sampled_by:
            self._sampled_by = policy

    def wanted(self) -> bool:
        """Whether what the group is sampled by would still be served, as far as is known."""
        announced = self._announced()
        if self._sampled_by is not None:
            return not is_stale(self._sampled_by, announced)
        if self._newest_before is None:
            newest = newest_of(announced, self.outbox.lineage)
            self._newest_before = None if newest is None else ref_of(newest)
        return self._newest_before is None or not is_stale(self._newest_before, announced)

    def end(self, rollout_uid: str) -> None:
        """A member's last segment is on its way."""
        self._members[rollout_uid] = True

    def _missing(self) -> int:
        """Members that were neither published to their end nor failed."""
        return self.address.group_size - sum(self._members.values()) - self._failed


def _refuse_others(call: str, given: Mapping[str, Any], arguments: Collection[str]) -> None:
    """The call was given nothing but these."""
    for name in given:
        if name not in arguments:
            if name in GroupAddress._fields:
                raise TypeError(f"{name!r} is the group's; it was given to dispatch()")
            raise unknown(call, name)


def sent_though(error: BaseException, outgoing: Sequence[Outgoing]) -> Collection[str]:
    """Returns the rollouts that a cancelled call had sent. They may be in the log. After an error
    there are none: its caller publishes them again."""
    if isinstance(error, Exception):
        return ()
    return {one.rollout_uid for one in outgoing if one.left}


def reason_of(error: BaseException) -> str:
    """Why the members that an exception cut off will never come."""
    return f"raised {type(error).__name__}: {error}"
