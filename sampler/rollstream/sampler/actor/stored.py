"""What crosses for results, and what of it lies in Ray's object store: batches that were made
before they are asked for, and what many ranks share."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import ray
from ray.exceptions import RayError

from rollstream.sampler.actor.pickled import JOINED_BYTES_MAX, Pickled, Stored
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.command import Computed

STORED_BYTES_MAX = 32 * 1024 * 1024  # An eighth of our own Ray's store, for what may be in vain.
DECISIONS_KEPT = 4  # Whose ranks may be on their way at one time.
_ELSEWHERE = cast(Decided, None)  # In what is pickled: the decision crosses beside it.


class _Kept(NamedTuple):
    batch: Pickled
    nbytes: int


class StoredBatches:
    """Has batches lie where who asks for them maps them, up to ``STORED_BYTES_MAX`` of them all.

    Each is forgotten, and its bytes given back, once nobody in this process refers to its buffer.
    May be shared between threads, of which one keeps.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}  # By the id of a buffer, while it lives.
        self._decided = lru_cache(DECISIONS_KEPT)(_crossing)

    def keep(self, batch: AssembledBatch) -> AssembledBatch:
        """The batch with its buffer in the store, read-only; where there is no room, as it is."""
        nbytes = batch.buffer.nbytes
        held = sum([kept.nbytes for kept in list(self._kept.values())])
        if held + nbytes > STORED_BYTES_MAX:
            return batch
        try:
            ref = ray.put(batch.buffer)
            buffer = ray.get(ref)
        except RayError:  # The store is full, say: it crosses as one that was not made before.
            return batch
        kept = replace(batch, buffer=buffer)
        header = Pickled.of(replace(kept, decided=_ELSEWHERE))
        self._kept[id(buffer)] = _Kept(header._replace(buffers=[Stored(ref)]), nbytes)
        weakref.finalize(buffer, self._kept.pop, id(buffer), None)
        return kept

    def pickled(self, result: Any) -> Pickled:
        """What crosses for a result. What the ranks of a batch share is pickled once, and stored
        once if it were large for all of them."""
        if isinstance(result, Share):
            decided = self._decided(result.decided, result.dp_size)
            return Pickled.of(replace(result, decided=_ELSEWHERE), decided=decided)
        if isinstance(result, Computed):
            return Pickled.of_result(result.read)
        if not isinstance(result, AssembledBatch):
            return Pickled.of(result)
        decided = self._decided(result.decided, result.others["dp_size"])
        kept = self._kept.get(id(result.buffer))
        if kept is None:
            return Pickled.of(replace(result, decided=_ELSEWHERE), decided=decided)
        return kept.batch._replace(fields={"decided": decided, "groups_ready": result.groups_ready})


def _crossing(decided: Decided, ranks: int) -> Pickled | Stored:
    """What crosses for a decision to each of so many ranks."""
    pickled = Pickled.of(decided)
    if pickled.nbytes * ranks > JOINED_BYTES_MAX:
        with suppress(RayError):  # The store is full, say.
            return Stored(ray.put(decided))
    return pickled
