"""Batches in Ray's object store: how many bytes of them there are."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray

from harness.batches import batch_event
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.actor import stored
from rollstream.sampler.actor.pickled import Pickled, Stored, crossing, opened
from rollstream.sampler.actor.stored import StoredBatches
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.command import Computed, Reply

BYTES = 1_000


def made() -> AssembledBatch:
    decided = Decided.of(ServedBatch.of(batch_event(0), 0))
    return AssembledBatch(np.zeros(BYTES, np.uint8), {}, {"dp_size": 1}, decided, 0)


def is_stored(pickled: Pickled) -> bool:
    return bool(pickled.buffers) and isinstance(pickled.buffers[0], Stored)


class Buffer(np.ndarray[Any, Any]):
    """As Ray hands it out: a view of its store."""


def test_batches_are_stored_up_to_a_bound_of_them_all_and_again_once_some_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "STORED_BYTES_MAX", 2 * BYTES + 1)
    monkeypatch.setattr(ray, "put", lambda buffer: buffer)
    monkeypatch.setattr(ray, "get", lambda ref: ref.view(Buffer))
    batches = StoredBatches()
    one, two, three = (batches.keep(made()) for _ in range(3))
    assert [is_stored(batches.pickled(each)) for each in (one, two, three)] == [True, True, False]
    gone = weakref.ref(two.buffer)
    del two
    assert gone() is None
    assert is_stored(batches.pickled(batches.keep(made())))


def test_what_all_ranks_get_is_stored_once_if_it_were_large_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put: list[Decided] = []
    monkeypatch.setattr(ray, "put", lambda decided: put.append(decided) or len(put))  # type: ignore[func-returns-value]
    batches, share = StoredBatches(), share_of(dp_size=2)
    assert isinstance(batches.pickled(share).fields["decided"], Pickled)
    many = share_of(dp_size=1_000)
    ranks = [batches.pickled(replace(many, dp_rank=rank)) for rank in range(3)]
    assert put == [many.decided]
    assert {rank.fields["decided"] for rank in ranks} == {Stored(1)}
    assert opened(Reply(3, ranks[1]), [many.decided]).value.dp_rank == 1


def share_of(dp_size: int) -> Share:
    decided = Decided.of(ServedBatch.of(batch_event(0), 0))
    return Share(decided, [], {}, {}, (), 0, dp_size, 0)


def test_a_result_that_its_caller_makes_crosses_in_pieces_as_what_it_is_made_of() -> None:
    names = [f"example-{number}" for number in range(50_000)]
    pickled = StoredBatches().pickled(Computed("key", partial(dict.fromkeys, names, 7)))
    assert max(piece.nbytes for piece in pickled.buffers if not isinstance(piece, Stored)) < 70_000
    assert len(pickled.header) < 70_000
    assert opened(crossing(Reply(3, pickled))) == Reply(3, dict.fromkeys(names, 7))
    few = StoredBatches().pickled(Computed("key", os.getpid))
    assert opened(crossing(Reply(3, few))) == Reply(3, os.getpid())
