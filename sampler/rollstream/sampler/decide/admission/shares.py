"""What each producer may have begun in all: its share of what is open. Pure, but for memory of what
was granted.

A grant is a running total. What a producer was granted and has not begun, as far as is known, stays
its own for ``HELD_S``: it may have begun it, and nobody said so yet. What it does not begin by then
goes to others, if any need it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.ids import READS_ITS_SHARE
from rollstream.streams.folds.in_flight import LivingProducers

HELD_S = 5.0  # Five times as long as it takes at most until a group that was begun is reported.
REPORTED_S = 0.75  # After twice that every sealer has said which groups are open.
TURN_US = 10_000_000  # Log time after which other producers come first.
_GOLDEN = 0.6180339887498949
Ints = NDArray[np.int64]


class Shares:
    """The producers of one environment, under one claim of the decision log.

    What all were granted and have not begun is never more than what is open, but where less is open
    than before: what was granted just then may have been begun. A sampler that lost its memory
    grants no other totals than by what is open.

    Attributes:
        ids: of the living producers, sorted.
        totals: how many groups each may have begun.
        needed: of that, how many whatever other samplers grant; empty: they need not be asked.
        begun: how many each has begun.
        waiting: how many more each waits to begin.
        reads_older: whether each reads the older generation of the log.
    """

    def __init__(self) -> None:
        self.ids: tuple[str, ...] = ()
        self.totals: Ints = np.zeros(0, np.int64)
        self.needed: Ints = self.totals
        self.begun: Ints = self.totals
        self.waiting: Ints = self.totals
        self.reads_older = np.zeros(0, np.bool_)
        # A number of each that lives or did, so that a look at other producers than before looks
        # up each id once.
        self._number_of = defaultdict[str, int](count().__next__)
        self._numbers: Ints = self.totals  # Of the living.
        self._open: Ints = self.totals
        # Begun, and neither open nor ended: in this ``REPORTED_S`` and the last one.
        self._unreported = (0, 0)
        self._window = self._ended = 0
        self._moved_s = np.zeros(0)  # When a total, or what was begun of it, grew last.

    def share(
        self,
        producers: LivingProducers,
        free: int,
        ended: int,
        log_us: int,
        now_s: float,
        spare: int = 0,
    ) -> None:
        """Shares ``free`` groups among the living producers: first evenly among those that wait,
        each up to what it waits for; then each keeps what it had; the rest evenly among all, but
        for the ``spare`` groups.
        Those to whom a part was of no use get all that they wait for, one after the other, before
        the others in one turn, and after them in the next.
        Who comes first changes with log time, the same in every sampler.

        Args:
            ended: groups that ended so far.
            now_s: by a clock that never goes back.
            spare: groups that stay open for producers that will wait, where nobody waits for them.
        """
        begun, is_open = producers.begun, producers.open
        if producers.ids != self.ids:
            self._keep(producers.ids, begun, is_open)
        risen = np.maximum(begun - self.begun, 0)
        self._moved_s[risen > 0] = now_s
        known = int((is_open - self._open).sum()) + ended - self._ended
        self._report(int(risen.sum()) - known, int(now_s / REPORTED_S))
        self.begun, self._open, self._ended = begun, is_open, ended
        self.waiting = waiting = producers.waiting
        granted = np.maximum(self.totals - begun, 0)
        held = np.where(now_s - self._moved_s < HELD_S, granted, 0)
        if int(held.sum()) > free:  # Less is open than was: what nobody has begun is taken back.
            unknown = np.where(now_s - self._moved_s < 2 * REPORTED_S, held, 0)
            held = filled(unknown, held, max(0, free - int(unknown.sum())), 0.0)
        left = max(0, free - int(held.sum()) - sum(self._unreported))
        turn = log_us // TURN_US
        first = turn * _GOLDEN % 1.0
        # Who waits and did not begin what it had, for so long, needs more at one time. Each other
        # turn the others come first: if no more than that is open, they are not to wait for it.
        stuck = (held < granted) & (granted < waiting)
        if turn % 2 == 0:
            shares = _one_by_one(held, np.where(stuck, waiting, held), left, first)
        else:
            shares = filled(held, np.where(stuck, held, np.maximum(held, waiting)), left, first)
        left -= int((shares - held).sum())
        waited = filled(shares, np.maximum(shares, waiting), left, first)
        left -= int((waited - shares).sum())
        shares = waited
        kept = filled(shares, np.maximum(shares, granted), left, first)
        left -= int((kept - shares).sum())
        left = max(0, left - spare)
        shares = filled(kept, kept + left, left, first)
        self._moved_s[shares > granted] = now_s
        self.totals = begun + shares

    def need(self, lacking: int, log_us: int) -> None:
        """Of what was shared just now: ``lacking`` groups must be begun for requests that wait.
        Those who wait come first, one after the other, each with all of its share that it waits
        for, since a part may be of no use to it: so it may be more in all. The rest evenly."""
        lacking -= sum(self._unreported)
        self.needed = self.totals[:0]
        if lacking <= 0 or not self.ids:
            return
        first = log_us // TURN_US * _GOLDEN % 1.0
        granted = self.totals - self.begun
        parts = np.minimum(granted, self.waiting)
        order = np.roll(np.arange(len(parts)), -int(first * len(parts)))
        parts[order[np.cumsum(parts[order]) - parts[order] >= lacking]] = 0
        left = max(0, lacking - int(parts.sum()))
        self.needed = self.begun + filled(parts, granted, left, first)

    def _report(self, more: int, window: int) -> None:
        """So many more were begun than became open, or ended: sealers of other partitions have
        them, and say so soon."""
        now, last = self._unreported
        if window != self._window:
            now, last = 0, now if window == self._window + 1 else 0
            self._window = window
        now += more
        self._unreported = max(now, 0), max(last + min(now, 0), 0)

    def _keep(self, ids: tuple[str, ...], begun: Ints, is_open: Ints) -> None:
        """What is known of these producers; nothing was granted to new ones."""
        numbers = np.fromiter(map(self._number_of.__getitem__, ids), np.int64, len(ids))
        before = np.full(len(self._number_of), -1)
        before[self._numbers] = np.arange(len(self._numbers))
        at = before[numbers]

        def kept(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            return np.where(at < 0, new, old[at]) if len(old) else new.copy()

        self.totals = kept(self.totals, begun)
        self.begun, self._open = kept(self.begun, begun), kept(self._open, is_open)
        self._moved_s = kept(self._moved_s, np.full(len(ids), -np.inf))
        self.reads_older = kept(self.reads_older, np.zeros(len(ids), np.bool_))
        for new in np.flatnonzero(at < 0).tolist():
            self.reads_older[new] = not ids[new].endswith(READS_ITS_SHARE)
        self.ids, self._numbers = ids, numbers
        if len(self._number_of) > 2 * len(ids):
            self._number_of = defaultdict(
                count(len(ids)).__next__, zip(ids, range(len(ids)), strict=True)
            )
            self._numbers = np.arange(len(ids))


def filled(have: Ints, most: Ints, left: int, first: float) -> Ints:
    """Raises the lowest of ``have`` first, each to at most ``most``, by ``left`` in all.

    Args:
        first: in [0, 1), who comes first of those that get one more where it does not divide.
    """
    if not left or not (most > have).any():
        return have
    low, high = 0, int(most.max())  # Levels: the lowest that can be paid for, and one above it.
    while low < high:
        level = (low + high + 1) // 2
        if int((_raised(have, most, level) - have).sum()) <= left:
            low = level
        else:
            high = level - 1
    shares = _raised(have, most, low)
    rest = left - int((shares - have).sum())
    next_ones = np.flatnonzero((shares == low) & (shares < most))
    if rest and len(next_ones):
        shares[np.roll(next_ones, -int(first * len(next_ones)))[:rest]] += 1
    return shares


def _one_by_one(have: Ints, most: Ints, left: int, first: float) -> Ints:
    """Raises one after the other to its ``most``."""
    shares, lacking = have.copy(), np.flatnonzero(most > have)
    for at in np.roll(lacking, -int(first * len(lacking))):
        more = min(left, int(most[at] - have[at]))
        shares[at] += more
        left -= more
    return shares


def _raised(have: Ints, most: Ints, level: int) -> Ints:
    return np.maximum(have, np.minimum(most, level))
