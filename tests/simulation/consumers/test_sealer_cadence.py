"""When flushes of a partition begin."""

from __future__ import annotations

import numpy as np
import pytest

from harness.held_workers import HeldWorkers
from harness.history import problems_of
from harness.rollouts import make_alive, make_entry
from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.assembling.decisions import FLUSH_FILES_MAX
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Flushed
from rollstream.schemas.ingest.entry import Producer

INTERVAL_S = 10.0
SECONDS = 60
# Enough for a sealer to read, and flush what goes at once; flushes are 3 times apart.
LOOP_S = 0.05


def publish_pair(world: SealWorld, name: str) -> None:
    for number in range(2):
        world.publish(f"{name}-{number}", example_id=name)


def held_flush() -> tuple[HeldWorkers, SealWorld, Sealer]:
    """A sealer whose flush of group "a" began and stands still until the workers go on."""
    workers = HeldWorkers()
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer(workers=workers)
    world.run(sealer)
    publish_pair(world, "a")
    world.run(sealer, seconds=INTERVAL_S - 1)
    workers.holding = True
    world.run(sealer, seconds=2)
    return workers, world, sealer


def publish_pairs(world: SealWorld, name: str, pairs: int, tokens: int = 1) -> None:
    """In one record, groups of two."""
    world.publish_entries(
        *(
            make_entry(
                rollout_uid=f"{name}-{pair}-{number}",
                example_id=f"{name}-{pair}",
                output_tokens=np.zeros(tokens, np.int32),
                logprobs=np.zeros(tokens, np.float32),
            )
            for pair in range(pairs)
            for number in range(2)
        )
    )


def test_a_complete_group_waits_for_the_interval_and_no_longer() -> None:
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer()
    world.run(sealer)
    publish_pair(world, "a")
    world.run(sealer, seconds=INTERVAL_S - 1)
    assert world.groups() == []
    world.run(sealer, seconds=2)
    assert world.groups() == [("a-0", "a-1")]


def test_what_was_decided_during_a_long_flush_follows_at_once() -> None:
    workers, world, sealer = held_flush()
    publish_pair(world, "b")
    world.run(sealer, seconds=2 * INTERVAL_S)
    assert world.groups() == []
    workers.go_on()
    world.run(sealer, seconds=1)
    assert world.groups() == [("a-0", "a-1"), ("b-0", "b-1")]


def test_a_group_decided_during_a_flush_waits_from_then_on() -> None:
    workers, world, sealer = held_flush()
    publish_pair(world, "b")
    world.run(sealer, seconds=INTERVAL_S / 2)
    workers.go_on()
    world.run(sealer, seconds=INTERVAL_S / 2 - 1)
    assert world.groups() == [("a-0", "a-1")]
    world.run(sealer, seconds=2)
    assert world.groups() == [("a-0", "a-1"), ("b-0", "b-1")]


def test_seven_groups_a_second_write_few_files_and_none_waits_longer_than_the_default() -> None:
    interval_s = EnvironmentConfig().flush_interval_s
    world = SealWorld(partitions=4, flush_interval_s=interval_s)
    sealer = world.sealer()
    world.run(sealer)
    published_us = {}
    for number in range(7 * SECONDS):
        publish_pair(world, f"g{number}")
        published_us[f"g{number}-1"] = world.clock.now_us()
        world.run(sealer, seconds=1 / 7)
    world.run(sealer, seconds=interval_s + LOOP_S)
    flushed_us = {
        uid: item.timestamp_us
        for item in world.confirmed_events()
        if isinstance(item.event, Flushed)
        for uid in item.event.segments.uids
    }
    waits_s = [(flushed_us[uid] - at_us) / 1e6 for uid, at_us in published_us.items()]
    assert max(waits_s) <= interval_s + LOOP_S
    files = [blob.path for blob in world.blobs.list("groups/")]
    manifests = [blob.path for blob in world.blobs.list("manifests/")]
    # As 1,250 in ten minutes: 7,500 an hour.
    assert max(len(files), len(manifests)) <= 1_250 * SECONDS / 600


@pytest.mark.parametrize(("pairs", "tokens"), [(512, 1), (2, 300_000)])
def test_what_fills_a_file_is_flushed_at_once(pairs: int, tokens: int) -> None:
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer()
    world.run(sealer)
    for name in ("a", "b"):  # The second time the flush before has just begun.
        publish_pairs(world, name, pairs, tokens)
        world.run(sealer, seconds=LOOP_S)
    assert len(world.groups()) == 2 * pairs


def test_versions_that_a_flush_leaves_out_follow_at_once() -> None:
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer()
    world.run(sealer)
    pairs = 512
    world.publish_entries(
        *(
            make_entry(
                rollout_uid=f"{pair}-{number}",
                example_id=f"{pair}",
                policy_version=f"v{pair % (3 * FLUSH_FILES_MAX)}",
            )
            for pair in range(pairs)
            for number in range(2)
        )
    )
    world.run(sealer, seconds=20 * LOOP_S)
    assert len(world.groups()) == pairs
    assert [len(flush.files) for flush in world.flushes()] == [FLUSH_FILES_MAX] * 8


def test_what_is_worth_a_file_waits_for_a_fraction_of_a_second() -> None:
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer()
    world.run(sealer)
    publish_pairs(world, "a", 64)
    world.run(sealer, seconds=LOOP_S)
    assert world.groups() == []
    world.run(sealer, seconds=4 * LOOP_S)
    assert len(world.groups()) == 64


def test_entries_that_say_only_that_a_producer_lives_make_few_flushes() -> None:
    """Each flush is a manifest and a record that are kept for ever; such entries come every few
    seconds from each worker that has a group open, or waits."""
    world = SealWorld(partitions=1, flush_interval_s=1.0, seal_timeout_s=60.0, expire_after_s=60.0)
    sealer = world.sealer()
    world.run(sealer)
    for number in range(24):
        world.publish_entries(make_alive("a"), producer=Producer("a", number, 0))
        world.run(sealer, seconds=5)
    world.run(sealer, seconds=1)
    stretches = [one for flush in world.flushes() for one in flush.unread]
    assert [one.reason for one in stretches] == ["alive"] * 4
    assert [(one.stops - one.firsts).tolist() for one in stretches] == [[6]] * 4


def test_that_producers_live_takes_a_seal_log_the_same_bytes_however_many_say_so() -> None:
    sizes = []
    for count in (10, 5_000):
        world = SealWorld(partitions=1, seal_timeout_s=60.0, expire_after_s=60.0)
        sealer = world.sealer()
        world.run(sealer)
        for _ in range(count):
            world.publish_entries(make_alive("a"), producer=Producer("a", 0, 1))
        world.run(sealer, seconds=40)
        (flush,) = world.flushes()
        assert world.settled() == {"alive": count}
        sizes.append(len(encode(flush)))
    assert abs(sizes[1] - sizes[0]) < 16


def test_entries_that_say_only_that_a_producer_lives_go_with_what_else_is_flushed() -> None:
    world = SealWorld(partitions=1, flush_interval_s=1.0)
    sealer = world.sealer()
    world.run(sealer)
    world.publish_entries(make_alive("a"), producer=Producer("a", 0, 0))
    world.run(sealer, seconds=20)
    publish_pair(world, "g")
    world.run(sealer, seconds=0.9)
    assert world.flushes() == []
    world.run(sealer, seconds=0.5)
    assert (world.groups(), world.settled()) == ([("g-0", "g-1")], {"alive": 1})


def test_of_many_partitions_the_idle_ones_wake_up_for_records() -> None:
    world = SealWorld(partitions=40, seal_timeout_s=3.0, min_group_size=1)
    sealer = world.sealer()
    world.run(sealer, seconds=2)
    for partition in range(0, 40, 3):
        world.publish(f"whole-{partition}-a", partition=partition, example_id="one")
        world.publish(f"whole-{partition}-b", partition=partition, example_id="one")
    world.publish("alone", partition=7)
    world.run(sealer, seconds=0.5)
    assert len(world.groups()) == 14
    world.run(sealer, seconds=4)
    assert ("alone",) in world.groups()
    sealer.close()
    assert problems_of(world) == []
