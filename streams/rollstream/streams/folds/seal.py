"""What became of every entry of one source partition: the fold over ``groups.<env>[p]``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import (
    Adopted,
    Claimed,
    Event,
    Flushed,
    Requested,
    Retired,
    RootRecorded,
)
from rollstream.schemas.ids import SegmentId, prompt_id, segment_id
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.errors import CorruptLog
from rollstream.streams.folds.entries import NO_ENTRIES, Entries, Stretch, entries_of
from rollstream.streams.folds.remembered import Remembered
from rollstream.streams.owned.fold import FoldCheckpoint

# The newest always matter: their log time, and files that may lack manifests.
FLUSHES_KEPT_MIN = 16
REQUESTS_KEPT_MAX = 64  # Unanswered ones; who asked before these waits in vain, and asks again.
NOTHING_RETIRED = -1


class _Flush(NamedTuple):
    """A flush that still matters.

    Attributes:
        offset: within the seal log.
        newest: the highest source offset of which it settled an entry; -1 if none.
        settled: how many entries this fold knew to be settled after it.
        number: of all flushes that were folded.
    """

    offset: int
    newest: int
    settled: int
    number: int


class OpenRequest(NamedTuple):
    """A request that was not answered, and the log time at which it was appended."""

    asked_us: int
    event: Requested


class SealFold:
    """Settled entries, the low watermark, and the uids within the dedupe horizon.

    A settled (uid, segment) is remembered until the watermark has passed its offset and at least
    ``dedupe_horizon`` further entries are settled, or segments imported.

    A fold that begins at the ``fold_from`` of an ``Adopted`` is complete once it has folded that
    very ``Adopted``, which holds the totals of what came before.

    One thread folds; ``seen_among`` and what asks for settled entries may be asked from another
    meanwhile, and answer as before or as after.

    Attributes:
        root_id: of the store's root, as an event names it; empty: none did.
        watermark: every entry of every source offset below it is settled.
        now_ts: newest log time that an event recorded, microseconds.
        counts: ``segments`` (sealed ones), ``groups``, and each ``SettleReason`` by name; entries,
            but for groups and ``imported`` segments, which are not among ``segments``.
        flushes: offsets, within this log, of the flushes that still matter, at least the newest 16.
        retired: offset of the newest ``Retired`` that has files; -1: there is none.
        requests: those that were not answered yet, by offset, in order.
    """

    def __init__(self, *, dedupe_horizon: int) -> None:
        assert dedupe_horizon >= 0
        self.root_id = ""
        self.watermark = 0
        self.now_ts = 0
        self.retired = NOTHING_RETIRED
        self.requests: dict[int, OpenRequest] = {}
        self._horizon = dedupe_horizon
        self._counts: Counter[str] = Counter()
        # Of offsets that are not below the watermark; replaced as a whole.
        self._above = NO_ENTRIES
        self._settled = 0  # Entries, by the events folded here.
        self._remembered = Remembered()
        self._flushes: deque[_Flush] = deque()
        self._folded = 0  # Flushes.
        self._clock_flush = -1  # The flush that `now_ts` is from: it matters, however old it is.
        self._start: int | None = None
        self._whole = False

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    @property
    def newest_flush(self) -> int:
        """Its offset within this log; -1: there is none."""
        return self._flushes[-1].offset if self._flushes else -1

    @property
    def flushes(self) -> Sequence[int]:
        return [flush.offset for flush in self._flushes]

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Folds the next event; those that settle nothing change nothing.

        Raises:
            CorruptLog: an event settles an entry a second time, moves the watermark past an
                unsettled one, or says of an offset another number of entries than an earlier event
                or than it settles itself: a defect of the writer, never folded over.
        """
        if self._start is None:
            self._start = offset
            self._whole = offset == 0
        if isinstance(event, Flushed):
            self._flush(offset, event)
        elif isinstance(event, Adopted):
            self._adopt(offset, event)
        elif isinstance(event, Claimed | RootRecorded):
            self.root_id = self.root_id or event.root_id
        elif isinstance(event, Retired):
            if event.files:
                self.retired = offset
            if not event.more:
                self.requests.pop(event.request, None)
        elif isinstance(event, Requested):
            self.requests[offset] = OpenRequest(timestamp_us, event)
            if len(self.requests) > REQUESTS_KEPT_MAX:
                del self.requests[next(iter(self.requests))]

    def settled(self, offset: int, entry: int) -> bool:
        """Whether the entry of the record at the source offset is settled."""
        above = self._above  # Once, and before the watermark: another thread may be folding.
        return offset < self.watermark or entry in above.of(offset)

    def known(self, offset: int) -> tuple[int, Collection[int]]:
        """How many entries a source offset has that is not below the watermark, and which of them
        are settled; 0 where none is, and so nobody said how many."""
        above = self._above
        return above.count(offset), frozenset(above.of(offset).tolist())

    def known_between(self, first: int, stop: int) -> Iterator[Stretch]:
        """The same of all source offsets of [first, stop), none of them below the watermark."""
        return self._above.between(first, stop)

    @property
    def settled_count(self) -> int:
        """How many entries are settled."""
        return self._counts.total() - self._counts["groups"] - self._counts["imported"]

    @property
    def touched(self) -> tuple[int, int]:
        """Of how many source offsets any entry is settled, and how many entries these have."""
        above = self._above
        return self.watermark + above.offsets, self.settled_count + above.unsettled

    @property
    def replay_until(self) -> int:
        """No entry is settled of this source offset, or of any above it."""
        return max(self._above.next_offset, self.watermark)

    def seen_among(self, segments: Sequence[SegmentId]) -> Sequence[int]:
        """The indexes of the segments that were settled, and of the prompts that were sealed,
        within the dedupe horizon."""
        return self._remembered.among(segments)

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """The newest claim before every flush that still matters and every open request; 0: one was
        made before the first claim."""
        matters = [*self.flushes[:1], *list(self.requests)[:1]]
        oldest = min(matters, default=claims[-1])
        before = [claim for claim in claims if claim <= oldest]
        fold_from = before[-1] if before else 0
        return FoldCheckpoint(fold_from, self.watermark, dict(self._counts), self.retired)

    def _flush(self, offset: int, event: Flushed) -> None:
        new = self._settle(offset, event)
        if event.now_ts >= self.now_ts:
            self.now_ts, self._clock_flush = event.now_ts, offset
        imported = int((event.segments.offsets < 0).sum())
        self._counts["segments"] += len(event.segments.offsets) - imported
        if imported:
            self._counts["imported"] += imported
            self._settled += imported
        self._counts["groups"] += len(event.groups)
        segments = _segment_ids(event.segments.uids, event.segments.segment_idxs)
        if any(event.groups.group_uids):
            of_groups = zip(
                event.groups.group_uids, event.groups.column("seal_reason"), strict=True
            )
            segments = [*segments, *(prompt_id(*group) for group in of_groups if group[0])]
        for part in event.settled:
            self._counts[part.reason] += len(part.offsets)
            # A duplicate says nothing of its original, which may be pending still.
            if len(part.uids) and part.reason != SettleReason.DUPLICATE:
                segments = [*segments, *_segment_ids(part.uids, part.segment_idxs)]
        for ranges in event.unread:
            self._counts[ranges.reason] += int((ranges.stops - ranges.firsts).sum())
        self._remembered.add(segments, self._folded)
        self._flushes.append(_Flush(offset, new.next_offset - 1, self._settled, self._folded))
        self._folded += 1
        self._forget()

    def _settle(self, offset: int, event: Flushed) -> Entries:
        watermark = event.watermark
        if watermark < self.watermark:
            raise CorruptLog(
                f"event {offset}: the watermark goes back from {self.watermark} to {watermark}"
            )
        try:
            new = entries_of(event)
            if self._whole and new.first_offset < self.watermark:
                raise CorruptLog(f"source offset {new.first_offset} is settled a second time")
            passed, above = self._above.joined(new).split(watermark)
        except CorruptLog as error:
            raise CorruptLog(f"event {offset}: {error}") from error
        untouched = watermark - self.watermark - passed.offsets
        # Each entry is below its offset's count and settled once, so the sums tell.
        if self._whole and (untouched or passed.unsettled):
            raise CorruptLog(
                f"event {offset} moves the watermark from {self.watermark} to {watermark}, over "
                f"{untouched} offsets that nothing settled and {passed.unsettled} entries of others"
            )
        # In this order, so that `settled` is right in between.
        self.watermark = watermark
        self._above = above
        # Not the ranges: what nobody read named no uid, so it makes the fold forget none.
        self._settled += len(new.settled)
        return new

    def _adopt(self, offset: int, event: Adopted) -> None:
        if self._whole:
            if event.watermark != self.watermark:
                raise CorruptLog(
                    f"event {offset} adopts watermark {event.watermark}, not {self.watermark}"
                )
            return
        self.watermark = event.watermark
        _, self._above = self._above.split(event.watermark)
        self._counts = Counter(event.counts)
        self.retired = max(self.retired, event.retired)
        assert self._start is not None
        # Nothing that matters stands before `fold_from`, and we have folded since then.
        self._whole = event.fold_from >= self._start
        self._forget()

    def _forget(self) -> None:
        horizon = self._settled - self._horizon
        flushes = self._flushes
        while (
            len(flushes) > FLUSHES_KEPT_MIN
            and flushes[0].newest < self.watermark
            and flushes[0].settled <= horizon
            and flushes[0].offset != self._clock_flush
        ):
            flushes.popleft()
        if flushes:
            self._remembered.forget(flushes[0].number)


def _segment_ids(uids: Sequence[str], segment_idxs: NDArray[np.int32]) -> Sequence[SegmentId]:
    if not segment_idxs.any():
        return uids
    return [segment_id(*segment) for segment in zip(uids, segment_idxs.tolist(), strict=True)]
