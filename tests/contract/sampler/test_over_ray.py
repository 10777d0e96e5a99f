"""What is particular to the sampler as a Ray actor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.groups import GroupSpec
from harness.ray_world import RayWorld
from rollstream.sampler import AsyncSamplerClient, Fenced, NotEnoughGroups, UnknownSampler
from rollstream.sampler.serving.client import SamplerClient
from rollstream.streams.errors import TopicMismatch

pytestmark = pytest.mark.broker
WAIT_S = 30.0


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def long_specs(count: int) -> list[GroupSpec]:
    return [
        GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0), prompt=128, output=4096)
        for i in range(count)
    ]


@pytest.mark.proves("F11")
def test_arrays_arrive_as_read_only_views_without_a_copy(world: RayWorld) -> None:
    world.writer().flush(*long_specs(16))
    batch = world.open().next_batch(0, 16, timeout_s=WAIT_S)
    assert len(batch.tokens) == 32 * (128 + 4096)
    for array in (batch.tokens, batch.logprobs, batch.loss_mask, batch.offsets):
        assert not array.flags.owndata
        assert not array.flags.writeable
    # The tokens lie in memory that the actor's process maps too: Ray's object store.
    shared = [m.path for m in psutil.Process().memory_maps(grouped=False) if _holds(m.addr, batch)]
    assert any("/dev/shm" in path or "plasma" in path for path in shared), shared


def _holds(addresses: str, batch: object) -> bool:
    start, end = (int(part, 16) for part in addresses.split("-"))
    at = batch.tokens.__array_interface__["data"][0]  # type: ignore[attr-defined]
    return bool(start <= at < end)


def test_the_same_with_await(world: RayWorld) -> None:
    world.writer().flush(*long_specs(2))

    async def train() -> tuple[int, float]:
        client = await AsyncSamplerClient.attach(world.name, config=world.config)
        async with client as sampler:
            step = await sampler.resume(None)
            batch, again = await asyncio.gather(
                sampler.next_batch(step, 2, timeout_s=WAIT_S),
                sampler.next_batch(step, 2, timeout_s=WAIT_S),
            )
            assert batch.uids == again.uids
            await sampler.ack(batch)
            policy = await sampler.publish_policy(step + 1, policy_version="step-1")
            await sampler.checkpointed(step)
            with pytest.raises(NotEnoughGroups):
                await sampler.next_batch(step + 1, 1, timeout_s=0.05)
            progress = await sampler.progress()
            return policy.step, sum(progress.trained["math"].values())

    assert asyncio.run(train()) == (1, 2)


def test_a_fenced_actor_exits_for_good(world: RayWorld) -> None:
    world.writer().flush(*long_specs(4))
    one, two = world.open(), world.open()
    one.next_batch(0, 2, timeout_s=WAIT_S)
    successor = world.successor()
    for _ in range(2):
        with pytest.raises(Fenced, match="taken over"):
            two.next_batch(1, 2, timeout_s=WAIT_S)
    with pytest.raises(Fenced, match="taken over"):
        one.next_batch(1, 2, timeout_s=WAIT_S)
    successor.next_batch(1, 2, timeout_s=WAIT_S)
    successor.close()


def test_attach_refuses_what_cannot_work(world: RayWorld) -> None:
    with pytest.raises(UnknownSampler, match=r"no \[samplers\.nobody\]"):
        SamplerClient.attach("nobody", config=world.config)
    kafka = world.config.kafka.model_copy(update={"namespace": "elsewhere"})
    config = world.config.model_copy(update={"kafka": kafka})
    with pytest.raises(TopicMismatch, match="topics create"):
        SamplerClient.attach(world.name, config=config)
