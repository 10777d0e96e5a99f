"""Batches that are made before they are asked for: what they hold, and when they are discarded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.decider import Decider
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.deciding.batches import NextBatch, with_rows
from rollstream.sampler.errors import GroupsUnreadable
from rollstream.sampler.serving.ahead import MakesAhead
from rollstream.sampler.serving.payloads import Payloads
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.share import Share
from rollstream.store import LocalBlobs

WAIT_S = 30.0
BATCH = 2
CACHE_BYTES = 1 << 20


class CountingBlobs(PassingBlobs):
    """Counts reads by range."""

    reads = 0

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.reads += 1
        return super().read_ranges(path, spans)


class World:
    """A trainer that asks for batches of two groups."""

    def __init__(self, folder: Path, groups: int, *, dp_size: int = 1) -> None:
        self.store = CountingBlobs(LocalBlobs(folder))
        self.dp_size = dp_size
        self.decider = Decider()
        self.seal("old", groups)
        self.payloads = Payloads(self.store, CACHE_BYTES)
        self.looked = threading.Event()
        self.ahead = MakesAhead(self.payloads, self._likely, lambda batch: batch, SystemClock())

    def _likely(self, command: NextBatch) -> list[Share]:
        self.looked.set()
        return self.decider.likely_next(command)

    def seal(self, name: str, groups: int) -> None:
        specs = [GroupSpec(example_id=f"{name}-{i}", output=3 + i % 5) for i in range(groups)]
        self.decider.seal(*specs, blobs=self.store)

    def ask(self, step: int, rank: int = 0, *, anew: bool = False) -> Batch:
        """The rank's share; ``anew``: as another process would read it."""
        asked = NextBatch(step=step, num_groups=BATCH, dp_rank=rank, dp_size=self.dp_size)
        if anew:
            made = self.decider.do(asked, Payloads(self.store, CACHE_BYTES))
        else:
            made = self.decider.do(asked, self.payloads, self.ahead)
        return with_rows(made).batch(waited_s=0.0, read_group=None)

    def made(self) -> None:
        """Returns once the next batch was made, or could not be."""
        assert self.looked.wait(WAIT_S)
        self.ahead.close()
        deadline = Deadline(WAIT_S)
        while any(one.name == "read-ahead" for one in threading.enumerate()):
            assert not deadline.passed()
            deadline.wait(0.01)


def same(one: Batch, other: Batch) -> bool:
    arrays, others = one.arrays(), other.arrays()
    equal = all(np.array_equal(arrays[name], others[name], equal_nan=True) for name in others)
    texts = [(b.uids, b.example_ids, b.sampled, b.slots, b.groups_ready) for b in (one, other)]
    return equal and arrays.keys() == others.keys() and texts[0] == texts[1]


@pytest.mark.proves("A21")
@pytest.mark.parametrize("dp_size", [1, 2])
def test_a_batch_that_was_made_ahead_is_the_one_that_would_be_read(
    tmp_path: Path, dp_size: int
) -> None:
    world = World(tmp_path, 40, dp_size=dp_size)
    for rank in range(dp_size):
        world.ask(0, rank)
    world.made()
    reads = world.store.reads
    shares = [world.ask(1, rank) for rank in range(dp_size)]
    assert world.store.reads == reads
    assert all(same(share, world.ask(1, rank, anew=True)) for rank, share in enumerate(shares))


def test_a_trainer_that_writes_into_its_batch_changes_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, 40)
    world.ask(0)
    world.made()
    world.ask(1).tokens[:] = 0
    assert same(world.ask(1), world.ask(1, anew=True))


@pytest.mark.proves("A14")
def test_what_was_made_ahead_is_discarded_where_groups_came_that_are_chosen_instead(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 40)
    world.ask(0)
    world.made()
    world.seal("new", 400)
    batch = world.ask(1)
    assert any(example.startswith("new") for example in batch.example_ids)
    assert same(batch, world.ask(1, anew=True))


def test_a_damaged_group_is_not_made_ahead_and_is_told_to_who_asks(tmp_path: Path) -> None:
    world = World(tmp_path, 40)
    world.ask(0)
    (file,) = tmp_path.rglob("*.parquet")
    raw = bytearray(file.read_bytes())
    raw[: len(raw) // 2] = bytes(len(raw) // 2)
    file.write_bytes(raw)
    world.made()
    with pytest.raises(GroupsUnreadable):
        world.ask(1)


def test_nothing_is_made_ahead_where_few_groups_are_ready(tmp_path: Path) -> None:
    world = World(tmp_path, 34)
    world.ask(0)
    world.ahead.changed()
    assert not any(one.name == "read-ahead" for one in threading.enumerate())
