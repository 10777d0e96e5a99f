"""What a sampler writes to ``admission.<env>`` about how many groups may be begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.admission.capacity import Load, Loads, Quota, log_now, takes_part
from rollstream.sampler.admission.shares import Shares
from rollstream.schemas.events import SharesGranted
from rollstream.streams.folds.sampler.state import SamplerState

VALID_S = 30.0  # Three repetitions: one may get lost, and an owner may be started again.
REPEAT_S = VALID_S / 3
LEFT_S, NO_PART_S = 0.0, -1.0  # What ``valid_s`` says of a sampler that left, or takes no part.
_NO_LOAD = Load(0, 0, 0, ())


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
        self._shares: dict[str, Shares] = {}
        self._limits: dict[str, tuple[str, int]] = {}  # Of the newest records.
        self._epoch = -1
        self._valid_s = VALID_S  # By the newest records.

    def observe(
        self, state: SamplerState, now_us: int, requests: Sequence[Sequence[Quota]]
    ) -> Observed:
        """What ``changes`` needs of a state that may change meanwhile.

        Args:
            requests: those that wait for groups.
        """
        in_log = log_now(state, now_us)
        if state.over or not self._config.admission:
            loads = dict.fromkeys(self._config.environments, _NO_LOAD)
            return Observed(state.claimed_at, loads, NO_PART_S, in_log)
        if state.published.newest_ts <= 0:
            return Observed(state.claimed_at, {}, LEFT_S, in_log)
        loads = self._loads.now(state, now_us, requests)
        # A trainer that waits cannot publish a policy meanwhile.
        part = bool(requests) or takes_part(state, self._config, now_us)
        valid_s = VALID_S if part else LEFT_S
        return Observed(state.claimed_at, loads, valid_s, in_log)

    def changes(self, seen: Observed, now_s: float) -> list[tuple[str, SharesGranted]]:
        """The environments of which anything changed, with their records; these hold until the next
        one, where they are repeated each ``REPEAT_S``. Their number is for who writes them.

        Args:
            now_s: by a clock that never goes back.
        """
        is_new = seen.epoch != self._epoch or seen.valid_s != self._valid_s
        if seen.valid_s <= 0:
            return self.leave(seen) if is_new else []
        self._epoch, self._valid_s = seen.epoch, seen.valid_s
        records = []
        for name, load in seen.loads.items():
            shares = self._shares.setdefault(name, Shares())
            before = shares.ids, shares.totals, shares.needed
            shares.share(load.producers, load.open, load.ended, seen.log_us, now_s)
            shares.need(load.lacking, seen.log_us)
            now = shares.totals, shares.needed
            same = before[0] == shares.ids and all(map(np.array_equal, before[1:], now))
            limits = load.limit, load.ever
            if is_new or not same or self._limits[name] != limits:
                self._limits[name] = limits
                records.append((name, self._record(shares, load)))
        return records

    def leave(self, seen: Observed) -> list[tuple[str, SharesGranted]]:
        """The last records of a sampler that takes part no longer; none where it never did."""
        self._epoch, self._valid_s = seen.epoch, min(seen.valid_s, LEFT_S)
        return [
            (name, self._record(self._shares.get(name, Shares()), load))
            for name, load in seen.loads.items()
        ]

    def _record(self, shares: Shares, load: Load) -> SharesGranted:
        return SharesGranted(
            sampler=self._name,
            lineage=self._config.lineage,
            epoch=self._epoch,
            number=0,
            valid_s=self._valid_s,
            idle_s=self._config.admission_idle_s,
            idle_groups=max(1, load.most // max(1, len(load.producers))),
            capacity=load.open,
            producer_ids=shares.ids,
            totals=shares.totals,
            needed=shares.needed if self._valid_s > 0 else shares.needed[:0],
            limit=load.limit,
            most=load.ever,
        )
