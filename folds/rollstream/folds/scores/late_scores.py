"""Which groups take late scores, which wait for them, and scores that came before their group.
Pure.

Scores and groups may be folded in any order. A score that finds no group waits for it; one of a
group that was sealed lately, and takes none, does not.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import takewhile
from operator import itemgetter

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.packed_refs import PackedRefs
from rollstream.folds.group.score_targets import (
    group_target,
    target_of,
    unpack_targets,
)
from rollstream.folds.group.scored import Given
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.folds.scores.early_scores import EarlyScores
from rollstream.folds.scores.recently_sealed import RecentlySealed, targets_in
from rollstream.schemas.choosing import ServedEnvironment
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

LATENCIES_KEPT = 512
CLOCKS_APART_US = 60_000_000  # Between the clocks of a cluster's brokers, at most.


class LateScores:
    """By the logs of scores.

    Attributes:
        latencies_ms: from the seal to the last awaited score, of groups that became ready lately.
        awaited: how many groups of each environment wait for one.
        unused: how many records were of no use, by why: ``no_group``, none was sealed in time;
            ``not_taken``, it was sealed and takes none, or has ended.
        behind: logs of which no more is read for now, or that were not read to their ends since,
            as whoever reads them says; in no digest. What they say of a group is not known.
    """

    def __init__(
        self,
        logs: Sequence[PartitionAddress],
        packed: PackedRefs,
        environments: Iterable[ServedEnvironment],
    ) -> None:
        self.latencies_ms = array("d")
        self.awaited = Counter[str]()
        self._packed = packed
        self._applied: dict[PartitionAddress, int] = dict.fromkeys(sorted(logs), 0)
        self._takers = SortedRows(2)  # (Target, ref) of the groups that take scores.
        # By environment, (when it was sealed, ref) of those that wait for one.
        self._waiting: dict[str, SortedRows] = {}
        self._early = EarlyScores(logs, environments)
        self._sealed = RecentlySealed()
        self._newest_ts = 0  # Log time of the newest record of any log.
        self._passed_ts = Counter[str]()  # The seal logs of an environment were read up to then.
        self.unused = Counter[str]()
        self.behind: set[PartitionAddress] = set()

    def __bool__(self) -> bool:
        """Whether any group takes scores."""
        return len(self._takers) > 0

    def applied(self, log: PartitionAddress) -> int:
        """The next offset to be applied."""
        return self._applied[log]

    def waits_until(self, environment: str, given: Given) -> int:
        """Log time of the last flush whose groups the record is of."""
        return self._early.waits_until(environment, given)

    @property
    def waits_us(self) -> Mapping[str, int]:
        """How long a record that names a rollout waits for its group, by environment."""
        return self._early.waits_us

    @property
    def early(self) -> int:
        """How many records wait for a group."""
        return len(self._early)

    def is_full(self, log: PartitionAddress) -> bool:
        """Whether no more of this log is to be read: so many of its records wait for a group."""
        return self._early.is_full(log)

    def apply(self, log: PartitionAddress, offset: int, given: Given) -> list[GroupRef]:
        """The groups that the next record of a log is about; it waits where there are none."""
        assert offset >= self._applied[log], (log, offset)
        self._applied[log] = offset + 1
        self.passed(given.logged_ts)
        target = target_of(log.environment, given.event)
        refs = sorted(set(self._takers.lasts(target)))
        if refs:
            return list(map(self._packed.unpack, refs))
        if target in self._sealed:
            self.unused["not_taken"] += 1
        elif self.waits_until(log.environment, given) < self._passed_ts[log.environment]:
            self.unused["no_group"] += 1
        else:
            self._early.keep(log, offset, given)
        return []

    def passed(self, logged_ts: int) -> None:
        """A record of this log time was read, of whatever log."""
        self._newest_ts = max(self._newest_ts, logged_ts)

    def sealed(self, environment: str, event: Flushed) -> None:
        """A flush was applied, after ``arrive`` for those of its groups that take scores."""
        self._sealed.add(environment, event)
        if not len(self._early):
            return
        for target in targets_in(environment, event.groups.group_ids, tuple(event.segments.uids)):
            self.unused["not_taken"] += len(self._early.take(target))

    def given(self, group: KnownGroup) -> list[Given]:
        """The scores that wait for the group and came in time for it, in their order."""
        if not (group.targets and len(self._early)):
            return []
        found = [one for target in _targets_of(group) for one in self._early.of(target)]
        found.sort(key=itemgetter(0))
        environment = group.key.environment
        return [
            given for _, given in found if group.logged_ts <= self.waits_until(environment, given)
        ]

    def arrive(self, group: KnownGroup) -> None:
        """The group takes scores from now on; those that it was ``given`` wait no more."""
        ref = self._packed.pack(group.ref)
        for target in _targets_of(group):
            self._takers.add(target, ref)
            for _, given in self._early.take(target):
                until = self.waits_until(group.key.environment, given)
                self.unused["no_group"] += group.logged_ts > until

    @property
    def passed_ts(self) -> int:
        """A log time that has passed by every broker's clock: what is written next is newer."""
        return self._newest_ts - CLOCKS_APART_US

    def any_overdue(self, environment: str) -> bool:
        """Whether scores wait in vain, if the seal logs were read up to ``passed_ts``."""
        first = self._early.least_until(environment)
        return first is not None and first < self.passed_ts

    def seal_logs_read(self, environment: str, passed_ts: int) -> None:
        """Every record of the environment's seal logs that is older than ``passed_ts`` was applied,
        and none that is older will come: forgets what waited for such ones."""
        self._passed_ts[environment] = max(self._passed_ts[environment], passed_ts)
        self.unused["no_group"] += self._early.release(environment, passed_ts)

    def leave(self, group: KnownGroup) -> None:
        """The group takes none any more."""
        ref = self._packed.pack(group.ref)
        for target in _targets_of(group):
            self._takers.remove(target, ref)

    def environments_behind(self) -> list[str]:
        """Those of the logs that are behind."""
        return sorted({log.environment for log in self.behind})

    def wait(self, group: KnownGroup) -> None:
        """The group cannot be served without one."""
        waiting = self._waiting.setdefault(group.key.environment, SortedRows(2))
        waiting.add(group.sealed_ts, self._packed.pack(group.ref))
        self.awaited[group.key.environment] += 1

    def end_wait(self, group: KnownGroup, logged_ts: int | None = None) -> None:
        """It can, or will never be.

        Args:
            logged_ts: log time of the last one that it waited for.
        """
        waiting = self._waiting[group.key.environment]
        waiting.remove(group.sealed_ts, self._packed.pack(group.ref))
        self.awaited[group.key.environment] -= 1
        if logged_ts is not None:
            self.latencies_ms.append(max(logged_ts - group.sealed_ts, 0) / 1e3)
            del self.latencies_ms[:-LATENCIES_KEPT]

    def sealed_before(self, sealed_ts: int) -> list[GroupRef]:
        """The groups that wait for a score since then, or for longer; none of an environment whose
        logs are behind, since their score may be there."""
        behind = self.environments_behind()
        names = [name for name in self._waiting if name not in behind]
        overdue = takewhile(lambda pair: pair[0] <= sealed_ts, self._all_waiting(names))
        return [self._packed.unpack(ref) for _, ref in overdue]

    def _all_waiting(self, environments: Iterable[str]) -> Iterator[tuple[int, ...]]:
        return merge(*(self._waiting[name] for name in environments))

    def sorted_items(self) -> list[tuple[object, ...]]:
        """For a digest; without what may never find a group."""
        return [
            tuple(self._takers),
            tuple(self._all_waiting(self._waiting)),
            *sorted(self._applied.items()),
        ]


def _targets_of(group: KnownGroup) -> Iterator[int]:
    yield group_target(group.key.environment, group.group.group_id)
    yield from dict.fromkeys(unpack_targets(group.targets)[0].tolist())
