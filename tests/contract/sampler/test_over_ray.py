"""What is particular to the sampler as a Ray actor."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import psutil
import pytest
import ray
from ray.exceptions import ObjectLostError

from harness.brokers import until
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from harness.kafka import KafkaFactory
from harness.kept_logging import kept_logging
from harness.ray_world import RayWorld
from rollstream.runtime import logs
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import AsyncSamplerClient, Batch, Fenced, NotEnoughGroups, UnknownSampler
from rollstream.sampler.actor import actor_calls
from rollstream.sampler.actor.pickled import Stored, stored_in
from rollstream.sampler.api.client import SamplerClient
from rollstream.sampler.decide.batches.next_batch import PayloadsBy
from rollstream.status import measure
from rollstream.store.layout import snapshot_path
from rollstream.streams.errors import BrokerError, TopicMismatch
from rollstream.streams.topics.layout import Layout

pytestmark = pytest.mark.broker
WAIT_S = 30.0


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def long_specs(count: int) -> list[GroupSpec]:
    return [
        GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0), prompt=128, output=4096)
        for i in range(count)
    ]


@pytest.mark.proves("F11")
def test_arrays_arrive_as_read_only_views_without_a_copy(world: RayWorld) -> None:
    world.writer().flush(*long_specs(16))
    batch = world.open().next_batch(0, 16, timeout_s=WAIT_S)
    assert len(batch.tokens) == 32 * (128 + 4096)
    for array in (batch.tokens, batch.logprobs, batch.loss_mask, batch.offsets):
        assert not array.flags.owndata
        assert not array.flags.writeable
    # The tokens lie in memory that the actor's process maps too: Ray's object store.
    shared = [m.path for m in psutil.Process().memory_maps(grouped=False) if _holds(m.addr, batch)]
    assert any("/dev/shm" in path or "plasma" in path for path in shared), shared


def _holds(addresses: str, batch: object) -> bool:
    start, end = (int(part, 16) for part in addresses.split("-"))
    at = batch.tokens.__array_interface__["data"][0]  # type: ignore[attr-defined]
    return bool(start <= at < end)


@pytest.mark.proves("F11")
def test_a_batch_over_ray_is_that_of_this_process_bit_for_bit(world: RayWorld) -> None:
    world.writer().flush(*(replace(spec, extras=(every_extra(4096),)) for spec in long_specs(3)))
    over_ray = world.open().next_batch(0, 3, timeout_s=WAIT_S, columns=EVERY_COLUMN)
    with world.successor() as successor:
        here = successor.next_batch(0, 3, timeout_s=WAIT_S, columns=EVERY_COLUMN)
    arrays = {name: (array.dtype, array.tobytes()) for name, array in here.arrays().items()}
    assert len(arrays) == 19
    assert {n: (array.dtype, array.tobytes()) for n, array in over_ray.arrays().items()} == arrays
    assert (over_ray.uids, over_ray.metadata, over_ray.sampled, over_ray.slots) == (
        here.uids,
        here.metadata,
        here.sampled,
        here.slots,
    )


def test_the_same_with_await(world: RayWorld) -> None:
    world.writer().flush(*(replace(spec, extras=(every_extra(4096),)) for spec in long_specs(2)))

    async def train() -> tuple[int, float]:
        client = await AsyncSamplerClient.attach(world.name, config=world.config)
        assert repr(client) == f"AsyncSamplerClient({world.name!r}, trainer_epoch=None)"
        async with client as sampler:
            step = await sampler.resume(None)
            batch, again, own = await asyncio.gather(
                sampler.next_batch(step, 2, timeout_s=WAIT_S),
                sampler.next_batch(step, 2, timeout_s=WAIT_S, columns=["routed_experts"]),
                sampler.next_batch(step, 2, timeout_s=WAIT_S, payloads="rank"),
            )
            assert batch.uids == again.uids == own.uids
            assert batch.tokens.tobytes() == own.tokens.tobytes()
            assert (list(batch.token_arrays), list(again.token_arrays)) == ([], ["routed_experts"])
            await sampler.ack(batch)
            policy = await sampler.publish_policy(
                step + 1, policy_version="step-1", weights="/w/1", metadata={"bits": 8}
            )
            assert (policy.weights, policy.metadata) == ("/w/1", {"bits": 8})
            await sampler.checkpointed(step)
            with pytest.raises(NotEnoughGroups):
                await sampler.next_batch(step + 1, 1, timeout_s=0.05)
            progress = await sampler.progress()
            return policy.step, sum(progress.trained["math"].values())

    assert asyncio.run(train()) == (1, 2)
    (figures,) = measure(world.broker(), world.config, Deadline(WAIT_S)).samplers
    assert figures.over  # Its last decision was a checkpoint.


@pytest.mark.proves("F17")
def test_a_trainer_that_waits_while_kafka_is_away_says_so(
    own_kafka: KafkaFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = own_kafka()
    lonely = RayWorld(kafka.bootstrap, tmp_path)
    sampler = lonely.open()
    sampler.resume(None)
    kafka.kill()

    def ask() -> None:
        with suppress(NotEnoughGroups, BrokerError):
            sampler.next_batch(0, 1, timeout_s=3.0)

    sentence = f"sampler {lonely.name!r}: Kafka at {kafka.bootstrap} cannot be reached"
    until(lambda: sentence in caplog.text, ask)
    lonely.close()


class HastyClock(SystemClock):
    """Each look at it finds ten seconds more gone."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic_s(self) -> float:
        self._looks += 1
        return super().monotonic_s() + 10.0 * self._looks


def test_a_trainer_that_waits_is_told_which_groups_are_missing(
    world: RayWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.open()
    sampler = SamplerClient.attach(world.name, config=world.config, clock=HastyClock())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sampler.next_batch, 0, 2, timeout_s=600.0)
        until(lambda: "s so far for groups: step 0 needs 2 groups" in caplog.text)
        world.writer().flush(*long_specs(2))
        assert waiting.result(WAIT_S).num_groups == 2


def test_awaited_calls_wait_by_the_hundreds_and_leave_nothing_behind(world: RayWorld) -> None:
    writer = world.writer()
    writer.flush(*long_specs(2))

    async def wait_until_waiting(sampler: AsyncSamplerClient, count: int) -> None:
        while (await sampler.stats()).calls_waiting != count:
            await asyncio.sleep(0)

    async def train() -> None:
        client = await AsyncSamplerClient.attach(world.name, config=world.config)
        threads = threading.active_count()
        async with client as sampler:
            step = await sampler.resume(None)
            batch = await sampler.next_batch(step, 2, timeout_s=WAIT_S)
            waiting = [
                asyncio.ensure_future(sampler.next_batch(step + 1, 2, timeout_s=WAIT_S))
                for _ in range(500)
            ]
            await wait_until_waiting(sampler, 500)
            assert threading.active_count() <= threads + 2
            await sampler.ack(batch)  # The groups to come may wait for just this.
            for one in waiting[2:]:
                one.cancel()
            await wait_until_waiting(sampler, 2)
            writer.flush(*long_specs(2))
            two = await asyncio.gather(*waiting[:2])
            assert len({got.digest for got in two}) == 1

    asyncio.run(train())


def test_calls_that_wait_survive_the_death_of_the_actor(world: RayWorld) -> None:
    sampler = world.open()
    sampler.resume(None)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sampler.next_batch, 0, 2, timeout_s=WAIT_S)
        until(lambda: sampler.stats().calls_waiting == 1)
        world.restart()
        until(lambda: sampler.stats().calls_waiting == 1)
        world.writer().flush(*long_specs(2))
        assert waiting.result(WAIT_S).num_groups == 2


def test_what_a_dead_actor_had_stored_for_its_answer_is_asked_for_again(
    world: RayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.configure(max_policy_lag=-1)  # It may take many steps until one was made ahead.
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(200)))
    sampler = world.open()
    killed: list[int] = []

    def die_with_what_is_stored(answer: object) -> list[Stored]:
        stored = stored_in(answer)
        if stored and not killed:
            killed.append(sampler.stats().pid)
            world.restart()
            with pytest.raises(ObjectLostError):  # Once Ray knows that the actor died.
                until(lambda: False, lambda: ray.get(stored[0].ref, timeout=WAIT_S))
        return stored

    monkeypatch.setattr(actor_calls, "stored_in", die_with_what_is_stored)
    steps = iter(range(200))
    batches = []
    until(lambda: bool(killed), lambda: batches.append(sampler.next_batch(next(steps), 1)))
    again = sampler.next_batch(batches[-1].step, 1)
    assert (again.uids, again.tokens.tolist()) == (batches[-1].uids, batches[-1].tokens.tolist())
    assert sampler.stats().pid not in killed


def test_a_fenced_actor_exits_for_good(world: RayWorld) -> None:
    world.writer().flush(*long_specs(4))
    one, two = world.open(), world.open()
    one.next_batch(0, 2, timeout_s=WAIT_S)
    successor = world.successor()
    successor.next_batch(0, 2, timeout_s=WAIT_S)
    for _ in range(2):
        with pytest.raises(Fenced, match="taken over"):
            two.next_batch(1, 2, timeout_s=WAIT_S)
    with pytest.raises(Fenced, match="taken over"):
        one.next_batch(1, 2, timeout_s=WAIT_S)
    successor.next_batch(1, 2, timeout_s=WAIT_S)
    successor.close()


ATTACH = """
import sys
from rollstream.sampler import SamplerClient, SamplerUnavailable
name, config, address = sys.argv[1:]
try:
    print(SamplerClient.attach(name, config=config, address=address).stats().pid)
except SamplerUnavailable as error:
    print(error)
"""

ATTACH_TO_OWN_RAY = """
import sys
from rollstream.sampler import SamplerClient, SamplerUnavailable
name, config = sys.argv[1:]
try:
    SamplerClient.attach(name, config=config)
    print("attached")
except SamplerUnavailable as error:
    print(error)
"""


def attached_elsewhere(world: RayWorld, **environment: str) -> str:
    """What a process of its own prints that attaches by the address of this one's Ray."""
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, world.name, str(world.config_file()), address],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    return done.stdout.replace(address, "ADDRESS").strip()


def test_a_process_joins_by_address_with_the_token_and_is_told_without(world: RayWorld) -> None:
    pid = world.open().stats().pid
    assert attached_elsewhere(world, RAY_AUTH_MODE="token") == str(pid)
    once = {"RAY_gcs_server_port_wait_time_s": "1"}  # Ray tries once, not for 20 s.
    told = attached_elsewhere(world, RAY_AUTH_MODE="disabled", **once)
    assert told.startswith("no connection to Ray at ADDRESS")
    assert "set RAY_AUTH_MODE=token" in told


@pytest.fixture
def new_user() -> Iterator[dict[str, str]]:
    """The environment of a user whom no Ray has left a token yet."""
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as home:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        yield {**kept, "HOME": home}


def test_the_first_processes_of_a_user_on_a_machine_attach_at_once(
    world: RayWorld, new_user: dict[str, str]
) -> None:
    """Two start at the same time, each its own Ray, since they have no folder in common."""
    folders = [Path(new_user["HOME"]) / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ATTACH_TO_OWN_RAY, world.name, str(world.config_file())],
            env={**new_user, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for folder in folders
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in started]
    assert printed == ["attached", "attached"], "without a warning, too"


def test_a_ray_that_cannot_start_says_why(world: RayWorld, new_user: dict[str, str]) -> None:
    too_long_for_a_socket = Path(new_user["HOME"]) / ("x" * 100)
    too_long_for_a_socket.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ATTACH_TO_OWN_RAY, world.name, str(world.config_file())],
        env={**new_user, "TMPDIR": str(too_long_for_a_socket)},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    assert "Ray did not start on this machine: OSError" in done.stdout


def test_attach_refuses_what_cannot_work(world: RayWorld) -> None:
    with pytest.raises(UnknownSampler, match=r"no \[samplers\.nobody\]"):
        SamplerClient.attach("nobody", config=world.config)
    kafka = world.config.kafka.model_copy(update={"namespace": "elsewhere"})
    config = world.config.model_copy(update={"kafka": kafka})
    with pytest.raises(TopicMismatch, match="topics create"):
        SamplerClient.attach(world.name, config=config)


def test_an_actor_logs_in_the_format_of_the_process_that_starts_it(world: RayWorld) -> None:
    log = Layout.of(world.config.kafka).sampler(world.name)
    damaged = snapshot_path(world.name, log, 0)
    world.store.create(damaged, b"no snapshot")
    with kept_logging():
        logs.configure("json")
        pid = world.open().stats().pid
    (file,) = Path(tempfile.gettempdir()).rglob(f"worker-*-{pid}.err")
    lines = [line for line in file.read_text().splitlines() if damaged in line]
    (logged,) = map(json.loads, lines)
    assert (logged["logger"], logged["process"]) == ("rollstream.sampler", pid)


def test_what_the_ranks_of_a_large_batch_share_is_the_same_to_each(world: RayWorld) -> None:
    ranks = 64  # So that its group ids, to each of them, are more than an answer is to have.
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(ranks)))
    sampler = world.open()
    sampler.resume(None)

    async def shares(payloads: PayloadsBy) -> list[Batch]:
        async with await AsyncSamplerClient.attach(world.name, config=world.config) as client:
            asked = [
                client.next_batch(0, ranks, dp_rank=rank, dp_size=ranks, payloads=payloads)
                for rank in range(ranks)
            ]
            return await asyncio.gather(*asked)

    alone = sampler.next_batch(0, ranks, dp_rank=7, dp_size=ranks, payloads="rank")
    assert len(set(alone.sampled.group_ids)) == ranks
    for payloads in get_args(PayloadsBy):
        found = asyncio.run(shares(payloads))
        assert [batch.slots for batch in found] == [(rank,) for rank in range(ranks)]
        assert {batch.sampled for batch in found} == {alone.sampled}
        assert found[7].tokens.tolist() == alone.tokens.tolist()
