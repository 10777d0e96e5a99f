"""Folds what counts in one owned partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import xxhash

from rollstream.schemas.events import Adopted, Claimed, Event
from rollstream.streams.broker import Record
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.reading import event_in

CLAIMS_KEPT_MAX = 4096  # Offered to `checkpoint`: the first and the newest.


class FoldCheckpoint(NamedTuple):
    """What ``Adopted`` records of a fold.

    Attributes:
        fold_from: offset of a claim, among those that ``checkpoint`` was given, from which a new
            fold reaches the same state; 0 is the whole log.
        watermark: the low watermark; -1 where the log has none.
        counts: totals by name.
        retired: offset of the newest ``Retired`` with files; -1 where there is none.
    """

    fold_from: int
    watermark: int
    counts: Mapping[str, int]
    retired: int = -1


class LogFold(Protocol):
    """State as a fold over the events of one partition that count. Pure."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Applies the next event that counts, claims and adoptions included, by rising offset."""

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        """Chooses among ``claims`` (offsets, rising) the one that a later fold may start from."""


F = TypeVar("F", bound=LogFold)


class FoldPlace(NamedTuple):
    """How far a log was folded: what a fold that was saved needs to go on, and to prove that it is
    one of this log.

    Attributes:
        next_offset: everything below it is folded.
        record: xxh3-128 of the record before it: the log holds that one for ever, or it is another.
        claim: the claim in effect there, and its offset.
        claims: offsets that ``checkpoint`` may choose from.
    """

    next_offset: int
    record: bytes
    claim: tuple[int, Claimed]
    claims: tuple[int, ...]


class SavedFold(NamedTuple, Generic[F]):
    """A fold, and how far it went."""

    fold: F
    place: FoldPlace


class FoldedLog(Generic[F]):
    """A fold over the events that the fence admits, from some claim (or offset 0) on.

    Attributes:
        fold: over all events that count below ``next_offset``.
        next_offset: everything below it is folded.
        admitted: offset of the newest event that counts; -1: none was folded.
        newest: xxh3-128 of the record before it; empty: none was folded.
        foreign: how many records no owner wrote; they are passed over.
    """

    def __init__(self, fold: F, fence: Fence, start: int) -> None:
        self.fold = fold
        self.next_offset = start
        self.admitted = -1
        self.newest = b""
        self.foreign = 0
        self._fence = fence
        self._claims: list[int] = []  # Offsets that `checkpoint` may choose from.

    @classmethod
    def going_on(cls, saved: SavedFold[F], fence: Fence) -> Self:
        """The fold as it was saved; ``fence`` is one that admitted nothing yet."""
        folded = cls(saved.fold, fence, saved.place.next_offset)
        fence.admits(*saved.place.claim)
        folded._claims = list(saved.place.claims)
        folded.newest = saved.place.record
        return folded

    def place(self) -> FoldPlace:
        """How far it went; something must have been claimed and folded."""
        claim, owner = self._fence.current_claim, self._fence.owner
        assert claim is not None, "nothing was claimed"
        assert owner is not None, "nothing was claimed"
        assert self.newest, "nothing was folded"
        return FoldPlace(self.next_offset, self.newest, (claim.epoch, owner), tuple(self._claims))

    def apply(self, offset: int, timestamp_us: int, event: Event | None, value: bytes) -> bool:
        """Folds the next event if it counts; returns whether it does.

        Args:
            event: None: no owner wrote the record.
            value: the record that holds the event.
        """
        counts = event is not None and self._fence.admits(offset, event)
        if event is None:
            self.foreign += 1
        elif counts:
            self.admitted = offset
            if isinstance(event, Claimed):
                self._claims.append(offset)
                if len(self._claims) > CLAIMS_KEPT_MAX:
                    # The first stays: if the fold began at a claim, it is complete from there.
                    del self._claims[1]
            self.fold.apply(offset, timestamp_us, event)
        self.next_offset = offset + 1
        self.newest = xxhash.xxh3_128_digest(value)
        return counts

    def apply_record(self, record: Record) -> Event | None:
        """Folds the next record if it counts; returns its event, whether it counts or not; None: no
        owner wrote it.

        Raises:
            NewerEvent, CorruptLog: as ``event_in``.
        """
        event = event_in(record, self._fence.owner)
        self.apply(record.offset, record.timestamp_us, event, record.value)
        return event

    @property
    def owner(self) -> Claimed | None:
        """The newest claim that was folded."""
        return self._fence.owner

    def adoption(self) -> Adopted:
        """The event that the claim in effect is followed by."""
        claim = self._fence.current_claim
        assert claim is not None, "nothing was claimed"
        checkpoint = self.fold.checkpoint(tuple(self._claims))
        assert checkpoint.fold_from in (0, *self._claims), (checkpoint, self._claims)
        self._claims = [offset for offset in self._claims if offset >= checkpoint.fold_from]
        return Adopted(epoch=claim.epoch, nonce=claim.nonce, **checkpoint._asdict())
