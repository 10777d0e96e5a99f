"""Which producers' shares are to be written now. Pure, but for memory of what was written.

A share is written at once if somebody waits for it, or if it is less than before. Otherwise it
may wait: the producer has enough for now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import compress, count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.decide.admission.shares import Shares

RECORDS_MAX = 500  # At a time, for one environment.
SETTLED_S = 10.0  # A share that nobody waits for is written as long after it was written last.
# What a zombie wrote over is there again after ten seconds, in a large fleet after minutes.
AGAIN_S = 10.0
AGAIN_MAX = 8  # Shares that are written again, at a time.
FORGOTTEN_S = 60.0  # A producer that has nothing left of its share often comes back sooner.
_GONE = -1  # The total of a producer that has no record, or whose record is to be removed.
_ROW = np.dtype(
    [(name, np.int64) for name in ("total", "needed", "begun", "waiting")]
    + [("written", np.int64), ("written_needed", np.int64), ("written_s", np.float64)]
)


class Written(NamedTuple):
    """What is to stand under a producer's key.

    Attributes:
        total: None: nothing, since the producer is gone.
    """

    producer_id: str
    total: int | None
    needed: int


class ShareRecords:
    """The records of one environment's producers: of the living, and of the gone until theirs are
    removed.

    Args:
        known: the totals that the log holds of before, by producer.
    """

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self._keep(tuple(known or {}))
        self._rows = _new_rows(len(self._ids))
        self._rows["written"] = [*(known or {}).values()]
        self._living: tuple[str, ...] | None = None
        self._at = np.zeros(0, np.int64)  # The rows of the living.

    def changes(self, shares: Shares, now_s: float) -> list[Written]:
        """The records that are to be written now, which count as written then: those first for
        which somebody waits, and at most ``RECORDS_MAX``.

        Args:
            shares: of the living producers, newly shared.
            now_s: by a clock that never goes back.
        """
        if shares.ids != self._living:
            self._take(shares.ids, now_s)
        rows, at = self._rows, self._at
        rows["total"][at] = shares.totals
        rows["begun"][at], rows["waiting"][at] = shares.begun, shares.waiting
        rows["needed"][at] = 0
        if len(shares.needed):  # Who may not begin more by it has no need to know.
            rows["needed"][at] = np.where(shares.needed > shares.begun, shares.needed, 0)
        due = self._due(now_s)
        found = [
            Written(self._ids[row], None if total == _GONE else total, needed)
            for row, total, needed in zip(
                due.tolist(), rows["total"][due].tolist(), rows["needed"][due].tolist(), strict=True
            )
        ]
        rows["written"][due], rows["written_needed"][due] = rows["total"][due], rows["needed"][due]
        rows["written_s"][due] = now_s
        if any(one.total is None for one in found):
            self._forget()
        return found

    def _due(self, now_s: float) -> NDArray[np.int64]:
        """Rows, the most urgent first."""
        rows = self._rows
        total, written, aged_s = rows["total"], rows["written"], now_s - rows["written_s"]
        lives, left = total != _GONE, written - rows["begun"]
        more = (total > written) | (rows["needed"] > rows["written_needed"])
        differs = (total != written) | (rows["needed"] != rows["written_needed"])
        waited_for = lives & more & (rows["waiting"] > 0)
        # Less than half of it is known: the producer would wait before it learns of the rest.
        short = 2 * left < total - rows["begun"]
        changed = differs & (short | (total < written) | (aged_s >= SETTLED_S))
        gone = (written != _GONE) & ((left > 0) | (aged_s >= FORGOTTEN_S))
        soon = np.where(lives, changed & ~waited_for, gone)
        again = np.flatnonzero(lives & ~differs & (aged_s >= AGAIN_S))
        if len(again) > AGAIN_MAX:
            oldest = np.argpartition(rows["written_s"][again], AGAIN_MAX)
            again = again[oldest[:AGAIN_MAX]]
        due = np.flatnonzero(waited_for), np.flatnonzero(soon), again
        return np.concatenate(due)[:RECORDS_MAX]

    def _take(self, ids: tuple[str, ...], now_s: float) -> None:
        """These live from now on; all others are gone."""
        self._living = ids
        self._at = np.fromiter(map(self._row_of.__getitem__, ids), np.int64, len(ids))
        new = tuple(islice(self._row_of, len(self._ids), None))
        self._ids += new
        self._rows = np.concatenate([self._rows, _new_rows(len(new))])
        lives = np.zeros(len(self._ids), np.bool_)
        lives[self._at] = True
        went = ~lives & (self._rows["total"] != _GONE)
        self._rows["total"][went], self._rows["needed"][went] = _GONE, 0
        self._rows["written_s"][went] = now_s  # Its record is removed so long after it went.
        self._forget()

    def _forget(self) -> None:
        """Those that are gone and have no record. Their rows are removed once they are many."""
        kept = (self._rows["total"] != _GONE) | (self._rows["written"] != _GONE)
        kept[self._at] = True
        self._rows["written_s"][~kept] = -np.inf
        if 2 * np.count_nonzero(kept) < len(kept):
            self._keep(tuple(compress(self._ids, kept.tolist())))
            self._rows = self._rows[kept]
            self._at = (np.cumsum(kept) - 1)[self._at]

    def _keep(self, ids: tuple[str, ...]) -> None:
        """These have the first rows, and who comes anew the next ones."""
        self._ids = ids
        self._row_of = defaultdict(count(len(ids)).__next__, zip(ids, range(len(ids)), strict=True))


def _new_rows(count: int) -> NDArray[np.void]:
    rows = np.zeros(count, _ROW)
    rows["total"] = rows["written"] = _GONE
    rows["written_s"] = -np.inf
    return rows
