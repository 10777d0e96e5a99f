"""A sampler that shows metrics: they agree with its figures, and tell when it makes no progress."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.groups import GroupSpec
from harness.ray_world import RayWorld
from harness.sampler_worlds import LocalWorld, config_of, new_name
from harness.scraping import ANY_PORT, addresses, get, scraped
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.runtime.metrics.watched import LOOPBACK
from rollstream.sampler import Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.errors import Fenced
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.writer import MemoryWriter
from rollstream.streams.topics.layout import Layout

WAIT_S = 10.0


class HangingBroker(MemoryBroker):
    """Once ``hangs`` is set, making a writer ends when ``free`` is."""

    def __init__(self) -> None:
        super().__init__(MemoryLogs())
        self.hangs, self.called, self.free = (threading.Event() for _ in range(3))

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> MemoryWriter:
        if self.hangs.is_set():
            self.called.set()
            self.free.wait(WAIT_S)
        return super().writer(linger_ms=linger_ms, retries=retries)


@pytest.fixture
def broker() -> HangingBroker:
    return HangingBroker()


@pytest.fixture
def world(broker: HangingBroker) -> Iterator[LocalWorld]:
    config = config_of("file:///unused", new_name(), admission=False)
    config = config.model_copy(update={"metrics": ANY_PORT})
    made = LocalWorld(broker, MemoryBlobs(), config)
    yield made
    made.close()
    assert addresses() == []  # Its end is the port's.


def test_what_is_scraped_agrees_with_stats(world: LocalWorld) -> None:
    sampler = world.open()
    assert get("/healthz")[0] == 200
    assert get("/readyz") == (503, f"sampler {world.name}: no call has claimed its log\n")
    sampler.publish_policy(0, policy_version="step-0")
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(3)))
    batch = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    sampler.ack(batch)
    values, stats = scraped(), sampler.stats()
    assert get("/readyz") == get("/healthz") == (200, "ok\n")
    assert stats.ready["math"] == 1
    for name, value in {
        "owns": 1,
        "open_batches": stats.open_batches,
        "overdue_batches": 0,
        "next_step": stats.next_step,
        "policy_step": 0,
        "inserts": stats.inserts,
        "uses": stats.uses,
        "read_groups_total": stats.groups_read,
        "cached_bytes": stats.cached_bytes,
        "aside_logs": 0,
        "batch_seconds_count": 1,
    }.items():
        assert values[f"rollstream_sampler_{name}", world.name] == value, name
    for environment, groups in stats.ready.items():
        # Labels stand in the order of their names.
        assert values["rollstream_sampler_ready_groups", environment, world.name] == groups
    for outcome, groups in stats.outcomes.items():
        assert values["rollstream_sampler_groups", outcome, world.name] == groups
    topic = world_topic(world)
    assert values["rollstream_broker_append_seconds_count", topic] >= 4  # A claim and decisions.


def test_a_call_that_waits_is_counted_by_its_cause(world: LocalWorld) -> None:
    sampler = world.open()
    sampler.publish_policy(0, policy_version="step-0")
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(sampler.next_batch, 0, 1, timeout_s=WAIT_S)
        while ("rollstream_sampler_waiting_calls", "groups", world.name) not in scraped():
            assert not waiting.done()
        world.writer().flush(GroupSpec(example_id="ex-0"))
        assert waiting.result(WAIT_S).num_groups == 1


def test_a_decision_that_does_not_end_is_told_and_the_scrape_still_answers(
    world: LocalWorld, broker: HangingBroker
) -> None:
    clock = ManualClock()
    sampler = Sampler(
        world.name, config=world.config, broker=broker, store=world.store, clock=clock
    )
    broker.hangs.set()
    with sampler, ThreadPoolExecutor(1) as caller:
        call = caller.submit(sampler.publish_policy, 0, policy_version="step-0")
        assert broker.called.wait(WAIT_S)
        assert get("/healthz")[0] == 200
        clock.advance(world.config.metrics.stalled_after_s + 1)
        status, told = get("/healthz")
        values = scraped()
        broker.free.set()
        call.result(WAIT_S)
        assert get("/healthz")[0] == 200
    assert (status, told) == (503, f"sampler {world.name}: a decision has not ended for 61 s\n")
    assert values["rollstream_sampler_busy_seconds", world.name] == 61
    # Prometheus would take an old figure for one of now.
    assert ("rollstream_sampler_next_step", world.name) not in values
    assert values["rollstream_alive", f"sampler {world.name}"] == 0


def test_a_fenced_sampler_is_not_ready(world: LocalWorld) -> None:
    first = world.open()
    first.publish_policy(0, policy_version="step-0")
    with world.successor() as second:
        second.publish_policy(0, policy_version="step-0")
        with pytest.raises(Fenced):
            first.publish_policy(0, policy_version="step-0")
        assert get("/readyz")[0] == 503
    assert get("/healthz")[0] == 200


def world_topic(world: LocalWorld) -> str:
    """Of its decision log."""
    return Layout.of(world.config.kafka).sampler_log(world.name).topic


@pytest.mark.broker
def test_a_sampler_over_ray_shows_them_in_its_actor(kafka_bootstrap: str, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    world = RayWorld(kafka_bootstrap, tmp_path)
    world.config = world.config.model_copy(update={"metrics": MetricsConfig(port=port)})
    try:
        sampler = world.open()
        sampler.publish_policy(0, policy_version="step-0")
        at = f"http://{LOOPBACK}:{port}"
        assert get("/readyz", at) == get("/healthz", at) == (200, "ok\n")
        values = scraped(at)
        assert values["rollstream_sampler_policy_step", world.name] == 0
        assert addresses() == []  # This process shows nothing.
    finally:
        world.close()
