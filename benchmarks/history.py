"""Makes the bytes of two logs, of any length, for far less than it costs to fold them.

Flushes have ids and uids as long as real ones, examples that come once, and as many rollouts as
those of ``benchmarks.folds``. One of ``STEP_FLUSHES`` is encoded. The others are its bytes with
their own ids, uids, digests and offsets. Decisions are copies of those that a sampler makes, each
with its own step, cursor and groups. A batch takes groups at random among the ready ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from benchmarks.folds import BATCH_GROUPS, CHOOSING, FLUSH_ROLLOUTS, GROUP_SIZE, LOG, flush_at
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Now
from rollstream.sampler.decide.trainer.commands import MarkCheckpointed
from rollstream.schemas import codec
from rollstream.schemas.events import BatchServed, Checkpointed, ChosenGroup, Flushed

FLUSH_GROUPS = FLUSH_ROLLOUTS // GROUP_SIZE
STEP_FLUSHES = 64  # So many in a row have one policy and one watermark.
NOW = Now(epoch=0, nonce="bench", now_ts=0)
_ID_BYTES = 16
_OF_GROUP, _OF_EXAMPLE, _OF_ROLLOUT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_BITS_64 = (1 << 64) - 1
_HEX = np.array([[*b"%02x" % byte] for byte in range(256)], np.uint8)


def flush_values(groups: int) -> Iterator[bytes]:
    """Yields the events of the seal log, encoded, of at least so many groups."""
    end = -(-groups // FLUSH_GROUPS)
    for first in range(0, end, STEP_FLUSHES):
        event = _named(first)
        template = np.frombuffer(codec.encode(event), np.uint8)
        places = _places(template.tobytes(), event)
        for number in range(first, min(first + STEP_FLUSHES, end)):
            value = template.copy()
            for at, new in zip(places, _fields(number), strict=True):
                value[at] = new
            yield value.tobytes()


def decision_values(groups: int, left_ready: int) -> Iterator[bytes]:
    """Yields the events of the decision log, encoded: batches that leave so many groups ready, and
    a checkpoint after each flush."""
    served, checkpointed = _decided()
    steps, chooser = count(), random.Random(0)
    ready: list[int] = []
    for number in range(-(-groups // FLUSH_GROUPS)):
        ready += range(number * FLUSH_GROUPS, (number + 1) * FLUSH_GROUPS)
        step = -1
        while len(ready) >= left_ready + BATCH_GROUPS:
            step = next(steps)
            taken = tuple(_chosen(_any_of(ready, chooser)) for _ in range(BATCH_GROUPS))
            cursor = (replace(served.cursor[0], groups_next_offset=number + 1),)
            batch_id = f"trainer-0-{step}"
            yield codec.encode(
                replace(served, step=step, batch_id=batch_id, groups=taken, cursor=cursor)
            )
        if step >= 0:
            yield codec.encode(replace(checkpointed, step=step, batch_id=batch_id))


def _any_of(ready: list[int], chooser: random.Random) -> int:
    at = int(chooser.random() * len(ready))
    ready[at], ready[-1] = ready[-1], ready[at]
    return ready.pop()


def _chosen(group: int) -> ChosenGroup:
    raw = ((group + 1) * _OF_GROUP & _BITS_64).to_bytes(_ID_BYTES, "little")
    return ChosenGroup(*LOG, *divmod(group, FLUSH_GROUPS), raw.hex(), raw)


def _decided() -> tuple[BatchServed, Checkpointed]:
    """What a sampler decides of one flush."""
    state = SamplerState("trainer", CHOOSING, [LOG])
    state.apply_groups(LOG, 0, _named(0))
    [served] = NextBatch(step=0, num_groups=BATCH_GROUPS).decide(state, NOW)
    state.apply(0, 0, served)
    [checkpointed] = MarkCheckpointed(step=0).decide(state, NOW)
    assert isinstance(served, BatchServed)
    assert isinstance(checkpointed, Checkpointed)
    return served, checkpointed


def _named(number: int) -> Flushed:
    """The flush of this number, with ids and uids as long as real ones."""
    event = flush_at(number)
    groups, examples, uids = (_raw(number, *of) for of in _NAMED)
    named = replace(
        event.groups,
        group_ids=tuple(group.hex() for group in groups),
        example_ids=tuple(example.hex() for example in examples),
        digests=tuple(groups),
    )
    segments = replace(event.segments, uids=tuple(uid.hex() for uid in uids))
    return replace(event, groups=named, segments=segments)


_NAMED = ((FLUSH_GROUPS, _OF_GROUP), (FLUSH_GROUPS, _OF_EXAMPLE), (FLUSH_ROLLOUTS, _OF_ROLLOUT))


def _raw(number: int, each: int, spread: int) -> list[bytes]:
    return [bytes(row) for row in _ids(number, each, spread)]


def _ids(number: int, each: int, spread: int) -> NDArray[np.uint8]:
    """Uint8 [each, 16]: different ones for different numbers."""
    ids = np.zeros((each, 2), np.uint64)
    first = np.uint64(number * each + 1)
    ids[:, 0] = (np.arange(each, dtype=np.uint64) + first) * np.uint64(spread)
    return ids.view(np.uint8)


def _fields(number: int) -> list[NDArray[np.uint8]]:
    """What the flush of this number has in the places of ``_places``."""
    groups, examples, uids = (_ids(number, *of) for of in _NAMED)
    offsets = np.arange(number * FLUSH_ROLLOUTS, (number + 1) * FLUSH_ROLLOUTS)
    hexed = [_HEX[ids].reshape(len(ids), -1) for ids in (groups, examples, uids)]
    return [*hexed, groups, offsets.view(np.uint8)]


def _places(data: bytes, event: Flushed) -> list[NDArray[np.intp]]:
    """Where these stand among the bytes of the event: of ids, uids and digests a row each."""
    texts = (
        [one.group_id.encode() for one in event.groups],
        [one.example_id.encode() for one in event.groups],
        [uid.encode() for uid in event.segments.uids],
        [one.digest for one in event.groups],
    )
    rows = [[data.index(text) + np.arange(len(text)) for text in of] for of in texts]
    offsets, places = event.segments.offsets.tobytes(), []
    at = data.find(offsets)
    while at >= 0:
        places.append(at + np.arange(len(offsets)))
        at = data.find(offsets, at + 1)
    return [*map(np.array, rows), np.array(places)]
