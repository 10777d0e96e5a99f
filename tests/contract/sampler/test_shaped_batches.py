"""Batches that carry groups of the step before, on the twin, on Kafka, and over Ray."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import numpy as np
import pytest

from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from harness.ray_world import RayWorld
from harness.sampler_worlds import WITHOUT_RAY, LocalWorld, SamplerWorld
from rollstream.sampler import (
    AsyncSamplerClient,
    Batch,
    GroupsUnreadable,
    RequestDiffers,
    SamplerApi,
    SamplerView,
    UnknownStep,
)
from rollstream.sampler.batch.carried import CarriedGroup, Shaping
from rollstream.sampler.history import check_from_files, lineage_of_step, replay_step
from rollstream.sampler.history.recorded import RecordedInFiles
from rollstream.store.layout import batch_path

pytestmark = pytest.mark.proves("D2", "I6")
WAIT_S = 30.0
SETTINGS = '{"maker":"a","version":1}'


def specs(count: int, first: int = 0, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{first + i}", **fields) for i in range(count)]


def shaped(
    sampler: SamplerApi,
    step: int,
    *carried: tuple[str, list[bool]],
    num_groups: int = 2,
    recorded: bool = False,
    **asked: Any,
) -> Batch:
    named = tuple(CarriedGroup(group_id, np.array(wanted)) for group_id, wanted in carried)
    shaping = Shaping(
        settings=SETTINGS, num_groups=num_groups, min_groups=0, carried=None if recorded else named
    )
    return sampler.next_shaped_batch(step, shaping, timeout_s=WAIT_S, **asked)


def everything(batch: Batch) -> tuple[object, ...]:
    arrays = {name: array.tobytes() for name, array in batch.arrays().items()}
    return batch.batch_id, batch.digest, batch.uids, batch.sampled, batch.carried_groups, arrays


@pytest.fixture
def two_steps(world: SamplerWorld) -> tuple[SamplerApi, Batch, Batch]:
    world.writer().flush(*specs(3, extras=(every_extra(),) * 2))
    sampler = world.open()
    sampler.resume(None)
    first = shaped(sampler, 0)
    other, group = first.sampled.group_ids
    return sampler, first, shaped(sampler, 1, (group, [False, True]), (other, [True, True]))


@WITHOUT_RAY
def test_carried_groups_come_last_and_whole_with_what_was_used_marked(
    two_steps: tuple[SamplerApi, Batch, Batch],
) -> None:
    _, first, second = two_steps
    assert (first.carried_groups, first.used) == (0, None)
    assert (second.carried_groups, second.num_groups, second.num_trajectories) == (2, 3, 6)
    assert second.used is not None
    assert second.used.tolist() == [False, False, True, False, False, False]
    assert second.sampled.group_ids[1:] == first.sampled.group_ids[::-1]
    assert second.uids[2:] == first.uids[2:] + first.uids[:2]
    ends = first.offsets.tolist()
    moved = np.concatenate([first.tokens[ends[2] :], first.tokens[: ends[2]]])
    assert second.tokens[second.offsets[2] :].tolist() == moved.tolist()
    assert [record.rollout_uid for record in second.records(1)] == [*second.uids[2:4]]
    assert second.metrics()["groups"] == 3


def test_the_same_bytes_come_again_after_a_kill_from_another_client_and_from_the_record(
    world: SamplerWorld, two_steps: tuple[SamplerApi, Batch, Batch]
) -> None:
    sampler, first, second = two_steps
    sampler.ack(first)
    sampler.checkpointed(0)
    world.restart()
    world.writer().flush(*specs(2, 10))
    successor = world.open()
    seen = successor.recorded_batch(1)
    assert seen is not None
    assert everything(seen) == everything(second)
    assert successor.recorded_batch(2) is None
    assert successor.recorded_batch(-1) is None
    assert successor.resume(0) == 1
    for again in (shaped(successor, 1, recorded=True), world.open().recorded_batch(1)):
        assert again is not None
        assert everything(again) == everything(second)
    third = shaped(successor, 2, (second.sampled.group_ids[2], [True, False]))
    assert third.sampled.group_ids[-1] == first.sampled.group_ids[0]


def test_every_rank_gets_all_rows_with_the_columns_it_asks_for_whoever_reads_them(
    world: SamplerWorld, two_steps: tuple[SamplerApi, Batch, Batch]
) -> None:
    _, first, second = two_steps
    carried = [
        (first.sampled.group_ids[1], [False, True]),
        (first.sampled.group_ids[0], [True] * 2),
    ]
    own = shaped(world.open(), 1, *carried, columns=EVERY_COLUMN, payloads="rank")
    other = shaped(world.open(), 1, *carried, columns=EVERY_COLUMN)
    assert everything(own) == everything(other)
    assert own.used is not None
    assert own.used.tolist() == second.used.tolist()  # type: ignore[union-attr]
    assert own.tokens.tobytes() == second.tokens.tobytes()


@WITHOUT_RAY
def test_another_carry_or_other_settings_are_refused(
    two_steps: tuple[SamplerApi, Batch, Batch],
) -> None:
    sampler, first, _ = two_steps
    with pytest.raises(RequestDiffers, match="was 01 and is now 10"):
        shaped(
            sampler,
            1,
            (first.sampled.group_ids[1], [True, False]),
            (first.sampled.group_ids[0], [True, True]),
        )
    with pytest.raises(RequestDiffers, match="served for"):
        sampler.next_batch(1, 2, timeout_s=WAIT_S)
    with pytest.raises(UnknownStep, match="was not served"):
        shaped(sampler, 2, recorded=True)


def test_an_empty_batch_is_a_batch(world: SamplerWorld) -> None:
    sampler = world.open()
    sampler.resume(None)
    empty = shaped(sampler, 0)
    assert (len(empty), empty.num_groups, empty.num_trajectories) == (0, 0, 0)
    assert empty.metrics()["tokens"] == 0
    assert pickle.loads(pickle.dumps(empty)).digest == empty.digest
    sampler.flush()
    written = json.loads(world.store.read(batch_path(world.name, 1, 0)))
    assert written["groups"] == []
    found = check_from_files(world.name, 0, config=world.config, store=world.store)
    assert (found.same, found.found) == (True, empty.digest)
    (again,) = replay_step(world.name, 0, config=world.config, broker=world.broker())
    assert again.same
    sampler.ack(empty)
    world.writer().flush(*specs(1))
    sampler.flush()
    assert shaped(sampler, 1).num_groups == 1
    sampler.checkpointed(1)
    world.restart()
    assert world.open().recorded_batch(0) is not None
    assert world.open().progress().final_step == 1


@WITHOUT_RAY
def test_decisions_are_made_again_and_files_hold_what_was_carried(
    world: SamplerWorld, two_steps: tuple[SamplerApi, Batch, Batch]
) -> None:
    sampler, first, second = two_steps
    sampler.flush()
    for step, batch in enumerate((first, second)):
        (again,) = replay_step(world.name, step, config=world.config, broker=world.broker())
        assert (again.same, again.digest) == (True, batch.digest)
        found = check_from_files(world.name, step, config=world.config, store=world.store)
        assert (found.same, found.found) == (True, batch.digest)
    lineage = lineage_of_step(world.name, 1, config=world.config, broker=world.broker())
    carried = [(one.use.carried, one.use.row_mask) for one in lineage.groups]
    assert carried == [(False, None), (True, (False, True)), (True, (True, True))]
    uses = RecordedInFiles(world.store).of_step(world.name, 1, None)
    assert [(one.carried, one.row_mask) for one in uses] == carried
    assert [one.group for one in uses] == [one.use.group for one in lineage.groups]
    kept = lineage.groups[1].use
    assert (kept.of_rows([0]), kept.of_rows([0, 1]), kept.of_rows([1])) == (None, kept, kept)


@WITHOUT_RAY
def test_a_carried_group_that_cannot_be_read_is_replaced_by_no_other(
    world: SamplerWorld,
) -> None:
    writer = world.writer()
    for number in range(3):
        writer.flush(*specs(1, number))
    sampler = world.open()
    first = shaped(sampler, 0, num_groups=1)
    (group,) = first.sampled.group_ids
    lineage = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
    path = lineage.groups[0].origin.path
    whole = world.store.read(path)
    world.store.delete(path)
    world.restart()
    sampler = world.open()
    with pytest.raises(GroupsUnreadable, match="carried from the step before"):
        shaped(sampler, 1, (group, [True, True]), num_groups=1)
    with pytest.raises(GroupsUnreadable):
        sampler.recorded_batch(1)
    world.store.create(path, whole)
    assert shaped(sampler, 1, recorded=True, num_groups=1).sampled.group_ids[1:] == (group,)


def test_looking_at_what_is_recorded_claims_nothing(
    world: SamplerWorld, two_steps: tuple[SamplerApi, Batch, Batch]
) -> None:
    sampler, _, second = two_steps
    if isinstance(world, LocalWorld) and not isinstance(world, RayWorld):
        other = world.successor()
        seen = other.recorded_batch(1, columns=("metadata",))
        other.close()
        assert seen is not None
        assert (seen.digest, seen.metadata) == (second.digest, ({"temperature": 0.8},) * 6)
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        assert everything(view.batch(1)) == everything(second)
    sampler.ack(second)  # Nobody took over.


@pytest.mark.broker
def test_an_event_loop_awaits_them(kafka_bootstrap: str, tmp_path: Any) -> None:
    world = RayWorld(kafka_bootstrap, tmp_path)
    world.writer().flush(*specs(3))

    async def run() -> tuple[Batch, Batch | None, Batch | None]:
        async with await AsyncSamplerClient.attach(world.name, config=world.config) as sampler:
            shaping = Shaping(settings=SETTINGS, num_groups=2, min_groups=2, carried=())
            batches = await asyncio.gather(
                *(sampler.next_shaped_batch(0, shaping, timeout_s=WAIT_S) for _ in range(3))
            )
            assert len({batch.digest for batch in batches}) == 1
            found = await sampler.recorded_batch(0), await sampler.recorded_batch(1)
            return batches[0], *found

    try:
        served, recorded, missing = asyncio.run(run())
        assert missing is None
        assert recorded is not None
        assert everything(recorded) == everything(served)
    finally:
        world.close()


@WITHOUT_RAY
@pytest.mark.proves("F2", "F5")
def test_steps_that_the_ratio_made_smaller_are_recomputed_as_small(world: SamplerWorld) -> None:
    world.configure(
        samples_per_insert=1.0, error_buffer=(1.0, 4.0), max_policy_lag=1, min_mean_reward=0.0
    )
    writer = world.writer()
    sampler = world.open()
    sampler.resume(None)
    sizes = []
    for step in range(5):
        if step == 3:
            sampler.resume(2)
        poor = GroupSpec(example_id="poor", rewards=(-1.0, 0.0), weight_step=step)
        writer.flush(*specs(2 + step % 2, weight_step=step), poor)
        sampler.flush()  # A shaped step goes on without groups that it does not know yet.
        sizes.append(shaped(sampler, step, num_groups=2 + step).num_groups)
        (again,) = replay_step(world.name, step, config=world.config, broker=world.broker())
        assert again.same, (step, again)
    assert sizes[0] == 1
    assert any(size < 2 + step for step, size in enumerate(sizes[1:], 1)), sizes
