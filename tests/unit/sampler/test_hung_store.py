"""A sampler whose store hangs, as a mount without its server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from harness.failing_blobs import HangingBlobs
from harness.faults import Append, Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from harness.scraping import ANY_PORT, get
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.schemas import codec
from rollstream.schemas.events import BatchServed
from rollstream.store.errors import StoreHangs
from rollstream.store.layout import ROOT_ID
from rollstream.store.local import LocalBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

pytestmark = pytest.mark.proves("F24")
TIMEOUT_S, WAIT_S = 0.5, 30.0
RANKS = [NextBatch(step=0, num_groups=4, dp_rank=rank, dp_size=4) for rank in range(4)]


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
    made = LocalWorld(FaultyBroker(MemoryBroker(MemoryLogs())), store, config)
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


def test_a_file_that_hangs_ends_its_batchs_call_and_keeps_no_decision_and_healthz_names_it(
    world: LocalWorld, store: HangingBlobs
) -> None:
    clock = ManualClock()
    world.writer().flush(GroupSpec(example_id="ex-0"))
    world.writer(partition=1).flush(GroupSpec(example_id="ex-1"))
    with (
        Sampler(
            world.name, config=world.config, broker=world.broker(), store=store, clock=clock
        ) as sampler,
        ThreadPoolExecutor(1) as caller,
    ):
        sampler.publish_policy(0, policy_version="step-0")
        store.hangs.set()
        waiting = caller.submit(sampler.next_batch, 0, 1, timeout_s=TIMEOUT_S)
        wait_for(store)
        clock.advance(world.config.metrics.stalled_after_s + 1)
        sampler.publish_policy(1, policy_version="step-1")
        status, told = get("/healthz")
        with pytest.raises(StoreHangs, match=r"UTC \(read row files\): does the store hang"):
            waiting.result(WAIT_S)
        begun_s = time.monotonic()
        with pytest.raises(StoreHangs):
            sampler.next_batch(1, 1, timeout_s=0.0)
        assert time.monotonic() - begun_s < WAIT_S / 2
        assert store.begun <= 2, "one that reads rows, and one that writes batch files"
        store.hangs.clear()
        store.free.set()
        assert [sampler.next_batch(step, 1).num_groups for step in (0, 1)] == [1, 1]
        assert get("/healthz")[0] == 200
    assert status == 503
    assert "has not ended for 61 s: does the store hang?" in told


def test_calls_that_come_together_wait_for_a_root_that_hangs_once(
    world: LocalWorld, store: HangingBlobs, claims: list[None]
) -> None:
    with closing(world.owner()) as owner:
        owner.check_deployment()
        store.hangs.set()
        calls = [owner.begin(rank) for rank in RANKS]
        assert owner.decide_all(calls, lambda: None) == []
        for call in calls:
            with pytest.raises(StoreHangs):
                call.answered.result(0)
        assert len(claims) == 1
        store.hangs.clear()
        store.free.set()


def test_calls_that_wait_for_groups_are_told_of_a_root_that_hangs_after_one_wait(
    world: LocalWorld, store: HangingBlobs, claims: list[None]
) -> None:
    def lost(append: Append) -> Fate:
        is_batch = isinstance(codec.decode(append.value), BatchServed)
        return Fate.DOUBT_AND_DROP if is_batch else Fate.PASS

    broker = world.broker()
    assert isinstance(broker, FaultyBroker)
    broker.decide = lost
    with closing(world.owner()) as owner:
        owner.execute(Resume(checkpointed_step=None), 0.0)
        calls = [owner.begin(rank) for rank in RANKS]
        for call in calls:
            owner.decide(call)
        world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(len(RANKS))))
        claims.clear()
        store.hangs.set()
        owner.follow(WAIT_S)
        for call in calls:
            with pytest.raises(StoreHangs):
                call.answered.result(0)
        assert len(claims) == 1
        store.hangs.clear()
        store.free.set()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One more for each attempt to claim the decision log, which asks the store first."""
    found, claim = list[None](), SamplerLogs.claim

    def counted(logs: SamplerLogs, deadline: Deadline) -> None:
        found.append(None)
        claim(logs, deadline)

    monkeypatch.setattr(SamplerLogs, "claim", counted)
    return found


def test_a_lost_file_is_not_replaced_while_the_root_hangs_and_is_once_it_is_back(
    world: LocalWorld, store: HangingBlobs
) -> None:
    lost, there = (world.writer(partition=partition) for partition in range(2))
    flushed = lost.flush(GroupSpec(example_id="lost"))
    there.flush(GroupSpec(example_id="there"))
    with Sampler(world.name, config=world.config, broker=world.broker(), store=store) as sampler:
        sampler.publish_policy(0, policy_version="step-0")
        store.delete(flushed.files[0].path)
        store.only = ROOT_ID
        store.hangs.set()
        with pytest.raises(StoreHangs, match=r"UTC \(read root_id.json\): does the store hang"):
            sampler.next_batch(0, 2, timeout_s=TIMEOUT_S)
        there.flush(GroupSpec(example_id="in its place"))
        sampler.publish_policy(1, policy_version="step-1")
        store.hangs.clear()
        store.free.set()
        assert {*sampler.next_batch(0, 2).example_ids} == {"there", "in its place"}


def wait_for(store: HangingBlobs) -> None:
    looks = threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if store.begun:
            return
        looks.wait(0.01)
    raise AssertionError("no call hangs")
