"""What an env worker gives with a rollout, in the trainer's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.published_run import Run
from rollstream.producers import RolloutProducer

EXPERTS = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
ENTROPY = np.array([0.25, 0.5, 0.125], np.float64)
IMAGE = b"\x89PNG\r\n\x00\xff" * 1000


@pytest.mark.proves("F15", "A24")
def test_masks_arrays_steps_of_tokens_and_images_reach_the_batch_unharmed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    given: dict[str, Any] = {
        "output_tokens": [7, 8, 9],
        "loss_mask": [True, False, True],  # The second was a tool's.
        "token_rewards": [0.0, 0.0, 0.5],
        "ref_logprobs": [-1.0, -2.0, -4.0],
        "old_logprobs": [-0.75, -0.5, -0.25],
        "token_arrays": {"routed_experts": EXPERTS, "entropy": ENTROPY},
        "attachments": {"frame": IMAGE},
        "messages": [{"role": "user", "content": "2 + 2 = ?"}],
        "metadata": {"temperature": 0.8},
    }
    run.publish("ex", weight_step=[3, 3, 4], **given)
    run.seal(1)
    columns = ("routed_experts", "entropy", "token_weight_steps", "token_rewards", "ref_logprobs")
    with run.sampler() as sampler:
        sampler.resume(4)
        asked = (*columns, "old_logprobs", "metadata")
        batch = sampler.next_batch(5, 1, timeout_s=0.0, columns=asked)
        records = batch.records(0)
    assert len(batch) == len(records) == 2
    for row, record in enumerate(records):
        outputs = slice(batch.offsets[row] + batch.prompt_lengths[row], batch.offsets[row + 1])
        assert batch.tokens[outputs].tolist() == [7, 8, 9]
        assert batch.loss_mask[outputs].tolist() == [True, False, True]
        assert batch.logprobs[outputs].tolist() == [-0.5] * 3
        named = {name: batch.arrays()[name][outputs].tolist() for name in columns[2:]}
        assert named == {
            "token_weight_steps": [3, 3, 4],
            "token_rewards": [0.0, 0.0, 0.5],
            "ref_logprobs": [-1.0, -2.0, -4.0],
        }
        assert batch.arrays()["old_logprobs"][outputs].tolist() == [-0.75, -0.5, -0.25]
        for name, array in (("routed_experts", EXPERTS), ("entropy", ENTROPY)):
            found = batch.token_arrays[name][outputs]
            assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
        assert record.attachments == {"frame": IMAGE}
        assert record.messages == ({"role": "user", "content": "2 + 2 = ?"},)
    assert not batch.loss_mask[: batch.prompt_lengths[0]].any()
    assert batch.metadata == ({"temperature": 0.8},) * 2


@pytest.mark.proves("E1")
def test_who_published_a_rollout_and_when_reaches_the_batch(tmp_path: Path) -> None:
    run = Run(tmp_path)
    broker, clock = run.line.broker(), run.line.clock
    made_us = []
    for worker in ("worker-0", "worker-1"):
        clock.advance(1.5)
        made_us.append(clock.now_us())
        with RolloutProducer(
            environment="math", worker_id=worker, broker=broker, clock=clock
        ) as producer:
            producer.publish(
                example_id="ex",
                group_uid="g",
                group_size=2,
                policy_version="step-0",
                weight_step=0,
                prompt_tokens=[1],
                output_tokens=[2],
                reward=1.0,
            )
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        plain = sampler.next_batch(0, 1, timeout_s=0.0)
        batch = sampler.next_batch(0, 1, timeout_s=0.0, columns=["worker_ids", "created_ts"])
        records = batch.records(0)
    assert (plain.worker_ids, plain.created_ts) == (None, None)
    assert batch.created_ts is not None
    assert batch.created_ts.dtype == np.int64
    assert batch.worker_ids == ("worker-0", "worker-1")
    assert batch.created_ts.tolist() == made_us
    assert [one.rollout_metadata.worker_id for one in records] == ["worker-0", "worker-1"]
