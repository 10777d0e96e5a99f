"""How fast rollouts are sealed, and how long sealing and acks take, lately. Pure.

By the log time of the flushes' own records. Their ``now_ts`` is the log time of what they decided
on, and may be much older: where sealers lag, only the record tells it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import offsets_of
from rollstream.schemas.events import Event, Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason

WINDOW_S = 60.0
KEPT = 512  # Times, of each seal log and of acks.
_NO_ROLLOUT = frozenset(
    (
        *(SettleReason.DISPATCHED, SettleReason.ALIVE, SettleReason.ENDED),
        *(SettleReason.NOT_OPEN, SettleReason.NO_RECORD),
    )
)


class FlushedCounts(NamedTuple):
    """Of one flush, whose record has this log time."""

    logged_ts: int
    segments: int
    groups: int


class _OfLog:
    def __init__(self) -> None:
        self.flushes: list[FlushedCounts] = []  # Of the log's last minute.
        self.seal_times_ms = array("d")
        self.duplicates = 0


class Pace:
    """By the events of the seal logs, each log by itself, and of the decision log.

    Attributes:
        ack_times_ms: from a batch to its first ack, of the newest ones.
    """

    def __init__(self) -> None:
        self._logs: dict[PartitionAddress, _OfLog] = {}
        self.ack_times_ms = array("d")

    @property
    def duplicates(self) -> int:
        """Rollout segments that came once more."""
        return sum(of.duplicates for of in self._logs.values())

    def apply(self, log: PartitionAddress, event: Event, logged_ts: int) -> None:
        """The next event of a seal log that counts, whose record has this log time; 0: not known,
        as of a manifest."""
        if not isinstance(event, Flushed):
            return
        logged_ts = logged_ts or event.now_ts
        of = self._logs.setdefault(log, _OfLog())
        settled = {part.reason: len(part.offsets) for part in event.settled}
        of.duplicates += settled.get(SettleReason.DUPLICATE, 0)
        segments = len(event.segments.uids) + sum(
            count for reason, count in settled.items() if reason not in _NO_ROLLOUT
        )
        since_ts = logged_ts - round(WINDOW_S * 1e6)
        of.flushes = [one for one in of.flushes if one.logged_ts > since_ts]
        of.flushes.append(FlushedCounts(logged_ts, segments, len(event.groups)))
        if event.groups:
            starts = offsets_of(event.groups.rows)[:-1]
            made = np.minimum.reduceat(event.segments.created_ts, starts)
            known = made[made > 0]  # Else the worker did not say when.
            _keep(of.seal_times_ms, np.maximum(logged_ts - known, 0) / 1e3)

    def acked(self, took_us: int) -> None:
        """A batch was acked for the first time, so long after it was served."""
        _keep(self.ack_times_ms, [max(took_us, 0) / 1e3])

    def rates(self, now_us: int) -> tuple[float, float]:
        """Segments that ended, and groups that were sealed, a second: of the last minute."""
        since_ts = now_us - round(WINDOW_S * 1e6)
        every = (one for of in self._logs.values() for one in of.flushes)
        flushes = [one for one in every if one.logged_ts > since_ts]
        segments, groups = (sum(one[place] for one in flushes) for place in (1, 2))
        return segments / WINDOW_S, groups / WINDOW_S

    def seal_times_ms(self) -> array[float]:
        """From when a group's first rollout was made to its flush, of the newest groups."""
        found = array("d")
        for of in self._logs.values():
            found.extend(of.seal_times_ms)
        return found

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        logs = sorted(self._logs.items())
        found = [(log, of.flushes, of.seal_times_ms, of.duplicates) for log, of in logs]
        return [found, self.ack_times_ms]


def _keep(times_ms: array[float], more: Sequence[float] | np.ndarray[Any, Any]) -> None:
    times_ms.extend(more)
    del times_ms[:-KEPT]
