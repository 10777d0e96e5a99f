"""Figures of a sealer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollstream.consumers.assembling import Plan
from rollstream.runtime.metrics.metric import Durations
from rollstream.schemas.events import Flushed


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition that this sealer owns.

    Attributes:
        position: the next source offset to be read.
        watermark: every source offset below it is settled.
        pending: rollouts, dispatches and failures of groups that are not decided.
        pending_bytes: of the records that hold them.
        decided: entries that are decided and wait for a flush.
        backlog_s: seconds of log time since the oldest group that is not decided began; 0: there is
            none.
        waits_for_room: whether it was adopted and waits for its turn to be read, since memory is
            used up.
        foreign: records of its seal log that no owner wrote; they are passed over.
        aside: why nothing of it is sealed any more, until `rollstream seal --retry` or another
            start of a sealer; empty: it is.
        trouble: what hinders it, or fails beside sealing, as it tells `status`; empty: nothing.
        scores_aside: why its late scores are written to no file any more; empty: they are.
    """

    environment: str
    partition: int
    position: int = 0
    watermark: int = 0
    pending: int = 0
    pending_bytes: int = 0
    pending_groups: int = 0
    decided: int = 0
    backlog_s: float = 0.0
    waits_for_room: bool = False
    foreign: int = 0
    aside: str = ""
    trouble: str = ""
    scores_aside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStats:
    """Totals of one environment since the sealer began.

    Attributes:
        read: entries of ingest logs, entries that were read again after a restart included.
        read_bytes: of the records that hold them.
        segments: rollout segments that were sealed in groups.
        groups: that were sealed.
        flushes: that were committed.
        written_bytes: of the files of these flushes.
        settled: by reason, the entries that ended without a group.
        seal_times: from each group's first record to its commit.
    """

    read: int = 0
    read_bytes: int = 0
    segments: int = 0
    groups: int = 0
    flushes: int = 0
    written_bytes: int = 0
    settled: Mapping[str, int] = field(default_factory=dict)
    seal_times: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealerStats:
    """Totals since the sealer began, and the partitions that it owns now.

    Attributes:
        environments: the totals of each.
        dead_letters: that were written.
        memory_bytes: of records in memory and of their objects, of all partitions;
            ``sealers.memory_bytes`` bounds them.
        partitions: that it owns now.
    """

    environments: Mapping[str, EnvironmentStats]
    dead_letters: int
    memory_bytes: int
    partitions: tuple[PartitionStats, ...]

    @property
    def read(self) -> int:
        """The sum over all environments, and so the next two."""
        return sum(one.read for one in self.environments.values())

    @property
    def segments(self) -> int:
        return sum(one.segments for one in self.environments.values())

    @property
    def groups(self) -> int:
        return sum(one.groups for one in self.environments.values())


class SealerCounters:
    """Counts what was read and committed of one environment. The loop counts; any thread may ask
    for the totals.
    """

    def __init__(self) -> None:
        self._totals = EnvironmentStats()
        self._settled: Counter[str] = Counter()
        self._seal_times = Durations()

    def count_read(self, entries: int, size: int) -> None:
        """Counts entries that were read, and the bytes of their records."""
        now = self._totals
        self._totals = replace(now, read=now.read + entries, read_bytes=now.read_bytes + size)

    def count_flush(self, plan: Plan, event: Flushed | None, now_us: int) -> None:
        """Counts what a confirmed flush settled, and its files, where they are known."""
        now, groups = self._totals, [one.group for one in plan.decisions if one.group is not None]
        files = () if event is None else (*event.files, *event.incomplete)
        self._totals = replace(
            now,
            flushes=now.flushes + 1,
            written_bytes=now.written_bytes + sum(file.size for file in files),
            groups=now.groups + len(groups),
            segments=now.segments + sum(len(group.rows) for group in groups),
        )
        for group in groups:
            self._seal_times.add(max(0, now_us - group.first_ts) / 1e6)
        for decision in plan.decisions:
            self._settled.update(settlement.reason for settlement in decision.settled)
            if decision.unread is not None:
                reason, first, stop = decision.unread
                self._settled[reason] += stop - first

    def stats(self) -> EnvironmentStats:
        """The totals up to now. A counter is copied at once: no other thread runs meanwhile."""
        settled, seal_times = dict(self._settled), self._seal_times.copy()
        return replace(self._totals, settled=settled, seal_times=seal_times)
