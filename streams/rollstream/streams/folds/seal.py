"""What became of every offset of one source partition: the fold over ``groups.<env>[p]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollstream.schemas.events import Event
from rollstream.streams.owned.log import Checkpoint


class SealFold:
    """Settled offsets, the low watermark, and the uids within the dedupe horizon.

    A settled (uid, segment) is remembered until ``dedupe_horizon`` further source offsets lie below
    the watermark: ``seen`` answers exactly for those whose offset is at least
    ``watermark - dedupe_horizon``.

    Attributes:
        watermark: every source offset below it is settled.
        now_ts: newest log time that an event recorded, microseconds.
        counts: ``sealed`` (rollouts), ``groups``, and each ``SettleReason`` by name.
        flushes: offsets, within this log, of the flushes folded so far above ``fold_from``.
    """

    watermark: int
    now_ts: int
    counts: Mapping[str, int]

    def __init__(self, *, dedupe_horizon: int) -> None: ...

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Raises:
        CorruptLog: an event settles an offset a second time, or moves the watermark past an
            unsettled one: a defect of the writer, never folded over.
        """
        raise NotImplementedError

    def settled(self, offset: int) -> bool:
        """Whether the source offset is settled."""
        raise NotImplementedError

    def seen(self, rollout_uid: str, segment_idx: int) -> bool:
        """Whether the segment was settled before, within the dedupe horizon."""
        raise NotImplementedError

    def checkpoint(self, claims: Sequence[int]) -> Checkpoint:
        raise NotImplementedError

    def digest(self) -> bytes:
        raise NotImplementedError
