"""Steps of a maker, ready packs and a pool that are awaited: what they are for who waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.ray_world import RayWorld
from harness.training_batches import WAIT_S, everything, made_by, seal
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    AsyncReadyPacks,
    AsyncSamplerClient,
    AsyncTrainingBatches,
    AsyncTrajectoryPool,
    ChannelB,
    Fenced,
    GrpoBatchMaker,
    InvalidRequest,
    MadeBatch,
    MakerDiffers,
    ReadyPacks,
    TrainingBatch,
    TrainingBatches,
)

pytestmark = [pytest.mark.broker, pytest.mark.proves("D1", "C1", "B1")]
STEPS = 4
T = TypeVar("T")


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def run(world: RayWorld, train: Callable[[AsyncSamplerClient], Awaitable[T]]) -> T:
    """What a trainer returns that awaits its sampler."""

    async def trained() -> T:
        async with await AsyncSamplerClient.attach(world.name, config=world.config) as sampler:
            return await train(sampler)

    return asyncio.run(trained())


async def batches_of(sampler: AsyncSamplerClient, **asked: Any) -> AsyncTrainingBatches:
    """As ``made_by``."""
    maker = asked.pop("maker", None) or GrpoBatchMaker(seed=3)
    return await AsyncTrainingBatches.of(sampler, maker, num_groups=2, batch_size=3, **asked)


def test_steps_that_are_awaited_are_those_of_who_waits_also_asked_for_ahead(
    world: RayWorld,
) -> None:
    seal(world, 2 * STEPS)

    async def train(sampler: AsyncSamplerClient) -> list[TrainingBatch]:
        batches = await batches_of(sampler)
        step = await sampler.resume(None)
        found = [await batches.next(step, timeout_s=WAIT_S)]
        for ahead in range(1, STEPS):
            after, _ = await asyncio.gather(
                batches.next(ahead, timeout_s=WAIT_S), batches.ack(found[-1])
            )
            found.append(after)
        await batches.ack(found[-1])
        await sampler.checkpointed(STEPS - 1)
        stored = await batches.create_and_store_batch(step=STEPS - 1)
        assert stored.startswith(found[-1].batch.batch_id)
        return found

    found = run(world, train)
    again = made_by(world.open())
    assert [everything(again.next(step)) for step in range(STEPS)] == [*map(everything, found)]
    assert all(one.batch.carried_groups for one in found[1:])


class HeldMaker(GrpoBatchMaker):
    """Makes nothing before it is let."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.begun, self.let = threading.Event(), threading.Event()

    def create_batch(self, batch_size: int) -> MadeBatch:
        self.begun.set()
        assert self.let.wait(WAIT_S)
        return super().create_batch(batch_size)


def test_a_maker_holds_up_no_other_task_and_a_cancelled_step_may_be_asked_for_again(
    world: RayWorld,
) -> None:
    seal(world, 4)
    maker = HeldMaker()

    async def train(sampler: AsyncSamplerClient) -> TrainingBatch:
        batches = await batches_of(sampler, maker=maker)
        await sampler.resume(None)
        cancelled = asyncio.create_task(batches.next(0, timeout_s=WAIT_S))
        assert await asyncio.to_thread(maker.begun.wait, WAIT_S)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        again = asyncio.create_task(batches.next(0, timeout_s=WAIT_S))
        assert (await sampler.stats()).next_step == 1
        maker.let.set()  # Both threads go on.
        return await again

    found = run(world, train)
    assert everything(made_by(world.open()).next(0)) == everything(found)


def test_whoever_made_another_batch_is_told_with_the_next_step(world: RayWorld) -> None:
    class Unlike(GrpoBatchMaker):
        def create_batch(self, batch_size: int) -> MadeBatch:
            return MadeBatch.of(self.rollouts, np.zeros(len(self.rollouts)), trained=[])

    seal(world, 8)
    trainer = made_by(world.open())
    trainer.ack(trainer.next(0, timeout_s=WAIT_S))

    async def follow(sampler: AsyncSamplerClient) -> None:
        batches = await batches_of(sampler, maker=Unlike(seed=3))
        await batches.next(0)
        with pytest.raises(MakerDiffers, match="step 0"):
            await batches.next(1, timeout_s=WAIT_S)

    run(world, follow)


def test_ready_packs_that_are_awaited_are_those_of_who_waits(world: RayWorld) -> None:
    seal(world, 6)
    section = {"schedule": {"b_ratio": 0.5}, "pack_length": 10, "num_groups": 3}
    config = ReadyPacksConfig.model_validate(section)

    async def train(sampler: AsyncSamplerClient) -> list[Any]:
        await sampler.resume(None)
        ready = await AsyncReadyPacks.of(sampler, config, dp_rank=0, dp_size=1)
        found = []
        for step in range(STEPS):
            found.append(await ready.next_step(step, timeout_s=WAIT_S))
            await ready.ack(found[-1])
        return found

    found = run(world, train)
    ready = ReadyPacks(world.open(), config, dp_rank=0, dp_size=1)
    again = [ready.next_step(step) for step in range(STEPS)]
    assert any(isinstance(one, ChannelB) for one in found)
    assert [(type(one), one.batch.digest, one.metrics) for one in again] == [
        (type(one), one.batch.digest, one.metrics) for one in found
    ]


def test_a_pool_is_awaited_and_has_one_reader(world: RayWorld) -> None:
    world.configure(order="ready", max_policy_lag=-1, off_branch="keep")
    world.writer().flush(*(GroupSpec(example_id=name) for name in "abc"))

    async def read(sampler: AsyncSamplerClient) -> list[str]:
        pool = await AsyncTrajectoryPool.of(sampler)
        found = [await pool.fetch_batch(timeout_s=WAIT_S) for _ in range(2)]
        other = await AsyncTrajectoryPool.of(sampler)
        found.append(await other.fetch_batch())
        with pytest.raises(Fenced, match="A pool has one reader"):
            await pool.fetch_batch()
        found += [await other.fetch_batch(timeout_s=WAIT_S), await other.fetch_batch()]
        return ["" if one is None else one.batch.example_ids[0] for one in found]

    assert run(world, read) == ["a", "b", "b", "c", ""]


def test_what_no_step_could_have_is_refused_at_once(world: RayWorld) -> None:
    async def refused(sampler: AsyncSamplerClient) -> None:
        with pytest.raises(InvalidRequest, match="physics"):
            await batches_of(sampler, mix={"physics": 1.0})
        with pytest.raises(InvalidRequest, match="batch_size is 0"):
            await AsyncTrainingBatches.of(sampler, GrpoBatchMaker(), num_groups=1, batch_size=0)
        with pytest.raises(InvalidRequest, match=r"order is .* and a pool needs 'ready'"):
            await AsyncTrajectoryPool.of(sampler)
        with pytest.raises(InvalidRequest, match=r"await AsyncSamplerClient\.attach"):
            await AsyncTrajectoryPool.of(world.open())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="give a sampler"):
            TrainingBatches(sampler, GrpoBatchMaker(), num_groups=1, batch_size=1)  # type: ignore[arg-type]

    run(world, refused)
