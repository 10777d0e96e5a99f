"""A batch maker that is not deterministic is found when a step is made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from harness.faults import Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from rollstream.sampler import (
    BatchMaker,
    MadeBatch,
    MakerDiffers,
    SamplerApi,
    TrainingBatches,
)
from rollstream.sampler.history import lineage_of_step, report_of
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

WAIT_S = 30.0
pytestmark = pytest.mark.proves("D1", "C3")


class Unsteady(BatchMaker):
    """Its advantages are drawn from what its process did before."""

    def __init__(self, first: int = 0) -> None:
        self._drawn = count(first)

    def create_batch(self, batch_size: int) -> MadeBatch:
        drawn = float(next(self._drawn))
        advantages = [drawn] * len(self.rollouts)
        return MadeBatch.of(self.rollouts, advantages, trained=[*range(len(self.rollouts))])


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with closing(memory_world()) as made:
        made.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(6)))
        yield made


def batches_of(sampler: SamplerApi, first: int) -> TrainingBatches:
    return TrainingBatches(sampler, Unsteady(first), num_groups=2, batch_size=8)


def begun(world: LocalWorld, first: int) -> tuple[SamplerApi, TrainingBatches]:
    """Step 0 of a run is done."""
    sampler = world.open()
    sampler.resume(None)
    batches = batches_of(sampler, first)
    batches.ack(batches.next(0, timeout_s=WAIT_S))
    return sampler, batches


def test_the_same_process_that_makes_a_step_again(world: LocalWorld) -> None:
    _, batches = begun(world, 0)
    batches.next(1, timeout_s=WAIT_S)
    message = r"maker '.*Unsteady' made another batch of step 1 .*self.step.*resume\(0, later="
    with pytest.raises(MakerDiffers, match=message):
        batches.next(1)


def test_another_rank_that_makes_another_batch_is_told_once_with_its_next_step(
    world: LocalWorld,
) -> None:
    _, batches = begun(world, 0)
    batches.ack(batches.next(1, timeout_s=WAIT_S))
    same, other = (batches_of(world.open(), first) for first in (1, 5))
    for rank in (same, other):
        rank.next(1)
    same.next(2)  # It made the same by chance.
    with pytest.raises(MakerDiffers, match="step 1"):
        other.next(2)
    other.next(2)


def test_a_rank_that_was_first_is_told_with_its_ack(world: LocalWorld) -> None:
    sampler, batches = begun(world, 0)
    training = batches.next(1, timeout_s=WAIT_S)
    other = batches_of(world.open(), 5)
    other.next(1)
    other.next(2)
    with pytest.raises(MakerDiffers, match="step 1"):
        batches.ack(training)
    summary = sampler.batch_summary(1)
    assert summary is not None
    assert summary.status == "trained", "what it did is recorded all the same"


@pytest.mark.parametrize("fate", [Fate.DOUBT, Fate.DOUBT_AND_DROP])
def test_where_the_record_of_a_digest_is_lost_the_ack_counts_and_others_are_compared(
    fate: Fate,
) -> None:
    broker = FaultyBroker(MemoryBroker(MemoryLogs()))
    with closing(
        LocalWorld(broker, MemoryBlobs(), config_of("file:///unused", new_name()))
    ) as world:
        world.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(8)))
        sampler, batches = begun(world, 0)
        training = batches.next(1, timeout_s=WAIT_S)
        fates = [fate, Fate.PASS]  # Of the digest, after that of the ack.
        broker.decide = lambda append: fates.pop() if fates else Fate.PASS
        batches.ack(training)
        assert not fates
        summary = sampler.batch_summary(1)
        assert summary is not None
        assert summary.status == "trained"
        others = [batches_of(world.open(), first) for first in (5, 9)]
        for other in others:
            other.next(1)
        if fate is Fate.DOUBT_AND_DROP:
            others[0].next(2, timeout_s=WAIT_S)  # Nothing is recorded but what it made.
        with pytest.raises(MakerDiffers, match="step 1"):
            others[1].next(2, timeout_s=WAIT_S)


def test_a_step_that_is_replayed_after_a_resume_by_another_process(world: LocalWorld) -> None:
    sampler, batches = begun(world, 0)
    sampler.checkpointed(0)
    batches.ack(batches.next(1, timeout_s=WAIT_S))
    world.restart()
    successor = world.open()
    assert successor.resume(0, later="replay") == 1
    again = batches_of(successor, 5)
    training = again.next(1)
    with pytest.raises(MakerDiffers, match="step 1"):
        again.ack(training)
    assert successor.resume(0, later="release") == 1
    anew = batches_of(successor, 5)
    anew.ack(anew.next(1, timeout_s=WAIT_S))


def test_what_is_recorded_of_makers_changes_nothing_else(world: LocalWorld) -> None:
    sampler, _ = begun(world, 0)
    sampler.checkpointed(0)
    sampler.finish()
    assert sampler.stats().outcomes == {"trained": 2}
    origin = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
    assert len(origin.groups) == 2
    told = report_of(world.name, config=world.config, broker=world.broker())
    assert told.carry_lost == {}
