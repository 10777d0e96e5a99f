"""Where a log is gone and the store is there, nothing begins anew and no step is used twice."""

from __future__ import annotations

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from rollstream.consumers import create_deployment
from rollstream.sampler import Sampler
from rollstream.store.blobs import Blobs
from rollstream.store.layout import batches_prefix, snapshot_path
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.errors import LogLost
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

pytestmark = pytest.mark.proves("I6", "F20")
STEPS = 3


def served(store: Blobs) -> LocalWorld:
    """A sampler that served some steps and was closed, over this store."""
    name = new_name()
    broker = MemoryBroker(MemoryLogs())
    world = LocalWorld(broker, store, config_of("file:///unused", name))
    world.writer().flush(*[GroupSpec(example_id=f"ex-{i}") for i in range(2 * STEPS)])
    sampler = world.successor()
    for step in range(STEPS):
        sampler.ack(sampler.next_batch(step, 1))
    sampler.close()
    return world


def contents(store: Blobs) -> dict[str, bytes]:
    return {blob.path: store.read(blob.path) for blob in store.list("")}


def test_a_sampler_whose_decision_log_is_gone_decides_nothing_anew() -> None:
    store = MemoryBlobs()
    world = served(store)
    kafka = world.config.kafka.model_copy(update={"generation": 2})
    config = world.config.model_copy(update={"kafka": kafka})
    broker = MemoryBroker(MemoryLogs())
    create_deployment(config, broker=broker, store=store)
    before = contents(store)
    sampler = Sampler(world.name, config=config, broker=broker, store=store)
    assert sampler.progress().next_step == 0, "who looks is not refused"
    for _ in range(2):
        with pytest.raises(LogLost, match=r"ends before step 0 .* holds a batch of step 2 of"):
            sampler.next_batch(0, 1)
    sampler.close()
    assert contents(store) == before
    log = Layout.of(kafka).sampler_log(world.name)
    assert broker.reader({log: 0}).bounds(log, 1)[1] == 0


def test_a_decision_log_that_ends_before_a_snapshot_is_not_gone_on_with() -> None:
    world = memory_world()
    sampler = world.successor()
    sampler.resume(None)
    sampler.close()
    log = Layout.of(world.config.kafka).sampler_log(world.name)
    path = snapshot_path(world.name, log.topic, 7)
    world.store.create(path, b"of a log that was longer")
    again = world.successor()
    with pytest.raises(LogLost, match=r"ends at 3, but .* a snapshot at offset 7"):
        again.resume(None)
    again.close()
    world.store.delete(path)
    successor = world.successor()
    assert successor.resume(None) == 0
    successor.close()


def test_another_samplers_files_do_not_matter() -> None:
    store = MemoryBlobs()
    world = served(store)
    other = config_of("file:///unused", f"{world.name}-2")
    config = other.model_copy(update={"kafka": world.config.kafka})
    create_deployment(config, broker=world.broker(), store=store)
    sampler = Sampler(f"{world.name}-2", config=config, broker=world.broker(), store=store)
    assert sampler.next_batch(0, 1).step == 0
    sampler.close()
    assert list(store.list(batches_prefix(world.name)))
