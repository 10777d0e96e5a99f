"""Pending groups by age. Every operation costs the same however many groups are pending."""

from __future__ import annotations

from collections import OrderedDict

from rollstream.consumers.assembling.pending import PendingGroup


class AgeOrder:
    """Groups in the order in which they were first seen.

    They wait first for the seal time-out, then, where they were too small, for their expiry. Log
    time never goes back, so the order of insertion is the order of deadlines; an ``OrderedDict``
    finds and removes its oldest entry at constant cost, which a plain dict does not.
    """

    def __init__(self, seal_timeout_us: int, expire_after_us: int) -> None:
        self._seal_timeout_us = seal_timeout_us
        self._expire_after_us = expire_after_us
        self._fresh: OrderedDict[int, PendingGroup] = OrderedDict()
        self._overdue: OrderedDict[int, PendingGroup] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._overdue)

    def add(self, group: PendingGroup) -> None:
        """A group that was first seen now."""
        self._fresh[id(group)] = group

    def remove(self, group: PendingGroup) -> None:
        """A group that was decided."""
        del (self._overdue if group.overdue else self._fresh)[id(group)]

    def oldest(self) -> PendingGroup | None:
        """Of all."""
        for groups in (self._overdue, self._fresh):
            for group in groups.values():
                return group
        return None

    def next_timed_out(self, now_us: int) -> PendingGroup | None:
        """A group whose seal time-out has passed; it counts as overdue from now on."""
        for group in self._fresh.values():
            if group.first_ts + self._seal_timeout_us > now_us:
                return None
            del self._fresh[id(group)]
            group.overdue = True
            self._overdue[id(group)] = group
            return group
        return None

    def next_expired(self, now_us: int) -> PendingGroup | None:
        """A group, still pending, whose time is over."""
        for group in self._overdue.values():
            return None if group.first_ts + self._expire_after_us > now_us else group
        return None

    def all(self) -> list[PendingGroup]:
        """Oldest first."""
        return [*self._overdue.values(), *self._fresh.values()]
