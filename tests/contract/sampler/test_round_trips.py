"""How often a trainer asks its sampler: each step of a maker or of ready packs is one command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, SecondClient
from harness.training_batches import WAIT_S, made_by, seal
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ReadyPacks, SamplerApi
from rollstream.sampler.decide.command import Command, R, Reply

pytestmark = pytest.mark.proves("D1", "C1")
STEPS = 5
STEP = ["NextShapedBatch"]
BEGINS = [*STEP, "AskRecorded", *STEP]
"""Of a step after one that another process made."""


class CountingClient(SecondClient):
    """Another trainer's client, which notes its commands."""

    def __init__(self, sampler: SamplerApi) -> None:
        super().__init__(sampler)
        self.sent = list[str]()

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        self.sent.append(type(command).__name__)
        return super()._execute(command, wait_s)

    def since(self) -> list[str]:
        """What was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent


@dataclass(frozen=True)
class Steps:
    """What makes steps, and acks them."""

    client: CountingClient
    next: Callable[..., Any]
    ack: Callable[[Any], None]


def of_a_maker(world: SamplerWorld) -> Steps:
    client = CountingClient(world.open())
    batches = made_by(client)
    return Steps(client, batches.next, batches.ack)


def of_ready_packs(world: SamplerWorld) -> Steps:
    client = CountingClient(world.open())
    config = {"schedule": {"b_ratio": 0.5}, "pack_length": 10, "num_groups": 2}
    ready = ReadyPacks(client, ReadyPacksConfig.model_validate(config), dp_rank=0, dp_size=1)
    return Steps(client, ready.next_step, ready.ack)


@WITHOUT_RAY
@pytest.mark.parametrize("made", [of_a_maker, of_ready_packs])
def test_a_step_is_one_command_on_each_rank_and_its_ack_another(
    world: SamplerWorld, made: Callable[[SamplerWorld], Steps]
) -> None:
    seal(world, 2 * STEPS)
    first, second = made(world), made(world)
    first.client.resume(None)
    assert first.client.since() == ["Resume"]
    for step in range(STEPS):
        decided = first.next(step, timeout_s=WAIT_S)
        second.next(step, timeout_s=WAIT_S)
        assert (first.client.since(), second.client.since()) == (
            ["NextShapedBatch"],
            ["NextShapedBatch"],
        )
        first.ack(decided)
        assert first.client.since() == ["Ack"]


@WITHOUT_RAY
@pytest.mark.parametrize("made", [of_a_maker, of_ready_packs])
def test_who_comes_new_looks_once_at_the_step_before(
    world: SamplerWorld, made: Callable[[SamplerWorld], Steps]
) -> None:
    seal(world, 2 * STEPS)
    before = made(world)
    before.client.resume(None)
    for step in range(2):
        before.ack(before.next(step, timeout_s=WAIT_S))
    before.client.checkpointed(1)
    world.restart()
    after = made(world)
    assert after.client.resume(1) == 2
    after.client.since()
    after.next(1, timeout_s=WAIT_S)
    assert after.client.since() == STEP, "it was served"
    again = made(world)
    for sent in (BEGINS, STEP):
        step = 2 + (sent != BEGINS)
        again.next(step, timeout_s=WAIT_S)
        assert again.client.since() == sent


@WITHOUT_RAY
def test_a_step_before_that_was_replaced_is_looked_at_again(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n}", rewards=(0.0, 1.0)) for n in range(8)))
    steps = of_a_maker(world)
    steps.client.resume(None)
    first = steps.next(0, timeout_s=WAIT_S)
    world.open().replace(first.batch, [0], "bad", timeout_s=WAIT_S)
    steps.client.since()
    second = steps.next(1, timeout_s=WAIT_S)
    assert steps.client.since() == BEGINS
    assert first.batch.sampled.group_ids[0] not in second.batch.sampled.group_ids
