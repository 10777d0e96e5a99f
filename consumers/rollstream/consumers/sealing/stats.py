"""Figures of a sealer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rollstream.consumers.assembling import Plan
from rollstream.runtime.metrics.metric import Durations
from rollstream.schemas.events import Flushed

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

    @property
    def lag(self) -> int:
        """Offsets between the watermark and the position."""
        return self.position - self.watermark


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

    read: int
    read_bytes: int
    segments: int
    groups: int
    flushes: int
    written_bytes: int
    settled: Mapping[str, int]
    seal_times: Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class SealerStats:
    """Totals since the sealer began, and the partitions that it owns now.

    Attributes:
        environments: the totals of each.
        dead_letters: that were written.
        memory_bytes: of records in memory and of their objects, of all partitions;
            ``sealers.memory_bytes`` bounds them.
        seal_time_ms_p50: from a group's first record to its commit, over the newest groups; NaN
            without any.
        seal_time_ms_p99: likewise.
        partitions: that it owns now.
    """

    environments: Mapping[str, EnvironmentStats]
    dead_letters: int
    memory_bytes: int
    seal_time_ms_p50: float
    seal_time_ms_p99: float
    partitions: tuple[PartitionStats, ...]

    @property
    def pending(self) -> int:
        """The sum over all partitions."""
        return sum(partition.pending for partition in self.partitions)

    @property
    def read(self) -> int:
        """The sum over all environments, and so the next four."""
        return sum(one.read for one in self.environments.values())

    @property
    def segments(self) -> int:
        return sum(one.segments for one in self.environments.values())

    @property
    def groups(self) -> int:
        return sum(one.groups for one in self.environments.values())

    @property
    def flushes(self) -> int:
        return sum(one.flushes for one in self.environments.values())

    @property
    def settled(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for one in self.environments.values():
            total.update(one.settled)
        return total


class SealerCounters:
    """Counts what was read and committed of one environment. The loop counts; any thread may ask
    for the totals.
    """

    def __init__(self) -> None:
        self._read = self._read_bytes = 0
        self._segments = self._groups = self._flushes = self._written_bytes = 0
        self._settled: Counter[str] = Counter()
        self._seal_times_ms: deque[float] = deque(maxlen=SEAL_TIMES_MAX)
        self._seal_times = Durations()

    def count_read(self, entries: int, size: int) -> None:
        """Counts entries that were read, and the bytes of their records."""
        self._read += entries
        self._read_bytes += size

    def count_flush(self, plan: Plan, event: Flushed | None, now_us: int) -> None:
        """Counts what a confirmed flush settled, and its files, where they are known."""
        self._flushes += 1
        files = () if event is None else (*event.files, *event.incomplete)
        self._written_bytes += sum(file.size for file in files)
        for decision in plan.decisions:
            if decision.group is not None:
                self._groups += 1
                self._segments += len(decision.group.rows)
                took_ms = max(0, now_us - decision.group.first_ts) / 1e3
                self._seal_times_ms.append(took_ms)
                self._seal_times.add(took_ms / 1e3)
            for settlement in decision.settled:
                self._settled[settlement.reason] += 1
            if decision.unread is not None:
                reason, first, stop = decision.unread
                self._settled[reason] += stop - first

    # Copies of a counter and of a deque are made at once: no other thread runs meanwhile.

    def seal_times_ms(self) -> Iterable[float]:
        """From the first record to the commit, of the newest groups."""
        return self._seal_times_ms.copy()

    def stats(self) -> EnvironmentStats:
        """The totals up to now."""
        return EnvironmentStats(
            read=self._read,
            read_bytes=self._read_bytes,
            segments=self._segments,
            groups=self._groups,
            flushes=self._flushes,
            written_bytes=self._written_bytes,
            settled=dict(self._settled),
            seal_times=self._seal_times.copy(),
        )


def sealer_stats(
    counters: Mapping[str, SealerCounters],
    dead_letters: int,
    memory_bytes: int,
    partitions: Iterable[PartitionStats],
) -> SealerStats:
    """The totals of all environments up to now."""
    times_ms = [one for each in counters.values() for one in each.seal_times_ms()]
    p50, p99 = np.percentile(times_ms or [np.nan], (50, 99))
    return SealerStats(
        environments={name: one.stats() for name, one in counters.items()},
        dead_letters=dead_letters,
        memory_bytes=memory_bytes,
        seal_time_ms_p50=float(p50),
        seal_time_ms_p99=float(p99),
        partitions=tuple(partitions),
    )
