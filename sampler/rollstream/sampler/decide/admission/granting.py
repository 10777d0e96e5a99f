"""What a sampler tells the workers of each environment about how many groups they may begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import NamedTuple

import numpy as np

from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.admission.capacity import Load, Loads, Quota, takes_part
from rollstream.sampler.decide.admission.records import ShareRecords, Written
from rollstream.sampler.decide.admission.shares import Ints, Shares
from rollstream.schemas.events import SharesGranted, SharesValid
from rollstream.streams.folds.in_flight import LivingProducers
from rollstream.streams.folds.reported import ReportedNow

VALID_S = 30.0  # Three repetitions: one may get lost, and an owner may be started again.
REPEAT_S = VALID_S / 3
LEFT_S, NO_PART_S = 0.0, -1.0  # What ``valid_s`` says of a sampler that left, or takes no part.
# Producers of an older release may come back so long after they asked last.
OLDER_S = 86_400.0
# A fleet keeps a spare group for each so many producers. What was granted to all of them would be
# taken back from one as soon as another waits, which takes a record of each.
PRODUCERS_A_SPARE = 8
_NO_LOAD = Load(0, 0, 0, LivingProducers.of(()))


class Observed(NamedTuple):
    """What shares depend on, at one moment.

    Attributes:
        epoch: offset of the claim in the decision log.
        loads: by environment; empty: it never took part.
        valid_s: ``VALID_S``: it takes part; ``LEFT_S``: not for now; ``NO_PART_S``: not at all,
            since admission is off or the run is over.
        log_us: log time.
    """

    epoch: int
    loads: Mapping[str, Load]
    valid_s: float
    log_us: int


class Told(NamedTuple):
    """What the workers of one environment are to be told now. Numbers are for who writes it.

    Attributes:
        valid: what holds for all; it is repeated each ``REPEAT_S``.
        at_once: whether it is another than before, but for its ``capacity``.
        shares: of single producers.
        older: the shares in one record, for producers of older releases, repeated as ``valid``;
            None: as before.
        older_ends: whether that record is not to be repeated any more.
    """

    environment: str
    valid: SharesValid
    at_once: bool
    shares: Sequence[Written] = ()
    older: SharesGranted | None = None
    older_ends: bool = False


class Granting:
    """The shares of one sampler's environments.

    Where the sampler does not take part, the newest record of each environment says that it has
    left, so that those who go on sampling do not hold back; where it never did, there is none. One
    whose admission is off, or whose run is over, says so instead of what it said before, under
    whatever configuration: nobody is to wait for it.
    """

    def __init__(self, name: str, config: SamplerConfig) -> None:
        self._name = name
        self._config = config
        self._loads = Loads(config)
        self._of: dict[str, _Environment] = {}
        self._adopted: set[str] = set()
        self._epoch = -1
        self._valid_s = VALID_S  # By the newest records.

    def observe(
        self,
        state: SamplerState,
        reported: Callable[[], ReportedNow],
        now_us: int,
        requests: Sequence[Sequence[Quota]],
    ) -> Observed:
        """What ``changes`` needs of a state that may change meanwhile.

        Args:
            reported: what sealers report of now; asked for only where shares depend on it.
            requests: those that wait for groups.
        """
        if state.over or not self._config.admission:
            loads = dict.fromkeys(self._config.environments, _NO_LOAD)
            return Observed(state.claimed_at, loads, NO_PART_S, now_us)
        if state.published.newest_ts <= 0:
            return Observed(state.claimed_at, {}, LEFT_S, now_us)
        now = reported()
        if not now.reads.issuperset(self._config.environments):
            # Who holds back would wait for shares of what nobody knows.
            loads = dict.fromkeys(self._config.environments, _NO_LOAD)
            return Observed(state.claimed_at, loads, LEFT_S, now_us)
        loads = self._loads.now(state, now, now_us, requests)
        # A trainer that waits cannot publish a policy meanwhile.
        part = bool(requests) or takes_part(state, self._config, now_us)
        valid_s = VALID_S if part else LEFT_S
        return Observed(state.claimed_at, loads, valid_s, now_us)

    def capacity(
        self, state: SamplerState, reported: Callable[[], ReportedNow], now_us: int
    ) -> dict[str, tuple[int, LivingProducers]]:
        """How many groups of each environment may be begun, without what waiting calls lack, and
        its producers; remembers rewinds, and is called by one thread at a time, with ``observe``.
        """
        loads = self._loads.now(state, reported(), now_us)
        return {name: (load.open, load.producers) for name, load in loads.items()}

    @property
    def environments(self) -> Collection[str]:
        """The sampler's."""
        return self._config.environments

    def knows(self, environment: str) -> bool:
        """Whether ``adopt`` was called for it."""
        return environment in self._adopted

    def adopt(self, environment: str, written: Mapping[str, int]) -> None:
        """Takes over the totals that earlier owners wrote for the environment's producers; call it
        before the first ``changes`` with the environment, if there are any."""
        self._adopted.add(environment)
        self._of[environment] = _Environment(ShareRecords(written))

    def changes(
        self, seen: Observed, now_s: float, lacking: Collection[str] = ()
    ) -> Sequence[Told]:
        """What is to be written now, by environment.

        Args:
            now_s: by a clock that never goes back.
            lacking: environments that have no second generation of the log: all of their producers
                read the older one.
        """
        is_new = seen.epoch != self._epoch or seen.valid_s != self._valid_s
        if seen.valid_s <= 0:
            return self.leave(seen) if is_new else ()
        self._epoch, self._valid_s = seen.epoch, seen.valid_s
        return [
            self._changes(name, load, seen.log_us, now_s, is_new, name in lacking)
            for name, load in seen.loads.items()
        ]

    def leave(self, seen: Observed) -> Sequence[Told]:
        """What a sampler says last that takes part no longer; nothing where it never did."""
        self._epoch, self._valid_s = seen.epoch, min(seen.valid_s, LEFT_S)
        told = []
        for name, load in seen.loads.items():
            valid, of = self._valid(load), self._environment(name)
            told.append(Told(name, valid, True, older=of.older(valid) if of.tells_older else None))
        return told

    def _changes(
        self, name: str, load: Load, log_us: int, now_s: float, is_new: bool, lacks: bool
    ) -> Told:
        of = self._environment(name)
        # What a request lacks is granted whole.
        spare = 0 if load.lacking > 0 else len(load.producers) // PRODUCERS_A_SPARE
        of.shares.share(load.producers, load.open, load.ended, log_us, now_s, spare)
        of.shares.need(load.lacking, log_us)
        valid, limits = self._valid(load), (load.limit, load.ever)
        at_once, of.limits = is_new or of.limits != limits, limits
        told_older, differs = of.tells_older, of.look_at_older(now_s, whole=lacks)
        older = of.older(valid) if of.tells_older and (at_once or differs) else None
        shares = of.records.changes(of.shares, now_s)
        return Told(name, valid, at_once, shares, older, told_older and not of.tells_older)

    def _environment(self, name: str) -> _Environment:
        return self._of.setdefault(name, _Environment(ShareRecords()))

    def _valid(self, load: Load) -> SharesValid:
        return SharesValid(
            sampler=self._name,
            lineage=self._config.lineage,
            epoch=self._epoch,
            number=0,
            valid_s=self._valid_s,
            idle_s=self._config.admission_idle_s,
            idle_groups=max(1, load.most // max(1, len(load.producers))),
            capacity=load.open,
            limit=load.limit,
            most=load.ever,
        )


class _Environment:
    """What was told to the workers of one.

    Attributes:
        limits: by the newest records.
        tells_older: whether one record still has the shares of producers of older releases.
    """

    def __init__(self, records: ShareRecords) -> None:
        self.shares = Shares()
        self.records = records
        self.limits: tuple[str, int] | None = None
        self.tells_older = True
        self._older_s: float | None = None  # When one of them asked last, or may have.
        self._older: tuple[tuple[str, ...], Ints, Ints] | None = None

    def look_at_older(self, now_s: float, *, whole: bool) -> bool:
        """Selects the shares of those that read the older generation; returns whether they changed.

        Args:
            whole: all producers do.
        """
        shares = self.shares
        select = np.ones_like(shares.reads_older) if whole else shares.reads_older
        if whole or self._older_s is None or select.any():
            self._older_s = now_s
        self.tells_older = now_s < self._older_s + OLDER_S
        ids = tuple(compress(shares.ids, select.tolist()))
        needed = shares.needed[select] if len(shares.needed) else shares.needed
        before, self._older = self._older, (ids, shares.totals[select], needed)
        return (
            before is None
            or before[0] != ids
            or not all(map(np.array_equal, before[1:], self._older[1:]))
        )

    def older(self, valid: SharesValid) -> SharesGranted:
        """The record with the shares that were selected last."""
        ids, totals, needed = self._older or ((), self.shares.totals, self.shares.needed)
        needed = needed if valid.valid_s > 0 else needed[:0]
        return SharesGranted(**asdict(valid), producer_ids=ids, totals=totals, needed=needed)
