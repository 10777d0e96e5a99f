"""Groups that were dispatched: those that are not back yet, those that never came, and members that
did not end by themselves. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rollstream.folds.group.example_counts import ExampleCounts
from rollstream.folds.group.failure_reasons import count_reason
from rollstream.folds.group.known import TRAIN, Key
from rollstream.folds.group.unfinished import unfinished_members
from rollstream.schemas.events import Event, Flushed, GroupsBegun
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.folds.entries import packed_entries, packed_entry

# Of the entry of a dispatch that is not settled with its group: nobody could read it, or no more.
_UNREAD = frozenset((SettleReason.UNREADABLE, SettleReason.LOST, SettleReason.NO_RECORD))
FAILED_REASONS_MAX = 64  # Of one log; what others say is counted under "".
_ENDS = _UNREAD | {SettleReason.DISPATCHED}


class Dispatched(NamedTuple):
    """A group that is not back yet.

    Attributes:
        since_ts: log time when it was dispatched, microseconds.
    """

    example_id: str
    since_ts: int


class DispatchedGroups:
    """By the events of the seal logs, so it holds as many groups as are pending there.

    Attributes:
        never_back: how many of an example never came, by the reason.
        unfinished: how many members of an example's sealed groups did not end by themselves, by
            how.
    """

    def __init__(self) -> None:
        # By log and the entry that dispatched it.
        self._open: dict[PartitionAddress, dict[int, Dispatched]] = {}
        self.never_back, self.unfinished = ExampleCounts(), ExampleCounts()
        # Of each log by itself, so that no interleaving of logs decides which reasons are kept.
        self._failures: dict[PartitionAddress, Counter[str]] = {}

    def count_as_one(self) -> None:
        """From now on, and what was counted: all examples of an environment are one, ""."""
        self.never_back.count_as_one()
        self.unfinished.count_as_one()

    def apply(self, log: PartitionAddress, event: Event) -> None:
        """The next event of a seal log that counts."""
        if isinstance(event, GroupsBegun):
            columns = (event.example_ids, event.entries.tolist(), event.ages_s.tolist())
            named = list(zip(*columns, strict=True))
            groups = self._open.setdefault(log, {})
            for example_id, entry, age_s in named:
                # A new owner names it again, at the same time or later.
                groups.setdefault(entry, Dispatched(example_id, event.now_ts - round(age_s * 1e6)))
        elif isinstance(event, Flushed):
            for part in event.unsealed:
                for example_id in part.example_ids:
                    self.never_back.add(part.reason, Key(log.environment, example_id))
            for index, kind, count in unfinished_members(event):
                group = event.groups[index]
                if group.split == TRAIN:
                    self.unfinished.add(kind, Key(log.environment, group.example_id), count)
            for failed in event.failed:
                reasons = self._failures.setdefault(log, Counter())
                members = int(failed.members.sum())
                count_reason(reasons, failed.reason, members, FAILED_REASONS_MAX)
            if self._open.get(log):
                self._end(log, event)

    def open(self) -> list[tuple[str, list[Dispatched]]]:
        """Those that are not back yet, by the environment of each log."""
        return [(log.environment, list(groups.values())) for log, groups in self._open.items()]

    def count_open(self) -> int:
        """How many these are."""
        return sum(map(len, self._open.values()))

    def failures(self) -> dict[str, dict[str, int]]:
        """Members that never came, by environment and the reason that their producer gave."""
        found: dict[str, Counter[str]] = {}
        for log, reasons in self._failures.items():
            found.setdefault(log.environment, Counter()).update(reasons)
        return {
            name: dict(sorted(reasons.items(), key=lambda one: (-one[1], one[0])))
            for name, reasons in sorted(found.items())
        }

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        still_open = [(log, sorted(groups.items())) for log, groups in self._open.items() if groups]
        counts = (self.never_back, self.unfinished)
        failures = sorted((log, sorted(one.items())) for log, one in self._failures.items())
        return [sorted(still_open), *(one.sorted_items() for one in counts), failures]

    def _end(self, log: PartitionAddress, event: Flushed) -> None:
        groups = self._open[log]
        for part in event.settled:
            if part.reason in _ENDS:
                for entry in packed_entries(part).tolist():
                    self._forget(log, groups.pop(entry, None), part.reason)
        for ranges in event.unread:
            if ranges.reason == SettleReason.ALIVE:
                continue  # No group began there.
            for first, stop in zip(ranges.firsts.tolist(), ranges.stops.tolist(), strict=True):
                within = range(packed_entry(first, 0), packed_entry(stop, 0))
                for entry in [one for one in groups if one in within]:
                    self._forget(log, groups.pop(entry), ranges.reason)

    def _forget(self, log: PartitionAddress, group: Dispatched | None, reason: str) -> None:
        """The entry that dispatched it is settled, for that reason."""
        if group is not None and reason in _UNREAD:
            self.never_back.add(reason, Key(log.environment, group.example_id))
