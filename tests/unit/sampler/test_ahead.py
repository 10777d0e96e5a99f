"""Batches that are made before they are asked for: what they hold, and when they are discarded."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.decider import Decider
from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from rollstream.runtime.clock import SystemClock
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.share import Share, with_rows
from rollstream.sampler.decide.batches.next_batch import NextBatch, NextStep
from rollstream.sampler.decide.batches.shaped import Carry, NextShapedBatch
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.errors import GroupsUnreadable
from rollstream.sampler.rows import ahead
from rollstream.sampler.rows.ahead import MakesAhead
from rollstream.sampler.rows.payloads import SOON_BATCHES, Payloads
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
        self.decider = Decider(max_policy_lag=-1)
        self.state = threading.Lock()  # As an owner's: who decides changes what is likely.
        self.seal("old", groups)
        self.payloads = Payloads(self.store, CACHE_BYTES)
        self.looking = threading.Condition()
        self.looks = 0  # That were begun.
        self.thread: threading.Thread | None = None  # That looks.
        self.kept = threading.Event()
        self.may_look, self.may_keep = threading.Event(), threading.Event()
        self.may_look.set()
        self.may_keep.set()
        self.looked_after: set[int] = set()  # These steps.
        self.defect: Exception | None = None
        self.buffers: list[weakref.ref[Any]] = []  # Of what was made.
        self.ahead = MakesAhead(self.payloads, self._likely, self._keep, SystemClock())

    def _likely(self, command: NextStep) -> list[Share]:
        assert self.may_look.wait(WAIT_S)
        with self.looking:
            self.thread = threading.current_thread()
            self.looked_after.add(command.step)
            self.looks += 1
            self.looking.notify_all()
        if (defect := self.defect) is not None:
            raise defect
        with self.state:
            return self.decider.likely_next(command)

    def _keep(self, batch: AssembledBatch) -> AssembledBatch:
        buffer = batch.buffer.copy()  # Views refer to it, for it is none.
        self.buffers.append(weakref.ref(buffer))
        self.kept.set()
        assert self.may_keep.wait(WAIT_S)
        return replace(batch, buffer=buffer)

    def was_made(self, batch: Batch) -> bool:
        """Whether it was made before it was asked for."""
        made = [buffer() for buffer in self.buffers]
        return any(np.shares_memory(batch.tokens, one) for one in made if one is not None)

    def look_again(self) -> None:
        """Returns once all was made that is likely now, or could not be."""
        # The first look that begins from now on may be one after an earlier step; the second is
        # not, and what it led to is over when the third begins.
        for _ in range(3):
            with self.looking:
                before = self.looks
                self.ahead.changed()
                assert self.looking.wait_for(lambda: self.looks > before, WAIT_S)  # noqa: B023

    def seal(self, name: str, groups: int, weight_step: int = 1) -> None:
        specs = [
            GroupSpec(example_id=f"{name}-{i}", output=3 + i % 5, weight_step=weight_step)
            for i in range(groups)
        ]
        with self.state:
            self.decider.seal(*specs, blobs=self.store)

    def ask(self, step: int, rank: int = 0, *, anew: bool = False) -> Batch:
        """The rank's share; ``anew``: as another process would read it."""
        asked = NextBatch(step=step, num_groups=BATCH, dp_rank=rank, dp_size=self.dp_size)
        with self.state:
            if anew:
                made = self.decider.do(asked, Payloads(self.store, CACHE_BYTES))
            else:
                made = self.decider.do(asked, self.payloads, self.ahead)
        return with_rows(made).batch(waited_s=0.0, read_group=None)

    def shape(self, step: int, carried: Carry = (), *, anew: bool = False) -> Batch:
        """A shaped batch of two new groups and these."""
        asked = NextShapedBatch(
            step=step, settings="{}", num_groups=BATCH, min_groups=BATCH, carried=carried
        )
        with self.state:
            if anew:
                made = self.decider.do(asked, Payloads(self.store, CACHE_BYTES))
            else:
                made = self.decider.do(asked, self.payloads, self.ahead)
        return with_rows(made).batch(waited_s=0.0, read_group=None)

    def resume(self, saved: int) -> None:
        """What was served beyond it is released."""
        with self.state:
            self.decider.do(Resume(checkpointed_step=saved, later="release"))

    def made(self) -> None:
        """Returns once the next batch was made, or could not be; no other is."""
        self.look_again()
        self.end()

    def end(self) -> None:
        """Nothing is made any more."""
        self.ahead.close()
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


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
    world.seal("new", 400, weight_step=0)
    batch = world.ask(1)
    assert any(example.startswith("new") for example in batch.example_ids)
    assert same(batch, world.ask(1, anew=True))


def test_a_damaged_group_is_not_made_ahead_and_is_told_to_who_asks(tmp_path: Path) -> None:
    world = World(tmp_path, 40)
    world.may_look.clear()
    world.ask(0)
    (file,) = tmp_path.rglob("*.parquet")
    raw = bytearray(file.read_bytes())
    raw[: len(raw) // 2] = bytes(len(raw) // 2)
    file.write_bytes(raw)
    world.may_look.set()
    world.made()
    with pytest.raises(GroupsUnreadable):
        world.ask(1)


def test_nothing_is_made_ahead_where_few_groups_are_ready(tmp_path: Path) -> None:
    world = World(tmp_path, 34)
    before = {*threading.enumerate()}
    world.ask(0)
    world.ahead.changed()
    others = {*threading.enumerate()} - before
    assert not any(one.name == "read-ahead" for one in others)


def test_the_next_batch_is_made_anew_however_often_groups_came_that_are_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "AGAIN_MAX", 3)
    world = World(tmp_path, 40)
    world.ask(0)
    for _ in range(3):
        world.look_again()
    world.seal("new", 400, weight_step=0)
    world.made()
    assert world.was_made(world.ask(1))


def test_a_defect_is_logged_and_the_next_batches_are_made_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    world = World(tmp_path, 40)
    world.defect = LookupError("a defect")
    world.ask(0)
    world.look_again()
    world.defect = None
    world.ask(1)
    world.made()
    assert world.was_made(world.ask(2))
    assert caplog.text.count("no batch could be made before it was asked for") == 1


@pytest.mark.proves("A21")
def test_a_rank_that_comes_when_the_first_has_its_next_share_gets_what_was_made_for_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 60, dp_size=2)
    for rank in range(2):
        world.ask(0, rank)
    world.look_again()
    first = world.ask(1, 0)
    world.look_again()
    second = world.ask(1, 1)
    assert world.was_made(first)
    assert world.was_made(second)
    assert same(second, world.ask(1, 1, anew=True))
    held = world.payloads.cached_bytes
    for step in range(2, 6):
        world.ask(step, 0)
        world.look_again()
    assert world.payloads.cached_bytes < 3 * held, "what nobody asks for is not held for ever"
    world.made()


def test_after_a_trainer_went_back_batches_are_made_as_before_and_none_of_later_steps_is_held(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 100)
    for step in range(4):
        world.ask(step)
    world.look_again()
    world.seal("new", 400, weight_step=0)
    world.ask(4)  # Of groups that were not expected, so that the next are not tried.
    world.resume(0)
    world.ask(1)
    world.look_again()
    held = [buffer() for buffer in world.buffers]
    world.made()
    assert world.was_made(world.ask(2))
    assert sum(one is not None for one in held) == 1


def test_where_other_groups_are_chosen_than_were_expected_the_next_batches_are_not_tried(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 200)
    world.may_keep.clear()
    world.ask(0)
    assert world.kept.wait(WAIT_S)
    world.seal("new", 400, weight_step=0)
    world.ask(1)
    world.may_keep.set()
    for step in range(2, SOON_BATCHES + 1):
        world.ask(step)
    world.made()
    assert world.looked_after <= {0, SOON_BATCHES}


@pytest.mark.proves("D2")
def test_of_a_shaped_step_nothing_is_read_that_was_likely_or_that_the_step_before_had(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 400)
    carried: Carry = ()
    for step in range(4):
        reads = world.store.reads
        batch = world.shape(step, carried)
        assert batch.carried_groups == len(carried)
        if step:
            assert world.store.reads == reads
        assert same(batch, world.shape(step, carried, anew=True))
        carried = tuple((one, (True, False)) for one in batch.sampled.group_ids[-4:])
        world.look_again()
    held = world.payloads.cached_bytes
    for step in range(4, 9):
        world.shape(step)
        world.look_again()
    assert world.payloads.cached_bytes <= held, "what no step carries any more is not held"
    world.made()


@pytest.mark.proves("D2")
def test_of_a_shaped_step_other_groups_are_chosen_than_were_expected(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    first = world.shape(0)
    world.look_again()
    world.seal("new", 400, weight_step=0)
    carried: Carry = ((first.sampled.group_ids[0], (True, True)),)
    batch = world.shape(1, carried)
    assert any(example.startswith("new") for example in batch.example_ids)
    assert same(batch, world.shape(1, carried, anew=True))
    world.end()
