"""What producers have begun and is not decided, as the sealers report it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import ProducerColumns
from rollstream.schemas.ids import PartitionAddress

SILENT_AFTER_S = 8.0  # Four times as long as a producer that counts ever is silent.
# Where nobody tells of the partitions on which it spoke. Their sealer may be dead: another one has
# them once its session has ended, after 10 s, and has read what is pending. Or nobody speaks there.
SILENT_UNTOLD_AFTER_S = 20.0
_FORGOTTEN_AFTER_US = 600_000_000  # Long enough that nobody counts it any more.
_FORGET_EVERY_US = 60_000_000
# Figures have a row each, and a column a producer. What it said last comes first, by the order in
# which things that are said at one time are told apart. A figure that nobody reported is 0.
_LAST_TS, _BEGUN, _WAITING, _OPEN = range(4)
_SAID = slice(3)
_COLUMN = 4  # On one partition: which column the producer has over all partitions.
# Over all partitions: the most that it began, on how many it is known, and whether it is to be
# summed anew.
_MOST, _PARTITIONS, _STALE = 4, 5, 6
_Figures = NDArray[np.int64]


class ProducerStanding(NamedTuple):
    """One producer in one environment.

    Attributes:
        begun: the most groups that it said it had begun.
        open: groups that it dispatched and that are not decided.
        waiting: how many more it waits to begin, as it said last.
    """

    producer_id: str
    begun: int
    open: int
    waiting: int


@dataclass(frozen=True, eq=False, slots=True)
class LivingProducers:
    """Those of one environment that are not silent, by rising id.

    Attributes:
        begun, open, waiting: as ``ProducerStanding``, one of each producer: int64 [n].
    """

    ids: tuple[str, ...]
    begun: NDArray[np.int64]
    open: NDArray[np.int64]
    waiting: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[ProducerStanding]:
        columns = (one.tolist() for one in (self.begun, self.open, self.waiting))
        return map(ProducerStanding, self.ids, *columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LivingProducers) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, standings: Iterable[ProducerStanding]) -> Self:
        """The columns of these, which come by rising id."""
        rows = list(standings)
        figures = np.array([row[1:] for row in rows], np.int64).reshape(-1, 3)
        return cls(tuple(row[0] for row in rows), *figures.T)


class InFlightGroups:
    """By the reports of each partition's sealer, each partition by itself: they may be folded in
    any interleaving. Holds a producer of a partition until it was silent there for ten minutes of
    log time and has no open groups.

    Attributes:
        aside: seal logs that are not read on; groups that are open there do not count.
    """

    def __init__(self) -> None:
        self.aside: frozenset[PartitionAddress] = frozenset()
        self._fleets: dict[str, _Fleet] = {}

    def apply(
        self,
        log: PartitionAddress,
        reported: ProducerColumns,
        now_ts: int,
        *,
        complete: bool = False,
    ) -> None:
        """The next report of a partition."""
        fleet = self._fleets.setdefault(log.environment, _Fleet())
        if complete:
            fleet.end_open(log)  # It ended, or is named here.
        fleet.put(log, reported, now_ts)

    def standings(
        self, environment: str, now_ts: int, said_since_ts: int = 0
    ) -> list[ProducerStanding]:
        """Of the environment's producers, by id, those that are not silent, without those that said
        nothing since ``said_since_ts``. Silent is who said nothing for ``SILENT_AFTER_S`` on each
        partition where it spoke, up to the newest event that told of any producer there; or for
        ``SILENT_UNTOLD_AFTER_S`` up to the newest of all partitions. While no sealer tells, nobody
        is. Times are log time in microseconds, up to ``now_ts``."""
        return list(self.living(environment, now_ts, said_since_ts))

    def living(self, environment: str, now_ts: int, said_since_ts: int = 0) -> LivingProducers:
        """``standings`` as columns."""
        fleet = self._fleets.get(environment) or _Fleet()
        return fleet.living(now_ts, said_since_ts, self.aside)


class _Fleet:
    """The producers of one environment. Each has a column of figures, which another one gets once
    the producer is forgotten on all partitions; and one on each partition where it spoke."""

    def __init__(self) -> None:
        self._columns = defaultdict[str, int](self._new_column)
        self._free: list[int] = []  # Columns of nobody.
        self._sums: _Figures = np.zeros((7, 0), np.int64)  # Over all partitions.
        self._sorted: tuple[tuple[str, ...], NDArray[np.int64]] | None = None  # Ids and columns.
        self._partitions: dict[PartitionAddress, _Figures] = {}
        self._at: dict[PartitionAddress, NDArray[np.int32]] = {}  # Where a column is, or -1.
        self._told_ts: dict[PartitionAddress, int] = {}  # Log time of the newest report.
        self._forgotten_ts: dict[PartitionAddress, int] = {}  # When a log's silent ones were.

    def end_open(self, log: PartitionAddress) -> None:
        """No producer has open groups on this partition."""
        if log in self._partitions:
            here = self._partitions[log]
            self._sums[_OPEN][here[_COLUMN]] -= here[_OPEN]
            here[_OPEN] = 0

    def put(self, log: PartitionAddress, reported: ProducerColumns, now_ts: int) -> None:
        """Figures on this partition. They cost no look at the others."""
        told_ts = int(reported.last_ts.max(initial=now_ts))
        self._told_ts[log] = max(self._told_ts.get(log, 0), told_ts)
        columns = self._columns_of(reported.producer_ids)
        here, at = self._on_partition(log, columns)
        before = here[:, at]
        now = np.array(
            [reported.last_ts, reported.begun, reported.waiting, reported.open, before[_COLUMN]]
        )
        # A new owner, that reads again what is pending, does not know what was said since.
        is_known = now[_LAST_TS] >= before[_LAST_TS]
        now[_SAID] = np.where(is_known, now[_SAID], before[_SAID])
        here[:, at] = now
        self._add(columns, now, now[_OPEN] - before[_OPEN])
        fell = (now[_BEGUN] < before[_BEGUN]) | ~_as_late(now, before)
        self._sums[_STALE][columns[fell]] = True
        if now_ts >= self._forgotten_ts.get(log, 0) + _FORGET_EVERY_US:
            self._forgotten_ts[log] = now_ts
            silent = (here[_OPEN] == 0) & (now_ts - here[_LAST_TS] >= _FORGOTTEN_AFTER_US)
            if silent.any():
                self._forget(log, here[_COLUMN, silent], here[:, ~silent])

    def living(
        self, now_ts: int, said_since_ts: int, aside: Set[PartitionAddress]
    ) -> LivingProducers:
        """As ``InFlightGroups.living``, without what is open on the partitions that are aside."""
        now_ts = min(now_ts, max(self._told_ts.values(), default=0))
        silent_us = round(SILENT_AFTER_S * 1e6)
        untold_ts = now_ts - round(SILENT_UNTOLD_AFTER_S * 1e6)
        self._sum_anew(untold_ts)
        last_ts, is_open = self._sums[_LAST_TS], self._sums[_OPEN].copy()
        lives = last_ts > now_ts - silent_us
        newest_ts = last_ts[~lives].max(initial=0)  # Of those that may be silent.
        # Of partitions that are behind: who said nothing there later is silent on it.
        for silent_ts, log in sorted(
            (max(ts - silent_us, untold_ts), log)
            for log, ts in self._told_ts.items()
            if untold_ts < ts < now_ts
        ):
            if silent_ts >= newest_ts:
                break
            here = self._partitions[log]
            lives[here[_COLUMN][here[_LAST_TS] > silent_ts]] = True
        lives &= last_ts >= said_since_ts
        for log in aside & self._partitions.keys():
            here = self._partitions[log]
            is_open[here[_COLUMN]] -= here[_OPEN]
        if self._sorted is None:
            ids = tuple(sorted(self._columns))
            columns = np.fromiter(map(self._columns.__getitem__, ids), np.int64, len(ids))
            self._sorted = ids, columns
        ids, columns = self._sorted
        ids, columns = tuple(compress(ids, lives[columns].tolist())), columns[lives[columns]]
        most, waiting = self._sums[_MOST], self._sums[_WAITING]
        return LivingProducers(ids, most[columns], is_open[columns], waiting[columns])

    def _columns_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The column of each; new ones get one."""
        known = len(self._columns)
        columns = np.fromiter(map(self._columns.__getitem__, ids), np.int64, len(ids))
        if len(self._columns) > known:
            more = len(self._columns) + len(self._free) - self._sums.shape[1]
            self._sums = np.concatenate([self._sums, np.zeros((7, more), np.int64)], axis=1)
            self._sorted = None
        return columns

    def _new_column(self) -> int:
        return self._free.pop() if self._free else len(self._columns)

    def _on_partition(
        self, log: PartitionAddress, columns: NDArray[np.int64]
    ) -> tuple[_Figures, NDArray[np.int32]]:
        """What is known of a partition, with these columns, and where each of them is there."""
        here, at = self._partitions.get(log), self._at.get(log)
        if here is None or at is None:
            here, at = np.zeros((5, 0), np.int64), np.zeros(0, np.int32)
        more = self._sums.shape[1] - len(at)
        if more:
            at = np.concatenate([at, np.full(more, -1, np.int32)])
        new = columns[at[columns] < 0]
        if len(new):
            added = np.zeros((5, len(new)), np.int64)
            added[_COLUMN] = new
            at[new] = here.shape[1] + np.arange(len(new))
            here = np.concatenate([here, added], axis=1)
            self._sums[_PARTITIONS][new] += 1
        self._partitions[log], self._at[log] = here, at
        return here, at[columns]

    def _add(self, columns: NDArray[np.int64], now: _Figures, more: NDArray[Any]) -> None:
        """What was said on one partition, and so many more are open there."""
        sums = self._sums[:, columns]
        sums[_SAID] = np.where(_as_late(now, sums), now[_SAID], sums[_SAID])
        sums[_MOST] = np.maximum(sums[_MOST], now[_BEGUN])
        sums[_OPEN] += more
        self._sums[:, columns] = sums

    def _sum_anew(self, after_ts: int) -> None:
        """The sums where a part of them fell, of the producers that may have said something after
        this."""
        sums = self._sums
        columns = np.flatnonzero((sums[_STALE] > 0) & (sums[_LAST_TS] > after_ts))
        if len(columns):
            for figure in (_LAST_TS, _BEGUN, _WAITING, _OPEN, _MOST, _STALE):
                sums[figure, columns] = 0
            for here in self._partitions.values():
                found = here[:, np.isin(here[_COLUMN], columns)]
                self._add(found[_COLUMN], found, found[_OPEN])

    def _forget(self, log: PartitionAddress, columns: NDArray[np.int64], kept: _Figures) -> None:
        """These are not known on this partition any more, and those are."""
        self._partitions[log] = kept
        self._at[log][columns] = -1
        self._at[log][kept[_COLUMN]] = range(kept.shape[1])
        self._sums[_PARTITIONS][columns] -= 1
        self._sums[_STALE][columns] = True
        gone = {*columns[self._sums[_PARTITIONS][columns] == 0].tolist()}
        if gone:
            self._sums[:, [*gone]] = 0
            self._free += gone
            kept_ids = {name: one for name, one in self._columns.items() if one not in gone}
            self._columns = defaultdict(self._new_column, kept_ids)
            self._sorted = None


def _as_late(one: _Figures, other: _Figures) -> NDArray[np.bool_]:
    """Of each column, whether what ``one`` says was said no earlier than what ``other`` says."""
    late: NDArray[np.bool_] = one[_WAITING] >= other[_WAITING]
    for figure in (_BEGUN, _LAST_TS):
        late = (one[figure] > other[figure]) | (one[figure] == other[figure]) & late
    return late
