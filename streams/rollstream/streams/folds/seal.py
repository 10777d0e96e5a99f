"""What became of every offset of one source partition: the fold over ``groups.<env>[p]``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.events import Adopted, Event, Flushed
from rollstream.schemas.ids import SegmentId, segment_id
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.errors import CorruptLog
from rollstream.streams.owned.fold import FoldCheckpoint

# The newest always matter: their log time, and files that may lack manifests.
FLUSHES_KEPT_MIN = 16


class _Flush(NamedTuple):
    """A flush that still matters.

    Attributes:
        offset: within the seal log.
        newest: the highest source offset that it settled; -1 if none.
        segments: those that it settled.
    """

    offset: int
    newest: int
    segments: Sequence[SegmentId]


class SealFold:
    """Settled offsets, the low watermark, and the uids within the dedupe horizon.

    A settled (uid, segment) is remembered until ``dedupe_horizon`` further source offsets lie below
    the watermark: ``seen`` answers exactly for those whose offset is at least
    ``watermark - dedupe_horizon``.

    A fold that begins at the ``fold_from`` of an ``Adopted`` is complete once it has folded that
    very ``Adopted``, which holds the totals of what came before.

    One thread folds; ``seen`` and ``settled`` may be asked from another meanwhile, and answer as
    before or as after.

    Attributes:
        watermark: every source offset below it is settled.
        now_ts: newest log time that an event recorded, microseconds.
        counts: ``segments`` (sealed ones), ``groups``, and each ``SettleReason`` by name.
        flushes: offsets, within this log, of the flushes that still matter, at least the newest 16.
    """

    def __init__(self, *, dedupe_horizon: int) -> None:
        assert dedupe_horizon >= 0
        self.watermark = 0
        self.now_ts = 0
        self._horizon = dedupe_horizon
        self._counts: Counter[str] = Counter()
        self._above: NDArray[np.int64] = np.empty(0, np.int64)  # Settled, sorted, not below.
        self._seen: dict[SegmentId, int] = {}  # Segment to the flush that settled it last.
        self._flushes: deque[_Flush] = deque()
        self._clock_flush = -1  # The flush that `now_ts` is from: it matters, however old it is.
        self._start: int | None = None
        self._whole = False

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    @property
    def flushes(self) -> Sequence[int]:
        return [flush.offset for flush in self._flushes]

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Folds the next event; those that settle nothing change nothing.

        Raises:
            CorruptLog: an event settles an offset a second time, or moves the watermark past an
                unsettled one: a defect of the writer, never folded over.
        """
        if self._start is None:
            self._start = offset
            self._whole = offset == 0
        if isinstance(event, Flushed):
            self._flush(offset, event)
        elif isinstance(event, Adopted):
            self._adopt(offset, event)

    def settled(self, offset: int) -> bool:
        """Whether the source offset is settled."""
        above = self._above  # Once, and before the watermark: another thread may be folding.
        if offset < self.watermark:
            return True
        index = int(np.searchsorted(above, offset))
        return index < len(above) and int(above[index]) == offset

    def settled_above(self) -> NDArray[np.int64]:
        """The settled source offsets that are not below the watermark, rising; int64 [n]."""
        return self._above

    def seen(self, segment: SegmentId) -> bool:
        """Whether the segment was settled before, within the dedupe horizon."""
        return segment in self._seen

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """The newest claim before every flush that still matters."""
        oldest = self._flushes[0].offset if self._flushes else claims[-1]
        before = [claim for claim in claims if claim <= oldest]
        fold_from = before[-1] if before else claims[0]
        return FoldCheckpoint(fold_from, self.watermark, dict(self._counts))

    def digest(self) -> bytes:
        """Equal for equal states, wherever the folds began."""
        state = xxhash.xxh3_128()
        counts = sorted((name, count) for name, count in self._counts.items() if count)
        state.update(repr((self.watermark, self.now_ts, counts)).encode())
        state.update(self._above.tobytes())
        for flush in self._flushes:
            state.update(repr((flush.offset, flush.newest, tuple(flush.segments))).encode())
        return state.digest()

    def _flush(self, offset: int, event: Flushed) -> None:
        settled = [event.segments.offsets, *(s.offsets for s in event.settled)]
        new = np.concatenate(settled).astype(np.int64, copy=False)
        self._settle(offset, new, event.watermark)
        if event.now_ts >= self.now_ts:
            self.now_ts, self._clock_flush = event.now_ts, offset
        self._counts["segments"] += len(event.segments.offsets)
        self._counts["groups"] += len(event.groups)
        segments = _segment_ids(event.segments.uids, event.segments.segment_idxs)
        for part in event.settled:
            self._counts[part.reason] += len(part.offsets)
            # A duplicate says nothing of its original, which may be pending still.
            if len(part.uids) and part.reason != SettleReason.DUPLICATE:
                segments = [*segments, *_segment_ids(part.uids, part.segment_idxs)]
        self._seen.update(dict.fromkeys(segments, offset))
        self._flushes.append(_Flush(offset, int(new.max()) if len(new) else -1, segments))
        self._forget()

    def _settle(self, offset: int, new: NDArray[np.int64], watermark: int) -> None:
        if watermark < self.watermark:
            raise CorruptLog(
                f"event {offset}: the watermark goes back from {self.watermark} to {watermark}"
            )
        above = np.concatenate((self._above, new))
        above.sort(kind="stable")
        twice = above[1:][above[1:] == above[:-1]]
        below = new[new < self.watermark] if self._whole else new[:0]
        if len(twice) or len(below):
            which = int(twice[0] if len(twice) else below[0])
            raise CorruptLog(f"event {offset} settles source offset {which} a second time")
        covered = int(np.searchsorted(above, watermark))
        if self._whole and covered != watermark - self.watermark:
            raise CorruptLog(
                f"event {offset} moves the watermark from {self.watermark} to {watermark}, "
                f"over {watermark - self.watermark - covered} offsets that nothing settled"
            )
        # In this order, so that `settled` is right in between.
        self.watermark = watermark
        self._above = above[covered:]

    def _adopt(self, offset: int, event: Adopted) -> None:
        if self._whole:
            if event.watermark != self.watermark:
                raise CorruptLog(
                    f"event {offset} adopts watermark {event.watermark}, not {self.watermark}"
                )
            return
        self.watermark = event.watermark
        self._above = self._above[np.searchsorted(self._above, event.watermark) :]
        self._counts = Counter(event.counts)
        assert self._start is not None
        # Nothing that matters stands before `fold_from`, and we have folded since then.
        self._whole = event.fold_from >= self._start
        self._forget()

    def _forget(self) -> None:
        horizon = self.watermark - self._horizon
        flushes = self._flushes
        while (
            len(flushes) > FLUSHES_KEPT_MIN
            and flushes[0].newest < horizon
            and flushes[0].offset != self._clock_flush
        ):
            oldest = flushes.popleft()
            for segment in oldest.segments:
                if self._seen.get(segment) == oldest.offset:  # No later flush saw it again.
                    del self._seen[segment]


def _segment_ids(uids: Sequence[str], segment_idxs: NDArray[np.int32]) -> Sequence[SegmentId]:
    if not segment_idxs.any():
        return uids
    return [segment_id(*segment) for segment in zip(uids, segment_idxs.tolist(), strict=True)]
