"""Finds out that a sampler's decision log was lost, before anything is decided anew.

Files are written after the events that they follow from, so none is ever ahead of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from rollstream.store.blobs import Blobs
from rollstream.store.layout import (
    batch_in,
    batches_prefix,
    snapshot_offset_in,
    snapshots_prefix,
)
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import LogLost
from rollstream.streams.folds.sampler.state import SamplerState

_REMEDY = (
    "restore the log, or correct store.root; `rollstream without-logs` says what files know of it, "
    "and a run that is to begin anew takes a section [samplers.*] of another name"
)


class Written(NamedTuple):
    """The newest files of a sampler.

    Attributes:
        batch: trainer epoch and step; None: no batch was ever written.
        snapshot: next offset of its decision log; 0: there is no snapshot.
    """

    batch: tuple[int, int] | None
    snapshot: int


def newest_written(store: Blobs, name: str, log: TopicPartition) -> Written:
    """The newest files of a sampler with this decision log; to be asked before the log is read.

    Raises:
        StoreError: the store cannot be listed.
    """
    batches = (batch_in(blob.path) for blob in store.list(batches_prefix(name)))
    prefix = snapshots_prefix(name, log.topic)
    offsets = (snapshot_offset_in(blob.path) for blob in store.list(prefix))
    return Written(
        max((one for one in batches if one is not None), default=None),
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
    decided = (state.trainer_epoch, state.next_step)
    if written.batch is not None and written.batch >= decided:
        epoch, step = written.batch
        raise LogLost(
            f"{log} ends before step {state.next_step} of trainer epoch {state.trainer_epoch}, but "
            f"the store's root holds a batch of step {step} of trainer epoch {epoch}: the log was "
            f"lost or cut back, or is another sampler's. Nothing is decided anew: {_REMEDY}"
        )
    snapshot = disproved or written.snapshot
    if disproved or snapshot > next_offset:
        raise LogLost(
            f"{log} ends at {next_offset}, but the store's root holds a snapshot at offset "
            f"{snapshot} that does not follow from it: the log was lost or cut back. Nothing is "
            f"decided anew: {_REMEDY}"
        )
