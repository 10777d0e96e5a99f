"""A deployment that was made by a version without the newer topics."""

from __future__ import annotations

import logging

import pytest

from harness.sealing import SealWorld
from rollstream.consumers import create_deployment
from rollstream.sampler import Sampler
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import off_without


def older_world() -> SealWorld:
    """As an earlier version made it."""
    world = SealWorld(partitions=1, samplers=("trainer-a",))
    older = MemoryLogs(world.clock)
    for name, spec in world.logs.topics().items():
        if off_without(name):
            continue
        older.create(spec)
        for partition in range(spec.partitions):
            where = TopicPartition(name, partition)
            for record in world.logs.read(where, 0, 100):
                older.append(where, record.key, record.value)
    world.logs, world.broker = older, MemoryBroker(older)
    return world


def test_it_seals_and_serves_and_each_process_says_once_what_is_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = older_world()
    missing = f"{world.layout.admission('math')} "
    with caplog.at_level(logging.WARNING):
        sealer = world.sealer()
    assert [one.message for one in caplog.records if missing in one.message] == [
        f"{missing}is missing: run `rollstream topics create`; until then env workers learn of no "
        "policy, and nothing keeps them from running ahead"
    ]
    for uid in "ab":
        world.publish(uid)
    world.run(sealer)
    assert world.groups() == [("a", "b")]
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING),
        Sampler(
            "trainer-a",
            config=world.config,
            broker=world.broker,
            store=world.blobs,
            clock=world.clock,
        ) as sampler,
    ):
        assert set(sampler.next_batch(0, num_groups=1, timeout_s=10).uids) == {"a", "b"}
    assert sum(f"{missing}is missing" in one.message for one in caplog.records) == 1


def test_topics_create_adds_what_is_missing_and_nothing_else() -> None:
    world = older_world()
    before = set(world.logs.topics())
    created = create_deployment(
        world.config, broker=world.broker, store=world.blobs, clock=world.clock
    )
    assert {world.layout.admission("math"), world.layout.shares("math")} <= {*created.topics}
    assert all(map(off_without, created.topics))
    assert set(world.logs.topics()) == before | {*created.topics}
    assert created.recorded == ()
