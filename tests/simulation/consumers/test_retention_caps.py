"""Files are retired because an environment, or a policy version, has more groups than a cap."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

import pytest

from harness.kill_points import RetentionPoint, arm_retention
from harness.retention import RetentionWorld
from harness.sealing import Crash
from rollstream.consumers.retention.owner import SCHEDULE_EVERY_S
from rollstream.store.layout import policy_version_in, rows_writer_in
from rollstream.streams.memory import MemoryBroker


@pytest.mark.proves("A20", "I7")
def test_over_a_cap_the_oldest_files_go_and_what_a_sampler_needs_counts_and_stays() -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 8)
    sampler = world.sampler()
    *final, opened = [sampler.next_batch(step=step, num_groups=2) for step in range(3)]
    sampler.checkpointed(1)
    ready = {*world.sealed_files()} - {
        path for one in (*final, opened) for path in world.paths_of(one)
    }
    for kept, left in ((9, 8), (7, 7), (6, 6), (1, 4)):
        world.ask(None, keep_groups=kept)
        with world.leaving(world.sealer()) as sealer:
            world.retain(sealer, sampler=sampler)
        assert len(world.files_on_disk()) == left
        assert world.problems() == []
    assert {*world.files_on_disk()} == ready | {*world.paths_of(opened)}
    *_, answer = world.answers()
    assert "4 files held back by sampler 'trainer-a' (groups ready or waiting: 2" in answer.detail


@pytest.mark.proves("A20", "F1", "I7", "I10")
@pytest.mark.parametrize("point", [one for one in RetentionPoint if one.name != "BEFORE_FORGOTTEN"])
def test_killed_at_any_step_a_cap_retires_as_many_files_and_no_more(point: RetentionPoint) -> None:
    world = RetentionWorld(partitions=1)
    world.seal_groups(0, 8)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=6)
    sampler.checkpointed(0)
    world.ask(None, keep_groups=5)
    own = MemoryBroker(world.logs)
    armed = arm_retention(point, own, world.blobs, die)
    with pytest.raises(Crash):
        world.retain(world.sealer(broker=armed.broker, store=armed.blobs), sampler=sampler)
    own.close()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    assert len(world.files_on_disk()) == 5
    assert world.problems() == []


def die() -> NoReturn:
    raise Crash


@pytest.mark.proves("A20")
def test_by_schedule_each_policy_version_keeps_so_many_groups() -> None:
    world = RetentionWorld(partitions=1, retain_groups_per_policy=2)
    sealer = world.sealer()
    world.seal_groups(0, 3, sealer=sealer, policy_version="step-1")
    world.seal_groups(3, 1, sealer=sealer, policy_version="step-2", split="eval")
    world.seal_groups(4, 3, sealer=sealer, policy_version="step-2")
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=6)
    sampler.checkpointed(0)
    world.run(sealer, seconds=2 * SCHEDULE_EVERY_S)
    left = {*world.sealed_files()} - {*world.retired_files()}
    assert Counter(policy_version_in(path) for path in left) == {"step-1": 2, "step-2": 2}
    evaluated = [
        e.files[0].path for e in world.flushes() if e.groups and e.groups[0].split == "eval"
    ]
    assert {*evaluated} & {*world.retired_files()}, "it was the oldest of its version"
    world.seal_groups(7, 1, sealer=sealer, policy_version="step-2")
    world.run(sealer, seconds=2 * SCHEDULE_EVERY_S)
    assert len(world.retired_files()) == 4, "two that are done with were left, and one goes"
    assert world.problems() == []
    sealer.close()


def test_each_partition_keeps_an_equal_share_of_a_cap() -> None:
    world = RetentionWorld(partitions=2)
    world.seal_groups(0, 12)
    sampler = world.sampler()
    sampler.next_batch(step=0, num_groups=12)
    sampler.checkpointed(0)
    world.ask(None, keep_groups=5)
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    left = Counter(rows_writer_in(path).address.partition for path in world.files_on_disk())  # type: ignore[union-attr]
    assert left == {0: 3, 1: 3}
    assert world.problems() == []
