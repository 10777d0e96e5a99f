"""What became of every entry of one source partition: the fold over ``groups.<env>[p]``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.events import Adopted, Event, Flushed, SealedSegments, Settlements
from rollstream.schemas.ids import SegmentId, segment_id
from rollstream.schemas.ingest.entry import ENTRIES_MAX
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.errors import CorruptLog
from rollstream.streams.owned.fold import FoldCheckpoint

# The newest always matter: their log time, and files that may lack manifests.
FLUSHES_KEPT_MIN = 16
# An entry is packed as its offset, shifted, and its number, so that sorting sorts by both.
_BITS = 16
_ENTRY = (1 << _BITS) - 1
assert ENTRIES_MAX == 1 << _BITS


class _Flush(NamedTuple):
    """A flush that still matters.

    Attributes:
        offset: within the seal log.
        newest: the highest source offset of which it settled an entry; -1 if none.
        settled: how many entries this fold knew to be settled after it.
        segments: those that it settled.
    """

    offset: int
    newest: int
    settled: int
    segments: Sequence[SegmentId]


class _Above(NamedTuple):
    """Of source offsets that are not below the watermark. One value, which is replaced as a whole:
    another thread may be reading it.

    Attributes:
        settled: offset << 16 | entry of each settled entry, rising; int64.
        counts: offset << 16 | entries - 1 of each offset with a settled entry, rising; int64.
    """

    settled: NDArray[np.int64]
    counts: NDArray[np.int64]


class SealFold:
    """Settled entries, the low watermark, and the uids within the dedupe horizon.

    A settled (uid, segment) is remembered until the watermark has passed its offset and at least
    ``dedupe_horizon`` further entries are settled.

    A fold that begins at the ``fold_from`` of an ``Adopted`` is complete once it has folded that
    very ``Adopted``, which holds the totals of what came before.

    One thread folds; ``seen`` and what asks for settled entries may be asked from another
    meanwhile, and answer as before or as after.

    Attributes:
        watermark: every entry of every source offset below it is settled.
        now_ts: newest log time that an event recorded, microseconds.
        counts: ``segments`` (sealed ones), ``groups``, and each ``SettleReason`` by name; entries,
            but for groups.
        flushes: offsets, within this log, of the flushes that still matter, at least the newest 16.
    """

    def __init__(self, *, dedupe_horizon: int) -> None:
        assert dedupe_horizon >= 0
        self.watermark = 0
        self.now_ts = 0
        self._horizon = dedupe_horizon
        self._counts: Counter[str] = Counter()
        self._above = _Above(np.empty(0, np.int64), np.empty(0, np.int64))
        self._settled = 0  # Entries, by the events folded here.
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

    def settled(self, offset: int, entry: int) -> bool:
        """Whether the entry of the record at the source offset is settled."""
        above = self._above.settled  # Once, and before the watermark: another thread may fold.
        if offset < self.watermark:
            return True
        key = offset << _BITS | entry
        index = int(np.searchsorted(above, key))
        return index < len(above) and int(above[index]) == key

    def settled_whole(self, offset: int) -> bool:
        """Whether every entry of the record at the source offset is settled."""
        above = self._above
        if offset < self.watermark:
            return True
        count = _count_of(above, offset)
        return count > 0 and len(_entries_of(above, offset)) == count

    def settled_entries(self, offset: int) -> Collection[int]:
        """Which entries are settled of a source offset that is not below the watermark."""
        return frozenset(_entries_of(self._above, offset).tolist())

    def entry_count(self, offset: int) -> int:
        """How many entries a source offset that is not below the watermark has; 0 where none of
        them is settled, and so nobody said it."""
        return _count_of(self._above, offset)

    @property
    def settled_count(self) -> int:
        """How many entries are settled."""
        return self._counts.total() - self._counts["groups"]

    @property
    def touched(self) -> tuple[int, int]:
        """Of how many source offsets any entry is settled, and how many entries these have."""
        settled, counts = self._above
        pending = int((counts & _ENTRY).sum()) + len(counts) - len(settled)
        return self.watermark + len(counts), self.settled_count + pending

    @property
    def replay_until(self) -> int:
        """No entry is settled of this source offset, or of any above it."""
        counts = self._above.counts
        above = (int(counts[-1]) >> _BITS) + 1 if len(counts) else 0
        return max(above, self.watermark)

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
        state.update(self._above.settled.tobytes())
        state.update(self._above.counts.tobytes())
        for offset, newest, settled, segments in self._flushes:
            # Not how many were settled before: folds that began elsewhere have not counted these.
            further = self._settled - settled
            state.update(repr((offset, newest, further, tuple(segments))).encode())
        return state.digest()

    def _flush(self, offset: int, event: Flushed) -> None:
        self._settle(offset, event)
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
        newest = int(event.touched.offsets[-1]) if len(event.touched.offsets) else -1
        self._flushes.append(_Flush(offset, newest, self._settled, segments))
        self._forget()

    def _settle(self, offset: int, event: Flushed) -> None:
        watermark = event.watermark
        if watermark < self.watermark:
            raise CorruptLog(
                f"event {offset}: the watermark goes back from {self.watermark} to {watermark}"
            )
        new, touched = _packed(offset, event)
        lower, settled = _joined(self._above.settled, new)
        twice = settled[1:][settled[1:] == settled[:-1]]
        below = new[new < self.watermark << _BITS] if self._whole else new[:0]
        if len(twice) or len(below):
            which = int(twice[0] if len(twice) else below[0])
            raise CorruptLog(f"event {offset} settles {_named(which)} a second time")
        settled = np.concatenate((lower, settled))
        counts = self._joined_counts(offset, touched)
        covered, passed = (
            int(np.searchsorted(keys, watermark << _BITS)) for keys in (settled, counts)
        )
        if self._whole:
            self._check_passed(offset, watermark, settled[:covered], counts[:passed])
        # In this order, so that `settled` is right in between.
        self.watermark = watermark
        self._above = _Above(settled[covered:], counts[passed:])
        self._settled += len(new)

    def _joined_counts(self, offset: int, touched: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many entries offsets have, by earlier events and by this one."""
        lower, counts = _joined(self._above.counts, touched)
        same = counts[1:] >> _BITS == counts[:-1] >> _BITS
        if not same.any():
            return np.concatenate((lower, counts))
        first, second = counts[:-1][same], counts[1:][same]
        if (first != second).any():
            at = int(np.flatnonzero(first != second)[0])
            one, other = int(first[at]), int(second[at])
            raise CorruptLog(
                f"event {offset}: source offset {one >> _BITS} has {(one & _ENTRY) + 1} entries by "
                f"one event and {(other & _ENTRY) + 1} by another"
            )
        return np.concatenate((lower, counts[:1], counts[1:][~same]))

    def _check_passed(
        self, offset: int, watermark: int, settled: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Raises ``CorruptLog`` unless every entry of every offset that the watermark passes is
        settled. Each is below its offset's count and settled once, so the sums tell."""
        untouched = watermark - self.watermark - len(counts)
        unsettled = int((counts & _ENTRY).sum()) + len(counts) - len(settled)
        if untouched or unsettled:
            raise CorruptLog(
                f"event {offset} moves the watermark from {self.watermark} to {watermark}, over "
                f"{untouched} offsets that nothing settled and {unsettled} entries of others"
            )

    def _adopt(self, offset: int, event: Adopted) -> None:
        if self._whole:
            if event.watermark != self.watermark:
                raise CorruptLog(
                    f"event {offset} adopts watermark {event.watermark}, not {self.watermark}"
                )
            return
        self.watermark = event.watermark
        self._above = _Above(
            *(keys[np.searchsorted(keys, event.watermark << _BITS) :] for keys in self._above)
        )
        self._counts = Counter(event.counts)
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
            oldest = flushes.popleft()
            for segment in oldest.segments:
                if self._seen.get(segment) == oldest.offset:  # No later flush saw it again.
                    del self._seen[segment]


def _segment_ids(uids: Sequence[str], segment_idxs: NDArray[np.int32]) -> Sequence[SegmentId]:
    if not segment_idxs.any():
        return uids
    return [segment_id(*segment) for segment in zip(uids, segment_idxs.tolist(), strict=True)]


def _packed(offset: int, event: Flushed) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries that the event settles, and the number of entries of their offsets; rising."""
    parts: tuple[SealedSegments | Settlements, ...] = (event.segments, *event.settled)
    entries = np.concatenate([part.entries for part in parts])
    settled = np.concatenate([part.offsets for part in parts]) << _BITS | entries
    settled.sort()
    touched, counts = event.touched.offsets, event.touched.counts
    is_last = np.ones(len(settled), np.bool_)  # Of its offset.
    is_last[:-1] = settled[1:] >> _BITS != settled[:-1] >> _BITS
    last = settled[is_last]
    if (entries >> _BITS).any() or not np.array_equal(last >> _BITS, touched):
        raise CorruptLog(
            f"event {offset}: the offsets of its entries are not those that it says it touches"
        )
    if (last & _ENTRY >= counts).any() or (counts > ENTRIES_MAX).any():
        at = int(np.flatnonzero((last & _ENTRY >= counts) | (counts > ENTRIES_MAX))[0])
        raise CorruptLog(
            f"event {offset} settles {_named(int(last[at]))}, whose record it says has "
            f"{int(counts[at])} entries"
        )
    return settled, touched << _BITS | counts - 1


def _joined(
    known: NDArray[np.int64], new: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is known of lower offsets than any new one, and the rest, sorted in with the new ones:
    a pinned watermark may leave very much above it, of which most flushes concern the end."""
    at = np.searchsorted(known, new[0] >> _BITS << _BITS) if len(new) else len(known)
    upper = np.concatenate((known[at:], new))
    upper.sort(kind="stable")
    return known[:at], upper


def _entries_of(above: _Above, offset: int) -> NDArray[np.int64]:
    keys = above.settled
    start, stop = np.searchsorted(keys, (offset << _BITS, offset + 1 << _BITS))
    return keys[start:stop] & _ENTRY


def _count_of(above: _Above, offset: int) -> int:
    keys = above.counts
    index = int(np.searchsorted(keys, offset << _BITS))
    if index == len(keys) or int(keys[index]) >> _BITS != offset:
        return 0
    return (int(keys[index]) & _ENTRY) + 1


def _named(key: int) -> str:
    return f"entry {key & _ENTRY} of source offset {key >> _BITS}"
