"""Which groups take late scores, which wait for them, and scores that came before their group.
Pure.

Scores and groups may be folded in any order. A score that finds no group waits for it; of these
the newest ``EARLY_MAX`` a partition are kept. Of the others it is known for ever whose they were:
a group whose score was forgotten is an error, never a state that another order does not give.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.errors import ScoresForgotten
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.packed_refs import PackedRefs
from rollstream.streams.folds.sampler.score_targets import (
    group_target,
    rollout_target,
    unpack_targets,
)
from rollstream.streams.folds.sampler.scored import Given
from rollstream.streams.folds.sampler.sorted_rows import SortedRows

EARLY_MAX = 16_384  # Records of a partition that wait for their group: about 1 KB each.
LATENCIES_KEPT = 512


class LateScores:
    """By the logs of scores.

    Attributes:
        latencies_ms: from the seal to the last awaited score, of groups that became ready lately.
        awaited: how many groups of each environment wait for one.
    """

    def __init__(self, logs: Sequence[PartitionAddress], packed: PackedRefs) -> None:
        self.latencies_ms = array("d")
        self.awaited = Counter[str]()
        self._packed = packed
        self._applied: dict[PartitionAddress, int] = dict.fromkeys(sorted(logs), 0)
        self._takers = SortedRows(2)  # (Target, ref) of the groups that take scores.
        self._waiting = SortedRows(2)  # (When it was sealed, ref) of those that wait for one.
        self._early: dict[PartitionAddress, dict[int, Given]] = {}  # By offset.
        self._early_of: dict[int, list[tuple[PartitionAddress, int]]] = {}  # By target.
        self._forgotten = SortedRows(1)  # Targets of those that are kept no more.

    def __bool__(self) -> bool:
        """Whether any group takes scores."""
        return len(self._takers) > 0

    def applied(self, log: PartitionAddress) -> int:
        """The next offset to be applied."""
        return self._applied[log]

    def apply(self, log: PartitionAddress, offset: int, given: Given) -> list[GroupRef]:
        """The groups that the next record of a log is about; it is kept where there are none."""
        assert offset >= self._applied[log], (log, offset)
        self._applied[log] = offset + 1
        targets = _targets(log.environment, given.event)
        refs = {ref for target in targets for ref in self._takers.lasts(target)}
        if refs:
            return list(map(self._packed.unpack, sorted(refs)))
        early = self._early.setdefault(log, {})
        early[offset] = given
        for target in targets:
            self._early_of.setdefault(target, []).append((log, offset))
        if len(early) > EARLY_MAX:
            oldest = self._take(log, next(iter(early)))
            for target in _targets(log.environment, oldest.event):
                if not self._forgotten.count(target):
                    self._forgotten.add(target)
        return []

    def require_kept(self, groups: Sequence[KnownGroup]) -> None:
        """Raises ``ScoresForgotten`` where scores of these groups, which take them, came before
        them, and are kept no more."""
        if not len(self._forgotten):
            return
        for group in groups:
            if group.targets and any(map(self._forgotten.count, _targets_of(group))):
                raise ScoresForgotten(
                    f"{group.ref}: scores of group {group.group.group_id!r} came before it, and "
                    f"more than {EARLY_MAX:,} records without a group came after them in their "
                    "partition; end this process, delete the sampler's snapshots below snapshots/, "
                    "and start it again, so that it reads groups first; and score fewer rollouts "
                    "that take no score (docs/guides/late_rewards.md)"
                )

    def arrive(self, group: KnownGroup) -> list[Given]:
        """The group takes scores from now on. Returns those that came before it, in their order."""
        ref, found = self._packed.pack(group.ref), []
        for target in _targets_of(group):
            self._takers.add(target, ref)
            found += self._early_of.get(target, [])
        return [self._take(*where) for where in sorted(set(found))]

    def leave(self, group: KnownGroup) -> None:
        """The group takes none any more."""
        ref = self._packed.pack(group.ref)
        for target in _targets_of(group):
            self._takers.remove(target, ref)

    def wait(self, group: KnownGroup) -> None:
        """The group cannot be served without one."""
        self._waiting.add(group.sealed_ts, self._packed.pack(group.ref))
        self.awaited[group.key.environment] += 1

    def end_wait(self, group: KnownGroup, logged_ts: int | None = None) -> None:
        """It can, or will never be.

        Args:
            logged_ts: log time of the last one that it waited for.
        """
        self._waiting.remove(group.sealed_ts, self._packed.pack(group.ref))
        self.awaited[group.key.environment] -= 1
        if logged_ts is not None:
            self.latencies_ms.append(max(logged_ts - group.sealed_ts, 0) / 1e3)
            del self.latencies_ms[:-LATENCIES_KEPT]

    def sealed_before(self, sealed_ts: int) -> list[GroupRef]:
        """The groups that wait for a score since then, or for longer."""
        overdue = takewhile(lambda pair: pair[0] <= sealed_ts, self._waiting)
        return [self._packed.unpack(ref) for _, ref in overdue]

    def sorted_items(self) -> list[tuple[object, ...]]:
        """For a digest; without what may never find a group."""
        return [tuple(self._takers), tuple(self._waiting), *sorted(self._applied.items())]

    def _take(self, log: PartitionAddress, offset: int) -> Given:
        given = self._early[log].pop(offset)
        for target in _targets(log.environment, given.event):
            places = self._early_of[target]
            places.remove((log, offset))
            if not places:
                del self._early_of[target]
        return given


def _targets(environment: str, event: Scored) -> list[int]:
    if event.group_id:
        return [group_target(environment, event.group_id)]
    # Of several uids the first one tells: each has a record of its own.
    return [rollout_target(environment, one.rollout_uid) for one in event.scores[:1]]


def _targets_of(group: KnownGroup) -> Iterator[int]:
    yield group_target(group.key.environment, group.group.group_id)
    yield from dict.fromkeys(unpack_targets(group.targets)[0].tolist())
