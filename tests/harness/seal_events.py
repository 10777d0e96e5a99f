"""Flush events from a few arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import (
    Flushed,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    Settlements,
    TouchedOffsets,
)

EntryRef = int | tuple[int, int]
"""The only entry of the record at an offset, or (offset, entry)."""


def flushed(
    epoch: int,
    nonce: str,
    sealed: Sequence[EntryRef],
    watermark: int,
    *,
    now_ts: int = 0,
    uids: Sequence[str] | None = None,
    segments: Sequence[int] | None = None,
    settled: Mapping[str, Sequence[EntryRef]] = {},
    settled_uids: Mapping[str, Sequence[str]] = {},
    counts: Mapping[int, int] = {},
) -> Flushed:
    """A flush that seals some entries and settles others by reason.

    Args:
        uids: of what is sealed; by default ``u<offset>``, or ``u<offset>.<entry>``.
        counts: how many entries the record at an offset has; one where it is not named.
    """
    count = len(sealed)
    offsets, entries = columns_of(sealed)
    names = tuple(map(_name, sealed)) if uids is None else tuple(uids)
    return Flushed(
        epoch=epoch,
        nonce=nonce,
        now_ts=now_ts,
        watermark=watermark,
        files=(),
        groups=SealedGroupColumns.of(()),
        segments=SealedSegments(
            offsets=offsets,
            entries=entries,
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
        ),
        settled=tuple(
            settlements(reason, refs, uids=settled_uids.get(reason, ()))
            for reason, refs in settled.items()
        ),
        touched=touched_by(sealed, *settled.values(), counts=counts),
        incomplete=(),
    )


def one_group(
    name: str,
    sealed: Sequence[EntryRef],
    watermark: int,
    counts: Mapping[int, int] = {},
    *,
    epoch: int = 0,
    nonce: str = "n",
    size: int = 0,
    checksum: str = "",
    **settled: Sequence[EntryRef],
) -> Flushed:
    """A flush that seals one group in one file, of this size and checksum."""
    rows = len(sealed)
    uids = [f"{name}-{index}" for index in range(rows)]
    flush = flushed(epoch, nonce, sealed, watermark, uids=uids, settled=settled, counts=counts)
    if not rows:
        return flush
    group = SealedGroup(
        group_id=name,
        group_uid=name,
        example_id="ex-1",
        lineage="",
        policy_version="step-0",
        policy_epoch=0,
        weight_step=0,
        segment_idx=0,
        split="train",
        seal_reason="full",
        failed_members=0,
        file=0,
        row_start=0,
        rows=rows,
        digest=b"",
    )
    file = SealedFile(path=f"{name}.parquet", size=size, rows=rows, checksum=checksum)
    return replace(flush, groups=SealedGroupColumns.of([group]), files=(file,))


def settlements(reason: str, refs: Sequence[EntryRef], *, uids: Sequence[str] = ()) -> Settlements:
    """Entries that end without a group; without ``uids`` they name none."""
    offsets, entries = columns_of(refs)
    return Settlements(
        reason=reason,
        offsets=offsets,
        entries=entries,
        uids=tuple(uids),
        segment_idxs=np.zeros(len(uids), np.int32),
    )


def touched_by(*parts: Sequence[EntryRef], counts: Mapping[int, int] = {}) -> TouchedOffsets:
    """The offsets of all ``parts``; those that ``counts`` does not name have one entry."""
    offsets = sorted({_pair(ref)[0] for part in parts for ref in part})
    return TouchedOffsets(
        offsets=np.asarray(offsets, np.int64),
        counts=np.asarray([counts.get(offset, 1) for offset in offsets], np.int32),
    )


def columns_of(refs: Sequence[EntryRef]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets and entries."""
    pairs = [_pair(ref) for ref in refs]
    return (
        np.asarray([offset for offset, _ in pairs], np.int64),
        np.asarray([entry for _, entry in pairs], np.int32),
    )


def _pair(ref: EntryRef) -> tuple[int, int]:
    return ref if isinstance(ref, tuple) else (ref, 0)


def _name(ref: EntryRef) -> str:
    return f"u{ref[0]}.{ref[1]}" if isinstance(ref, tuple) else f"u{ref}"
