"""A sampler whose store hangs, as a mount without its server does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.failing_blobs import HangingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from harness.scraping import ANY_PORT, get
from rollstream.runtime.clock import ManualClock
from rollstream.sampler import Sampler
from rollstream.store.errors import StoreHangs
from rollstream.store.local import LocalBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

pytestmark = pytest.mark.proves("F24")
TIMEOUT_S, WAIT_S = 0.5, 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HangingBlobs]:
    blobs = HangingBlobs(LocalBlobs(tmp_path))
    yield blobs
    blobs.free.set()


@pytest.fixture
def world(store: HangingBlobs) -> Iterator[LocalWorld]:
    config = config_of("file:///unused", new_name(), admission=False)
    kafka = config.kafka.model_copy(update={"timeout_s": TIMEOUT_S})
    config = config.model_copy(update={"kafka": kafka, "metrics": ANY_PORT})
    made = LocalWorld(MemoryBroker(MemoryLogs()), store, config)
    yield made
    store.free.set()
    made.close()


def test_a_call_over_a_root_that_hangs_ends_and_is_answered_once_it_is_back(
    world: LocalWorld, store: HangingBlobs
) -> None:
    sampler = Sampler(world.name, config=world.config, broker=world.broker(), store=store)
    store.hangs.set()
    with sampler:
        for _ in range(2):
            with pytest.raises(StoreHangs, match=r"since \d\d:\d\d:\d\d UTC \(list batches/"):
                sampler.publish_policy(0, policy_version="step-0")
        assert store.begun == 1, "more than one thread is left behind"
        store.hangs.clear()
        store.free.set()
        sampler.publish_policy(0, policy_version="step-0")


def test_a_sampler_whose_root_hangs_at_its_start_says_so(
    world: LocalWorld, store: HangingBlobs
) -> None:
    store.hangs.set()
    with pytest.raises(StoreHangs, match=r"UTC \(read root_id.json\): does the store hang"):
        Sampler(world.name, config=world.config, broker=world.broker(), store=store)


def test_a_file_that_hangs_keeps_one_batch_and_no_decision_and_healthz_names_it(
    world: LocalWorld, store: HangingBlobs
) -> None:
    clock = ManualClock()
    world.writer().flush(GroupSpec(example_id="ex-0"))
    with (
        Sampler(
            world.name, config=world.config, broker=world.broker(), store=store, clock=clock
        ) as sampler,
        ThreadPoolExecutor(1) as caller,
    ):
        sampler.publish_policy(0, policy_version="step-0")
        store.hangs.set()
        waiting = caller.submit(sampler.next_batch, 0, 1)
        wait_for(store)
        clock.advance(world.config.metrics.stalled_after_s + 1)
        sampler.publish_policy(1, policy_version="step-1")
        status, told = get("/healthz")
        store.hangs.clear()
        store.free.set()
        assert waiting.result(WAIT_S).num_groups == 1
        assert get("/healthz")[0] == 200
    assert status == 503
    assert "has not ended for 61 s: does the store hang?" in told


def wait_for(store: HangingBlobs) -> None:
    looks = threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if store.begun:
            return
        looks.wait(0.01)
    raise AssertionError("no call hangs")
