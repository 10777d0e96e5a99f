"""The sampler's actor is killed with -9 around each of its events; trainers sleep too long."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import ray

from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from harness.killing_broker import KillingBroker
from harness.ray_world import RayWorld
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, SamplerClient
from rollstream.sampler.history import replay_step
from rollstream.schemas.events import BatchServed, Flushed, Resumed
from rollstream.store import read_rows
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

pytestmark = pytest.mark.broker
WAIT_S = 60.0
STEPS = 3


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def decisions(world: RayWorld) -> list[ConfirmedEvent]:
    """What counts in the decision log."""
    topic = Layout(world.config.kafka.namespace).sampler(world.name)
    follower = Follower(world.broker(), {TopicPartition(topic, 0): 0})
    confirmed = list(follower.read_to_end(Deadline(WAIT_S)))
    follower.close()
    return confirmed


def bytes_of(batch: Batch) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in batch.arrays().items()}


def rows_of(batch: Batch) -> dict[str, tuple[bytes, ...]]:
    """Tokens, log-probs, mask, experts and reward of each row, by uid."""
    rows = {}
    experts = batch.token_arrays["routed_experts"]
    for row, uid in enumerate(batch.uids):
        span = slice(batch.offsets[row], batch.offsets[row + 1])
        of_tokens = (batch.tokens, batch.logprobs, batch.loss_mask, experts)
        rewards = batch.rewards[row : row + 1]
        rows[uid] = (*(array[span].tobytes() for array in of_tokens), rewards.tobytes())
    return rows


def sealed_rows(event: Flushed, world: RayWorld) -> dict[str, tuple[bytes, ...]]:
    """The same, out of the flush's file."""
    (file,) = event.files
    columns = read_rows(world.store, file.path)
    rows: dict[str, tuple[bytes, ...]] = {}
    for row, uid in enumerate(columns.scalars["rollout_uid"]):
        prompt, output, logprobs = (
            columns.arrays[name].row(row) for name in ("prompt_tokens", "output_tokens", "logprobs")
        )
        assert prompt is not None
        assert output is not None
        assert logprobs is not None
        experts = columns.token_arrays["routed_experts"].row(row)
        if experts is None:
            experts = np.zeros((len(output), 2), np.uint8)
        trained = np.ones(len(output), np.bool_)
        rows[uid] = (
            np.concatenate([prompt, output]).tobytes(),
            np.pad(logprobs, (len(prompt), 0)).tobytes(),
            np.pad(trained, (len(prompt), 0)).tobytes(),
            np.pad(experts, ((len(prompt), 0), (0, 0))).tobytes(),
            np.float32(columns.scalars["reward"][row]).tobytes(),
        )
    return rows


@pytest.mark.proves("F1", "I4", "I6")
@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("BatchServed", True),  # Between the event and the reply.
        ("BatchServed", False),
        ("Resumed", True),
        ("Acked", True),
        ("Checkpointed", True),
        ("PolicyPublished", True),
        ("Claimed", True),  # In the middle of the claim.
        ("Adopted", True),
    ],
)
def test_a_run_through_a_kill_is_the_run_without_it(
    world: RayWorld, tmp_path: Path, kind: str, written: bool
) -> None:
    marker = tmp_path / "killed"
    broker = KillingBroker(world.config.kafka.bootstrap, kind, written=written, marker=marker)
    specs = (GroupSpec(example_id=f"ex-{i}", extras=(every_extra(),)) for i in range(2 * STEPS))
    sealed = sealed_rows(world.writer().flush(*specs), world)
    with SamplerClient.attach(world.name, config=world.config, broker=broker) as sampler:
        step = sampler.resume(None)
        batches = []
        while step < STEPS:
            batch = sampler.next_batch(step, 2, timeout_s=WAIT_S, columns=EVERY_COLUMN)
            batches.append(batch)
            sampler.ack(batch)
            sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            sampler.checkpointed(step)
            step += 1
        assert marker.exists(), "nothing was killed: the test proves nothing"
        assert sampler.progress().final_step == STEPS - 1
        for batch in batches:
            again = sampler.next_batch(batch.step, 2, timeout_s=WAIT_S, columns=EVERY_COLUMN)
            assert again.uids == batch.uids
            assert bytes_of(again) == bytes_of(batch)
    served_rows = [row for batch in batches for row in rows_of(batch).items()]
    assert len(served_rows) == 4 * STEPS, "no rollout twice"
    assert dict(served_rows) == sealed, "none missing, and each as it was sealed"
    confirmed = decisions(world)
    served = Counter(h.event.step for h in confirmed if isinstance(h.event, BatchServed))
    assert served == dict.fromkeys(range(STEPS), 1)
    assert {h.event.policy_epoch for h in confirmed if isinstance(h.event, Resumed)} == {0}
    for step in range(STEPS):
        (replayed,) = replay_step(world.name, step, config=world.config, timeout_s=WAIT_S)
        assert replayed.same


TRAINER = """
import pathlib, pickle, sys
from rollstream.sampler import Fenced, SamplerClient
name, config, address = sys.argv[1:]
config = pickle.loads(pathlib.Path(config).read_bytes())
sampler = SamplerClient.attach(name, config=config, address=address)
batch = sampler.next_batch(sampler.resume(None), 2, timeout_s=60)
print("has", batch.digest.hex(), flush=True)
sys.stdin.readline()
try:
    sampler.ack(batch)
except Fenced as error:
    print("Fenced", error, flush=True)
"""


@pytest.mark.proves("F1", "F3")
def test_a_trainer_that_slept_through_its_successors_resume_is_fenced(
    world: RayWorld, tmp_path: Path
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
    successor = world.open()
    (tmp_path / "config").write_bytes(pickle.dumps(world.config))
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", TRAINER, world.name, str(tmp_path / "config"), address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdin is not None
        try:
            digest = _line(trainer.stdout, "has")
            assert successor.resume(None, later="replay") == 0
            batch = successor.next_batch(0, 2, timeout_s=WAIT_S)
            assert batch.digest.hex() == digest
            successor.ack(batch)
            trainer.stdin.write("wake up\n")
            trainer.stdin.flush()
            assert "successor has resumed" in _line(trainer.stdout, "Fenced")
        finally:
            trainer.kill()


def _line(stream: IO[str], begins: str) -> str:
    """The next line that begins so; Ray may print others."""
    for line in stream:
        if line.startswith(begins):
            return line.removeprefix(begins).strip()
    raise AssertionError(f"the trainer ended before it said {begins!r}")
