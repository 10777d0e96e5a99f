"""What producers have begun and is not decided, as the sealers report it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import ProducerInFlight
from rollstream.schemas.ids import PartitionAddress

SILENT_AFTER_S = 8.0  # Four times as long as a producer that counts ever is silent.
# Where nobody tells of the partitions on which it spoke. Their sealer may be dead: another one has
# them once its session has ended, after 10 s, and has read what is pending. Or nobody speaks there.
SILENT_UNTOLD_AFTER_S = 20.0
_FORGOTTEN_AFTER_US = 600_000_000  # Long enough that nobody counts it any more.
_FORGET_EVERY_US = 60_000_000


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


# One producer over all partitions of an environment: the most that it began, what it has open
# together, and when it said something last, with what it had begun then and waited for. Things said
# at one time are told apart by what came of them.
_Sum = tuple[int, int, int, int, int]


class _Columns(NamedTuple):
    """The sums of an environment's producers, by rising id.

    Attributes:
        rows: of each id.
        figures: int64 [n, 5].
    """

    ids: tuple[str, ...]
    rows: dict[str, int]
    figures: NDArray[np.int64]


class InFlightGroups:
    """By the reports of each partition's sealer, each partition by itself: they may be folded in
    any interleaving. Holds a producer of a partition until it was silent there for ten minutes of
    log time and has no open groups.

    Attributes:
        aside: seal logs that are not read on; groups that are open there do not count.
    """

    def __init__(self) -> None:
        self.aside: frozenset[PartitionAddress] = frozenset()
        self._producers: dict[PartitionAddress, dict[str, ProducerInFlight]] = {}
        # By environment: a sampler asks several times a second, while it decides.
        self._sums: dict[str, dict[str, _Sum]] = {}
        # By environment, the sums as columns, and those that were summed anew since then: reports
        # name a part of a fleet.
        self._columns: dict[str, _Columns] = {}
        self._newer: dict[str, dict[str, None]] = {}
        # Log time of the newest report.
        self._told_ts: dict[PartitionAddress, int] = {}
        self._forgotten_ts: dict[PartitionAddress, int] = {}  # When a log's silent ones were.

    def apply(
        self,
        log: PartitionAddress,
        reported: Sequence[ProducerInFlight],
        now_ts: int,
        *,
        complete: bool = False,
    ) -> None:
        """The next report of a partition."""
        producers = self._producers.setdefault(log, {})
        told_ts = max((one.last_ts for one in reported), default=now_ts)
        self._told_ts[log] = max(self._told_ts.get(log, 0), told_ts, now_ts)
        if complete:
            # What was reported as open ended, or is named here.
            self._put(log, [one._replace(open=0) for one in producers.values() if one.open])
        self._put(log, reported)
        if now_ts >= self._forgotten_ts.get(log, 0) + _FORGET_EVERY_US:
            self._forgotten_ts[log] = now_ts
            for known in list(producers.values()):
                if not known.open and now_ts - known.last_ts >= _FORGOTTEN_AFTER_US:
                    del producers[known.producer_id]
                    self._sum_anew(log.environment, known.producer_id)

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
        told = [(ts, log) for log, ts in self._told_ts.items() if log.environment == environment]
        now_ts = min(now_ts, max(told, default=(0,))[0])
        silent_us = round(SILENT_AFTER_S * 1e6)
        untold_ts = now_ts - round(SILENT_UNTOLD_AFTER_S * 1e6)
        # Of partitions that are behind: who said nothing there later is silent on it.
        behind = sorted(
            (max(ts - silent_us, untold_ts), log) for ts, log in told if untold_ts < ts < now_ts
        )
        ids, _, figures = self._summed(environment)
        begun, is_open, last_ts, _, waiting = figures.T
        lives = last_ts > now_ts - silent_us
        if behind:
            for row in np.flatnonzero(~lives & (last_ts > behind[0][0])).tolist():
                lives[row] = self._spoke_untold(ids[row], int(last_ts[row]), behind)
        lives &= last_ts >= said_since_ts
        living = tuple(compress(ids, lives.tolist()))
        open_now = is_open[lives]
        if self.aside:
            aside = [self._open_aside(environment, producer_id) for producer_id in living]
            open_now -= np.array(aside, np.int64)
        return LivingProducers(living, begun[lives], open_now, waiting[lives])

    def _summed(self, environment: str) -> _Columns:
        """The environment's sums as columns. Only what was summed since the last call is written
        anew, unless there are other producers than then."""
        sums = self._sums.get(environment, {})
        columns = self._columns.get(environment)
        newer = self._newer.pop(environment, {})
        if (
            columns is None
            or len(columns.ids) != len(sums)
            or not newer.keys() <= columns.rows.keys()
        ):
            ids = tuple(sorted(sums))
            rows_of = {name: row for row, name in enumerate(ids)}
            columns = self._columns[environment] = _Columns(ids, rows_of, _figures(sums, ids))
        elif newer:
            rows = np.fromiter(map(columns.rows.__getitem__, newer), np.int64, len(newer))
            columns.figures[rows] = _figures(sums, newer)
        return columns

    def _open_aside(self, environment: str, producer_id: str) -> int:
        logs = [log for log in self.aside if log.environment == environment]
        found = (self._producers.get(log, {}).get(producer_id) for log in logs)
        return sum(one.open for one in found if one is not None)

    def _spoke_untold(
        self, producer_id: str, last_ts: int, behind: Sequence[tuple[int, PartitionAddress]]
    ) -> bool:
        """Whether it, that spoke at ``last_ts``, is not silent on one of these, which come by the
        time from which on it must have spoken there."""
        for silent_ts, log in behind:
            if silent_ts >= last_ts:
                return False
            one = self._producers[log].get(producer_id)
            if one is not None and one.last_ts > silent_ts:
                return True
        return False

    def _put(self, log: PartitionAddress, reported: Iterable[ProducerInFlight]) -> None:
        """Figures on this partition. They cost no look at the others but where one falls that only
        rises as a rule."""
        producers, sums = self._producers[log], self._sums.setdefault(log.environment, {})
        newer = self._newer.setdefault(log.environment, {})
        for one in reported:
            producer_id, begun, is_open, _, last_ts = one
            newer[producer_id] = None
            before, known = producers.get(producer_id), sums.get(producer_id)
            if before is not None and last_ts < before.last_ts:
                # A new owner, that reads again what is pending, does not know what was said since.
                one = before._replace(open=is_open)  # noqa: PLW2901
                begun = one.begun
            said = _said(one)
            producers[producer_id] = one
            if known is None:
                sums[producer_id] = begun, is_open, *said
            elif before is None or (begun >= before.begun and said >= _said(before)):
                more = is_open - (before.open if before is not None else 0)
                sums[producer_id] = max(begun, known[0]), known[1] + more, *max(said, known[2:])
            else:
                self._sum_anew(log.environment, producer_id)

    def _sum_anew(self, environment: str, producer_id: str) -> None:
        parts = [
            one
            for log, producers in self._producers.items()
            if log.environment == environment and (one := producers.get(producer_id)) is not None
        ]
        sums, newer = self._sums[environment], self._newer[environment]
        del sums[producer_id]
        newer.pop(producer_id, None)
        if parts:
            newer[producer_id] = None
            begun, is_open = max(one.begun for one in parts), sum(one.open for one in parts)
            sums[producer_id] = begun, is_open, *max(map(_said, parts))


def _said(one: ProducerInFlight) -> tuple[int, int, int]:
    return one.last_ts, one.begun, one.waiting


def _figures(sums: Mapping[str, _Sum], ids: Collection[str]) -> NDArray[np.int64]:
    flat = chain.from_iterable(map(sums.__getitem__, ids))
    return np.fromiter(flat, np.int64, 5 * len(ids)).reshape(-1, 5)
