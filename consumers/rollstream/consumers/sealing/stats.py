"""Figures of a sealer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rollstream.consumers.assembling import Plan

SEAL_TIMES_MAX = 8_192  # The newest groups, over which percentiles are taken.


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition that this sealer owns.

    Attributes:
        position: the next source offset to be read.
        watermark: every source offset below it is settled.
        pending: rollouts, dispatches and failures of groups that are not decided.
        pending_bytes: of the records that hold them.
        decided: entries that are decided and wait for a flush.
        waits_for_room: whether it was adopted and waits for its turn to be read, since memory is
            used up.
        foreign: records of its seal log that no owner wrote; they are passed over.
        aside: why nothing of it is sealed any more, until `rollstream seal --retry` or another
            start of a sealer; empty: it is.
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
    waits_for_room: bool = False
    foreign: int = 0
    aside: str = ""
    scores_aside: str = ""

    @property
    def lag(self) -> int:
        """Offsets between the watermark and the position."""
        return self.position - self.watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class SealerStats:
    """Totals since the sealer began, and the partitions that it owns now.

    Attributes:
        read: entries of ingest logs, entries that were read again after a restart included.
        segments: rollout segments that were sealed in groups.
        groups: that were sealed.
        flushes: that were committed.
        settled: by reason, the entries that ended without a group.
        dead_letters: that were written.
        memory_bytes: of records in memory and of their objects, of all partitions;
            ``sealers.memory_bytes`` bounds them.
        seal_time_ms_p50: from a group's first record to its commit, over the newest groups; NaN
            without any.
        seal_time_ms_p99: likewise.
        partitions: that it owns now.
    """

    read: int
    segments: int
    groups: int
    flushes: int
    settled: Mapping[str, int]
    dead_letters: int
    memory_bytes: int
    seal_time_ms_p50: float
    seal_time_ms_p99: float
    partitions: tuple[PartitionStats, ...]

    @property
    def pending(self) -> int:
        """The sum over all partitions."""
        return sum(partition.pending for partition in self.partitions)


class SealerCounters:
    """Counts what was read and committed."""

    def __init__(self) -> None:
        self.read = 0
        self.segments = 0
        self.groups = 0
        self.flushes = 0
        self.settled: Counter[str] = Counter()
        self._seal_times_ms: deque[float] = deque(maxlen=SEAL_TIMES_MAX)

    def count_flush(self, plan: Plan, now_us: int) -> None:
        """Counts what a confirmed flush settled."""
        self.flushes += 1
        for decision in plan.decisions:
            if decision.group is not None:
                self.groups += 1
                self.segments += len(decision.group.rows)
                self._seal_times_ms.append(max(0, now_us - decision.group.first_ts) / 1e3)
            for settlement in decision.settled:
                self.settled[settlement.reason] += 1
            if decision.unread is not None:
                reason, first, stop = decision.unread
                self.settled[reason] += stop - first

    def stats(
        self, dead_letters: int, memory_bytes: int, partitions: Iterable[PartitionStats]
    ) -> SealerStats:
        """The totals up to now."""
        p50, p99 = np.percentile(self._seal_times_ms or [np.nan], (50, 99))
        return SealerStats(
            read=self.read,
            segments=self.segments,
            groups=self.groups,
            flushes=self.flushes,
            settled=dict(self.settled),
            dead_letters=dead_letters,
            memory_bytes=memory_bytes,
            seal_time_ms_p50=float(p50),
            seal_time_ms_p99=float(p99),
            partitions=tuple(partitions),
        )
