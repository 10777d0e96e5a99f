"""Flush events from a few arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollstream.schemas.events import Flushed, SealedSegments, Settlements


def flushed(
    epoch: int,
    nonce: str,
    offsets: Sequence[int],
    watermark: int,
    *,
    now_ts: int = 0,
    uids: Sequence[str] | None = None,
    segments: Sequence[int] | None = None,
    settled: Mapping[str, Sequence[int]] = {},
    settled_uids: Mapping[str, Sequence[str]] = {},
) -> Flushed:
    """A flush that seals ``offsets`` (uid ``u<offset>`` each) and settles others by reason."""
    count = len(offsets)
    names = tuple(f"u{offset}" for offset in offsets) if uids is None else tuple(uids)
    sealed = SealedSegments(
        offsets=np.asarray(offsets, np.int64),
        uids=names,
        segment_idxs=np.asarray([0] * count if segments is None else segments, np.int32),
        weight_steps=np.zeros(count, np.int64),
        policy_epochs=np.zeros(count, np.int32),
        prompt_counts=np.zeros(count, np.int32),
        token_counts=np.zeros(count, np.int32),
        rewards=np.zeros(count, np.float64),
        created_ts=np.zeros(count, np.int64),
        replicas=("r",),
        replica_idxs=np.zeros(count, np.int32),
        stop_reasons=("stop",),
        stop_reason_idxs=np.zeros(count, np.int32),
    )
    return Flushed(
        epoch=epoch,
        nonce=nonce,
        now_ts=now_ts,
        watermark=watermark,
        files=(),
        groups=(),
        segments=sealed,
        settled=tuple(
            Settlements(
                reason=reason,
                offsets=np.asarray(which, np.int64),
                uids=tuple(settled_uids.get(reason, ())),
                segment_idxs=np.zeros(len(settled_uids.get(reason, ())), np.int32),
            )
            for reason, which in settled.items()
        ),
        incomplete=(),
    )
