"""Members that are appended to a group, from the producer to the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.published_run import Run
from rollstream.producers import RolloutProducer

POLICY: dict[str, Any] = {
    "policy_version": "step-0",
    "weight_step": 0,
    "prompt_tokens": [1, 2],
    "output_tokens": [3],
    "logprobs": [-0.5],
}
SAMPLED: dict[str, Any] = {"example_id": "ex-1", "group_uid": "g", **POLICY}


@pytest.mark.proves("A17", "I2")
def test_who_is_appended_before_the_group_is_full_is_trained_on_and_who_is_late_is_told_apart(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    with RolloutProducer(
        environment="math", broker=run.line.broker(), clock=run.line.clock
    ) as producer:
        producer.publish(rollout_uid="a", group_size=2, reward=0.0, **SAMPLED)
        producer.append_to_group(rollout_uid="b", reward=1.0, **SAMPLED)
        producer.publish(rollout_uid="c", group_size=2, reward=0.5, **SAMPLED)
        producer.append_to_group(rollout_uid="late", reward=1.0, **SAMPLED)
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        batch = sampler.next_batch(0, 1, timeout_s=0.0)
    assert batch.uids == ("a", "b", "c")
    audit = run.read("audit")
    assert audit["holds"]
    (partition,) = [one for one in audit["partitions"] if one["settled"]]
    assert partition["settled"] == {"group_sealed": 1}


@pytest.mark.proves("A17")
def test_a_dispatched_group_is_sealed_with_whom_its_block_appended(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with (
        RolloutProducer(
            environment="math", broker=run.line.broker(), clock=run.line.clock
        ) as producer,
        producer.dispatch(example_id="ex-1", group_size=2) as group,
    ):
        group.publish(rollout_uid="a", reward=0.0, **POLICY)
        group.append(rollout_uid="b", reward=1.0, **POLICY)
        group.append(rollout_uid="b", reward=1.0, **POLICY)  # Again, as after an error.
        group.publish(rollout_uid="c", reward=0.5, **POLICY)
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        batch = sampler.next_batch(0, 1, timeout_s=0.0)
    assert batch.uids == ("a", "b", "c")
    assert run.read("audit")["holds"]
