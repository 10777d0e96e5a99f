"""Steps whose batches are final and no longer held: they are read from the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, world_of
from rollstream.sampler import Batch, RequestDiffers, SamplerView, UnknownStep
from rollstream.sampler.batch.carried import CarriedGroup, Shaping

WAIT_S = 30.0
STEPS = 4


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalWorld]:
    """Not over Ray: its actor would hold all of these."""
    monkeypatch.setattr("rollstream.folds.state.FINAL_BATCHES_KEPT", 1)
    made = world_of(request, tmp_path)
    yield made
    made.close()


def rows(batch: Batch) -> tuple[list[str], list[int], list[float]]:
    return [*batch.uids], batch.tokens.tolist(), batch.logprobs.tolist()


def uids_of(batch: Batch, group: int) -> list[str]:
    """As the store has them."""
    return [record.rollout_uid for record in batch.records(group)]


@pytest.mark.proves("F3")
def test_steps_that_are_final_and_no_longer_held_are_replayed_from_the_record(
    world: LocalWorld,
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4 * STEPS + 1)))
    sampler = world.open()
    sampler.resume(None)
    served = []
    for step in range(STEPS):
        batch = sampler.next_batch(step, 4, timeout_s=WAIT_S)
        if step == 1:
            batch = sampler.replace(batch, [2], "loaded twice", timeout_s=WAIT_S)
        served.append((batch.digest, rows(batch), uids_of(batch, 2)))
        sampler.ack(batch)
        sampler.checkpointed(step)
    world.restart()
    successor = world.open()
    assert successor.resume(None, later="replay") == 0
    for step in range(STEPS):
        shares = [
            successor.next_batch(step, 4, timeout_s=WAIT_S, dp_rank=rank, dp_size=3)
            for rank in range(3)
        ]
        assert {share.digest for share in shares} == {served[step][0]}
        again = successor.next_batch(step, 4, timeout_s=WAIT_S)
        assert sorted(again.uids) == sorted(uid for share in shares for uid in share.uids)
        assert (again.digest, rows(again), uids_of(again, 2)) == served[step]
        successor.ack(again)
        successor.checkpointed(step)
    assert successor.stats().next_step == STEPS
    with pytest.raises(RequestDiffers, match="num_groups"):
        successor.next_batch(0, 3, timeout_s=WAIT_S)
    with pytest.raises(RequestDiffers, match="step 0 is final"):
        successor.replace(0, [0], "too late", timeout_s=WAIT_S)


def test_a_step_that_is_no_longer_held_and_whose_file_is_gone_is_an_error_with_a_remedy(
    world: LocalWorld,
) -> None:
    writer = world.writer()
    for step in range(2):
        writer.flush(GroupSpec(example_id=f"ex-{step}"))
    sampler = world.open()
    sampler.resume(None)
    for step in range(2):
        sampler.next_batch(step, 1, timeout_s=WAIT_S)
        sampler.checkpointed(step)
    world.restart()
    for path in [blob.path for blob in world.store.list("groups/")]:
        world.store.delete(path)
    successor = world.open()
    assert successor.resume(None, later="replay") == 0
    with pytest.raises(UnknownStep, match=r"final and cannot be read again.*later='release'"):
        successor.next_batch(0, 1, timeout_s=WAIT_S)


def test_a_view_reads_a_step_that_is_no_longer_held(world: LocalWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(STEPS)))
    sampler = world.open()
    sampler.resume(None)
    first = sampler.next_batch(0, 1, timeout_s=WAIT_S)
    sampler.checkpointed(0)
    for step in range(1, STEPS):
        sampler.next_batch(step, 1, timeout_s=WAIT_S)
        sampler.checkpointed(step)
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        assert 0 not in [summary.step for summary in view.batches(last=100)]
        assert rows(view.batch(0)) == rows(first)
        with pytest.raises(UnknownStep, match=f"next one to be served is {STEPS}"):
            view.batch(STEPS)


def test_what_a_release_left_is_not_read_where_the_step_was_decided_anew(
    world: LocalWorld,
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(8)))
    sampler = world.open()
    sampler.resume(None)
    left = [sampler.next_batch(step, 1, timeout_s=WAIT_S) for step in range(3)]
    assert sampler.resume(0, later="release") == 1
    assert sampler.resume(0, later="replay") == 1
    taken = [sampler.next_batch(step, 2, timeout_s=WAIT_S) for step in range(1, 4)]
    sampler.checkpointed(3)
    assert sampler.resume(None, later="replay") == 0
    assert rows(sampler.next_batch(0, 1, timeout_s=WAIT_S)) == rows(left[0])
    for step, batch in enumerate(taken, 1):
        again = sampler.next_batch(step, 2, timeout_s=WAIT_S)
        assert (again.digest, rows(again)) == (batch.digest, rows(batch))


@pytest.mark.proves("F3")
def test_a_final_step_that_carried_groups_is_read_from_the_record_with_them(
    world: LocalWorld,
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(8)))
    sampler = world.open()
    sampler.resume(None)
    served: list[Batch] = []
    for step in range(STEPS):
        last = served[-1].sampled.group_ids if served else ()
        carried = [CarriedGroup(one, np.array([True, False])) for one in last[:1]]
        shaping = Shaping(settings="{}", num_groups=1, min_groups=1, carried=tuple(carried))
        batch = sampler.next_shaped_batch(step, shaping, timeout_s=WAIT_S)
        served.append(batch)
        sampler.ack(batch)
        sampler.checkpointed(step)
    world.restart()
    successor = world.open()
    assert successor.resume(None, later="replay") == 0
    for step, before in enumerate(served):
        found = successor.recorded_batch(step)
        as_recorded = Shaping(settings="{}", num_groups=1, min_groups=1, carried=None)
        for again in (found, successor.next_shaped_batch(step, as_recorded, timeout_s=WAIT_S)):
            assert again is not None
            assert (again.digest, rows(again)) == (before.digest, rows(before))
            assert (again.carried_groups, again.sampled.group_ids) == (
                min(step, 1),
                before.sampled.group_ids,
            )
    others = Shaping(settings="{}", num_groups=1, min_groups=1, carried=())
    with pytest.raises(RequestDiffers, match="is now not given"):
        successor.next_shaped_batch(1, others, timeout_s=WAIT_S)
