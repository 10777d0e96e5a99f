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


class Observed(NamedTuple):
    """What shares depend on, at one moment.

    Attributes:
        epoch: offset of the claim in the decision log.
        loads: by environment; empty: it never took part.
        takes_part: whether it does now.
        log_us: log time.
    """

    epoch: int
    loads: Mapping[str, Load]
    takes_part: bool
    log_us: int


class Granting:
    """The shares of one sampler's environments.

    Where the sampler does not take part, the newest record of each environment says that it has
    left, so that those who go on sampling do not hold back; where it never did, there is none.
    """

    def __init__(self, name: str, config: SamplerConfig) -> None:
        self._name = name
        self._config = config
        self._loads = Loads(config)
        self._shares: dict[str, Shares] = {}
        self._epoch = -1
        self._newest: Mapping[str, Load] = {}
        self._has_left = False

    def observe(
        self, state: SamplerState, now_us: int, requests: Sequence[Sequence[Quota]]
    ) -> Observed:
        """What ``changes`` needs of a state that may change meanwhile.

        Args:
            requests: those that wait for groups.
        """
        loads: Mapping[str, Load] = {}
        if self._config.admission and state.published.newest_ts > 0:
            loads = self._loads.now(state, now_us, requests)
        part = takes_part(state, self._config, now_us)
        return Observed(state.claimed_at, loads, part, log_now(state, now_us))

    def changes(self, seen: Observed, now_s: float) -> list[tuple[str, SharesGranted]]:
        """The environments of which anything changed, with their records; these hold until the next
        one, where they are repeated each ``REPEAT_S``. Their number is for who writes them.

        Args:
            now_s: by a clock that never goes back.
        """
        is_new = seen.epoch != self._epoch
        self._epoch, self._newest = seen.epoch, seen.loads
        if not seen.takes_part:
            return self.leave() if is_new or not self._has_left else []
        is_new, self._has_left = is_new or self._has_left, False
        records = []
        for name, load in seen.loads.items():
            shares = self._shares.setdefault(name, Shares())
            before = shares.ids, shares.totals, shares.needed
            shares.share(load.producers, load.open, load.ended, seen.log_us, now_s)
            shares.need(load.lacking, seen.log_us)
            now = shares.totals, shares.needed
            same = before[0] == shares.ids and all(map(np.array_equal, before[1:], now))
            if is_new or not same:
                records.append((name, self._record(shares, load)))
        return records

    def leave(self) -> list[tuple[str, SharesGranted]]:
        """The last records of a sampler that takes part no longer; none where it never did."""
        self._has_left = True
        return [
            (name, self._record(self._shares.get(name, Shares()), load, 0.0))
            for name, load in self._newest.items()
        ]

    def _record(self, shares: Shares, load: Load, valid_s: float = VALID_S) -> SharesGranted:
        return SharesGranted(
            sampler=self._name,
            lineage=self._config.lineage,
            epoch=self._epoch,
            number=0,
            valid_s=valid_s,
            idle_s=self._config.admission_idle_s,
            idle_groups=max(1, load.most // max(1, len(load.producers))),
            capacity=load.open,
            producer_ids=shares.ids,
            totals=shares.totals,
            needed=shares.needed if valid_s else shares.needed[:0],
        )
