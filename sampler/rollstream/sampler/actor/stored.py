"""Batches whose bytes lie in Ray's object store before they are asked for."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import NamedTuple

import ray
from ray.exceptions import RayError

from rollstream.sampler.actor.pickled import Pickled, StoredBatch
from rollstream.sampler.batch.assembled import AssembledBatch

STORED_BYTES_MAX = 32 * 1024 * 1024  # An eighth of our own Ray's store, for what may be in vain.


class _Stored(NamedTuple):
    batch: StoredBatch
    nbytes: int


class StoredBatches:
    """Has batches lie where who asks for them maps them, up to ``STORED_BYTES_MAX`` of them all.

    Each is forgotten, and its bytes given back, once nobody in this process refers to its buffer.
    May be shared between threads, of which one keeps.
    """

    def __init__(self) -> None:
        self._stored: dict[int, _Stored] = {}  # By the id of a buffer, while it lives.

    def keep(self, batch: AssembledBatch) -> AssembledBatch:
        """The batch with its buffer in the store, read-only; where there is no room, as it is."""
        nbytes = batch.buffer.nbytes
        held = sum([stored.nbytes for stored in list(self._stored.values())])
        if held + nbytes > STORED_BYTES_MAX:
            return batch
        try:
            ref = ray.put(batch.buffer)
            buffer = ray.get(ref)
        except RayError:  # The store is full, say: it crosses as one that was not made before.
            return batch
        kept = replace(batch, buffer=buffer)
        self._stored[id(buffer)] = _Stored(StoredBatch(Pickled.of(kept).header, ref, {}), nbytes)
        weakref.finalize(buffer, self._stored.pop, id(buffer), None)
        return kept

    def crossing(self, batch: AssembledBatch) -> StoredBatch | None:
        """What crosses for a batch that was kept in the store; None: it was not."""
        stored = self._stored.get(id(batch.buffer))
        return stored and stored.batch._replace(decision=batch.decision)
