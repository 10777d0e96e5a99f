"""Finds out that a sampler's decision log was lost, before anything is decided anew.

Files are written after the events that they follow from, so none is ever ahead of the log.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.store.blobs import Blobs
from rollstream.store.followed import Followed, NewestBatch
from rollstream.store.layout import snapshot_offset_in, snapshots_prefix
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import LogLost
from rollstream.streams.topics.lost import REMEDY, lost_batch


class Written(NamedTuple):
    """The newest files of a sampler.

    Attributes:
        batch: as ``Followed`` knows it; None: none was ever written.
        snapshot: next offset of its decision log; 0: there is no snapshot.
    """

    batch: NewestBatch | None
    snapshot: int


def newest_written(store: Blobs, name: str, log: TopicPartition) -> Written:
    """The newest files of a sampler with this decision log; to be asked before the log is read.

    Raises:
        StoreError: the store cannot be read.
    """
    prefix = snapshots_prefix(name, log.topic)
    offsets = (snapshot_offset_in(blob.path) for blob in store.list(prefix))
    return Written(
        Followed(store).newest_named(name),
        max((one for one in offsets if one is not None), default=0),
    )


def require_log_of(
    written: Written,
    log: TopicPartition,
    state: SamplerState,
    next_offset: int,
    disproved: int,
) -> None:
    """Returns where the log, which was folded up to ``next_offset``, may be the one that the files
    follow from.

    Args:
        disproved: next offset of a snapshot that was read, and that the log does not prove; 0:
            none. A snapshot that cannot be read says how long the log was, and no more.

    Raises:
        LogLost: with what each of them holds, and what to do.
    """
    newest = written.batch
    if newest is not None:
        lost = lost_batch(log, newest.batch, (state.trainer_epoch, state.next_step))
        if lost:
            raise LogLost(lost)
        epoch, step = newest.batch
        held = state.batches.get(step)
        if held and held.event.trainer_epoch == epoch and not _may_hold(newest.content, held):
            raise LogLost(
                f"{log} has batch {held.batch_id!r} as step {step} of trainer epoch {epoch}, and "
                "the store's root holds another batch as that step: the log was lost or cut back, "
                f"and decided anew since. Nothing more is decided: {REMEDY}"
            )
    snapshot = disproved or written.snapshot
    if disproved or snapshot > next_offset:
        raise LogLost(
            f"{log} ends at {next_offset}, but the store's root holds a snapshot at offset "
            f"{snapshot} that does not follow from it: the log was lost or cut back. Nothing is "
            f"decided anew: {REMEDY}"
        )


def _may_hold(content: bytes, batch: ServedBatch) -> bool:
    """Whether the file may be of this batch: it may hold an earlier decision about it."""
    try:
        file = orjson.loads(content)
        digest, replacements = bytes.fromhex(file["digest"]), int(file["replacements"])
    except (ValueError, TypeError, KeyError):
        return True  # It is damaged, and says nothing.
    if replacements in (0, batch.replacements):
        return digest == (batch.event if replacements == 0 else batch).digest
    return replacements < batch.replacements
