"""``RolloutDataset``: a sampler's batches through PyTorch's ``DataLoader``, by rank."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context, get_start_method
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from harness.forking import told_in_a_fork
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from harness.ray_world import RayWorld
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.sampler import Batch, InvalidRequest, NotEnoughGroups, SamplerClient

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
from torch.utils.data import DataLoader  # noqa: E402 - Only where there is PyTorch.

from rollstream.torch import RolloutDataset  # noqa: E402

WAIT_S = 30.0
GROUPS = 4


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    made = memory_world()
    yield made
    made.close()


@pytest.fixture
def ray_world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def write_groups(world: LocalWorld, count: int) -> None:
    specs = [GroupSpec(example_id=f"ex-{i}", extras=(every_extra(),) * 2) for i in range(count)]
    world.writer().flush(*specs)


def loader(dataset: RolloutDataset, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=None, **options)


def same(one: Batch, other: Batch) -> bool:
    """Whether they have the same identity and the same bytes."""
    arrays, others = one.arrays(), other.arrays()
    return (one.batch_id, one.uids, one.metadata, arrays.keys()) == (
        other.batch_id,
        other.uids,
        other.metadata,
        others.keys(),
    ) and all(
        np.array_equal(arrays[name], others[name], equal_nan=arrays[name].dtype.kind == "f")
        for name in arrays
    )


@pytest.mark.proves("F11")
def test_two_ranks_get_their_shares_of_the_same_steps_and_the_trainer_acks(
    world: LocalWorld,
) -> None:
    write_groups(world, 3 * GROUPS)
    sampler = world.open()
    first = sampler.resume(None)
    shares: list[list[Batch]] = []
    for rank in range(2):
        dataset = RolloutDataset(
            world.open(), first_step=first, steps=3, num_groups=GROUPS, dp_rank=rank, dp_size=2
        )
        shares.append(list(loader(dataset)))
    for step, (one, other) in enumerate(zip(*shares, strict=True), first):
        whole = sampler.next_batch(step, GROUPS)
        assert sorted(one.uids + other.uids) == sorted(whole.uids)
        assert (one.dp_rank, other.dp_rank, one.batch_id) == (0, 1, whole.batch_id)
        sampler.ack(one)
    sampler.checkpointed(first + 2)
    assert sampler.progress().trained["math"].keys() == {f"ex-{i}" for i in range(3 * GROUPS)}


def test_who_resumes_gets_the_same_steps_again_from_where_the_dataset_was(
    world: LocalWorld,
) -> None:
    write_groups(world, 3 * GROUPS)
    sampler = world.open()
    dataset = RolloutDataset(
        sampler, first_step=sampler.resume(None), steps=3, num_groups=GROUPS, columns=EVERY_COLUMN
    )
    seen = iter(loader(dataset))
    batches = [next(seen), next(seen)]
    state = dataset.state_dict()
    assert state == {"step": 2}
    batches += seen
    again = RolloutDataset(
        world.open(), first_step=0, steps=3, num_groups=GROUPS, columns=EVERY_COLUMN
    )
    assert all(map(same, batches, loader(again)))
    again.load_state_dict(state)
    (last,) = loader(again)
    assert same(last, batches[2])
    again.load_state_dict({"step": 4})
    assert list(loader(again)) == []
    with pytest.raises(InvalidRequest, match="steps is -1; give 0 or more"):
        RolloutDataset(sampler, first_step=0, steps=-1, num_groups=GROUPS)


def test_the_item_is_what_shape_makes_of_the_batch(world: LocalWorld) -> None:
    write_groups(world, GROUPS)
    sampler = world.open()
    dataset = RolloutDataset(
        sampler, first_step=sampler.resume(None), steps=1, num_groups=GROUPS, shape=Batch.to_torch
    )
    (tensors,) = loader(dataset)
    assert tensors["tokens"].tolist() == sampler.next_batch(0, GROUPS).tokens.tolist()


def test_a_sampler_that_the_dataset_opened_is_closed_and_one_that_was_given_is_not(
    world: LocalWorld,
) -> None:
    write_groups(world, 2 * GROUPS)
    sampler = world.open()
    closed = []

    def opened() -> Any:
        client = world.open()
        client.close = lambda: closed.append(client)  # type: ignore[method-assign]
        return client

    first = sampler.resume(None)
    for source, count in ((sampler, 0), (opened, 1)):
        list(RolloutDataset(source, first_step=first, steps=1, num_groups=GROUPS))
        assert len(closed) == count
    sampler.next_batch(1, GROUPS)


def test_too_few_groups_in_time_is_the_samplers_error(world: LocalWorld) -> None:
    dataset = RolloutDataset(world.open(), first_step=0, num_groups=GROUPS, timeout_s=0)
    with pytest.raises(NotEnoughGroups):
        next(iter(loader(dataset)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 2, "multiprocessing_context": "spawn"}, "num_workers is 2"),
        ({"num_workers": 1, "multiprocessing_context": "fork"}, "multiprocessing_context='spawn'"),
        ({"num_workers": 1}, "multiprocessing_context='spawn', and as its sampler give"),
    ],
)
@pytest.mark.skipif(get_start_method() != "fork", reason="workers are forked unless told")
def test_workers_that_could_not_ask_are_refused_with_the_remedy(
    options: dict[str, Any], message: str
) -> None:
    dataset = RolloutDataset(refuse_to_open, first_step=0, num_groups=GROUPS)
    # The first that is refused ends the others, and a worker that has not begun by then fails.
    begun = get_context("spawn").Barrier(options["num_workers"], timeout=WAIT_S)
    options = {**options, "worker_init_fn": partial(wait_for_others, begun)}
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        next(iter(loader(dataset, **options)))


def wait_for_others(begun: Barrier, _worker: int) -> None:
    begun.wait()


@pytest.mark.broker
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_forked_over_a_live_sampler_are_refused_at_once_and_it_goes_on(
    ray_world: RayWorld, num_workers: int
) -> None:
    write_groups(ray_world, GROUPS)
    sampler = ray_world.open()
    first = sampler.resume(None)
    attach = partial(SamplerClient.attach, ray_world.name, config=ray_world.config)
    for source in (sampler, attach):
        dataset = RolloutDataset(source, first_step=first, num_groups=GROUPS)
        forked = loader(
            dataset, num_workers=num_workers, multiprocessing_context="fork", timeout=WAIT_S
        )
        with pytest.raises(InvalidRequest, match="give DataLoader"):
            next(iter(forked))
    (batch,) = loader(RolloutDataset(sampler, first_step=first, steps=1, num_groups=GROUPS))
    sampler.ack(batch)


def test_a_dataset_that_came_from_another_process_is_refused_in_a_fork_of_this_one() -> None:
    dataset = RolloutDataset(refuse_to_open, first_step=0, num_groups=GROUPS)
    came = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(InvalidRequest, match="multiprocessing_context='spawn'"):
        next(iter(loader(came, num_workers=1, multiprocessing_context="fork", timeout=WAIT_S)))


@pytest.mark.broker
def test_a_forked_process_that_iterates_is_refused(ray_world: RayWorld) -> None:
    sampler = ray_world.open()
    attach = partial(SamplerClient.attach, ray_world.name, config=ray_world.config)
    for source in (sampler, attach):
        dataset = RolloutDataset(source, first_step=0, num_groups=GROUPS)
        assert "was forked off" in told_in_a_fork(partial(next, iter(dataset)))


def test_a_worker_cannot_have_a_sampler_that_is_open_here(world: LocalWorld) -> None:
    write_groups(world, 2 * GROUPS)
    with world.open() as sampler:
        dataset = RolloutDataset(sampler, first_step=sampler.resume(None), num_groups=GROUPS)
        told = r"functools\.partial\(SamplerClient\.attach"
        with pytest.raises(InvalidRequest, match=told):
            next(iter(loader(dataset, num_workers=1, multiprocessing_context="spawn")))


@pytest.mark.parametrize("sampler", ["trainer-a", None])
def test_what_is_no_sampler_is_refused(sampler: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"sampler is .*; give a sampler, such as .*attach"):
        RolloutDataset(sampler, first_step=0, num_groups=GROUPS)


def refuse_to_open() -> Any:
    raise AssertionError("it was refused before")


@pytest.mark.broker
@pytest.mark.proves("F11")
@pytest.mark.timeout(300)
def test_a_worker_of_each_rank_asks_ahead_and_hands_over_the_same_bytes(
    ray_world: RayWorld,
) -> None:
    write_groups(ray_world, 3 * GROUPS)
    sampler = ray_world.open()
    first = sampler.resume(None)
    attach = partial(SamplerClient.attach, ray_world.name, config=str(ray_world.config_file()))
    loaders = [
        iter(
            loader(
                RolloutDataset(
                    attach,
                    first_step=first,
                    steps=3,
                    num_groups=GROUPS,
                    timeout_s=WAIT_S,
                    dp_rank=rank,
                    dp_size=2,
                    columns=EVERY_COLUMN,
                ),
                num_workers=1,
                multiprocessing_context="spawn",
            )
        )
        for rank in range(2)
    ]
    for step in range(first, 3):
        for rank, batches in enumerate(loaders):
            got = next(batches)
            asked = sampler.next_batch(step, GROUPS, dp_rank=rank, dp_size=2, columns=EVERY_COLUMN)
            assert same(got, asked)
            assert got.to_torch()["tokens"].data_ptr() == got.tokens.ctypes.data, "no copy"
            assert all(array.ctypes.data % 64 == 0 for array in got.arrays().values()), "shared"
        sampler.ack(asked)
    for batches in loaders:
        with pytest.raises(StopIteration):
            next(batches)
    sampler.checkpointed(2)
    assert sampler.progress().trained["math"].keys() == {f"ex-{i}" for i in range(3 * GROUPS)}
