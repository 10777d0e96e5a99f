"""What a dispatched group still lacks, and what its members and their failures say. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollstream.producers.outbox import Outbox, Outgoing, reason_of
from rollstream.producers.validate import GroupAddress, group_address
from rollstream.schemas.errors import InvalidRollout

LEFT_EARLY = "left early"


def place(
    outbox: Outbox,
    *,
    environment: str,
    example_id: str,
    group_uid: str,
    group_size: int,
    split: str,
) -> GroupAddress:
    """A checked address; the environment is the producer's where none is given."""
    return group_address(
        environment or outbox.environment, example_id, group_uid, group_size, split
    )


class Membership:
    """Counts a group's members up to its size; one uid counts once, however often it is retried."""

    def __init__(self, outbox: Outbox, where: GroupAddress) -> None:
        if where.group_size < 1:
            raise InvalidRollout(f"group_size is {where.group_size}; a group has at least 1 member")
        if not where.group_uid:
            where = where._replace(group_uid=f"g-{outbox.new_uid()}")
        self.place = where
        self.outbox = outbox
        self._place = where._asdict()
        self._admitted: set[str] = set()
        self._ended: set[str] = set()
        self._failed = 0

    def missing(self) -> int:
        """Members that were neither published to their end nor failed."""
        return self.place.group_size - len(self._ended) - self._failed

    def dispatched(self) -> Outgoing:
        """The word that the group was begun."""
        where = self.place
        return self.outbox.dispatched(
            where.environment, where.example_id, where.group_uid, where.group_size
        )

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """One member's segment, admitted to the group: ``sent`` or ``withdraw`` follows."""
        for name in self._place:
            if name in given:
                raise TypeError(f"{name!r} is the group's; it was given to dispatch()")
        fields = self.outbox.fields({**given, **self._place})
        self.admit(fields["rollout_uid"])
        return fields

    def admit(self, rollout_uid: str) -> None:
        """Takes in a member, or refuses one too many."""
        size = self.place.group_size
        if rollout_uid not in self._admitted and len(self._admitted) + self._failed >= size:
            raise InvalidRollout(
                f"group {self.place.group_uid} has all its {size} members; "
                "dispatch another group, or a larger group_size"
            )
        self._admitted.add(rollout_uid)

    def sent(self, fields: Mapping[str, Any]) -> None:
        """A member's segment is on its way."""
        if fields["is_last_segment"]:
            self._ended.add(fields["rollout_uid"])

    def withdraw(self, rollout_uid: str) -> None:
        """A member's segment did not get on its way; it may be tried again."""
        if rollout_uid not in self._ended:
            self._admitted.discard(rollout_uid)

    def fail(self, reason: str, count: int, rollout_uid: str = "") -> Outgoing:
        """The word that members will never come; ``take_back`` follows if it was not queued."""
        missing = self.missing()
        if not 1 <= count <= missing:
            raise InvalidRollout(
                f"count is {count}, but {missing} of the {self.place.group_size} members of group "
                f"{self.place.group_uid} are missing"
            )
        if not reason:
            raise InvalidRollout("reason is empty; say why the members will never come")
        failed = failure(self.outbox, self.place, reason, count, rollout_uid)
        self._failed += count
        self._admitted.discard(rollout_uid)
        return failed

    def take_back(self, count: int) -> None:
        """The word about this many was not queued: they are missing as before.

        One in doubt is not taken back. Said again, it would stand for as many more members, and the
        group would be complete without some that were published; as it is, it waits at worst.
        """
        self._failed -= count

    def leave(self, error: BaseException | None) -> Outgoing | None:
        """The word about whatever is missing when the block ends."""
        missing = self.missing()
        if missing < 1:
            return None
        return self.fail(LEFT_EARLY if error is None else reason_of(error), missing)


def failure(
    outbox: Outbox, where: GroupAddress, reason: str, count: int, rollout_uid: str
) -> Outgoing:
    """The word that members at this place will never come."""
    return outbox.failed(
        where.environment,
        where.example_id,
        where.group_uid,
        where.group_size,
        count=count,
        reason=reason,
        rollout_uid=rollout_uid,
    )
