"""Segments of a trajectory whose end never came, from the producer to what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.command_line import CONFIG
from harness.published_run import Run
from rollstream.producers import RolloutProducer
from rollstream.sampler import Examples

pytestmark = pytest.mark.proves("A17", "I2")
ALLOWED = 'partial_trajectories = "train"\nmin_group_size = 2\nseal_timeout_s = 20.0\n'


@pytest.mark.parametrize("later", ["whole", "of its own"])
def test_an_interrupted_generation_is_trained_on_as_far_as_it_came(
    tmp_path: Path, later: str
) -> None:
    """``whole`` goes on under newer weights, as the rollout ``later``; nobody goes on with
    ``partial``."""
    environment = "[environments.math]\n"
    assert environment in CONFIG
    run = Run(tmp_path, CONFIG.replace(environment, environment + ALLOWED))
    with RolloutProducer(
        environment="math", broker=run.line.broker(), clock=run.line.clock
    ) as producer:

        def publish(uid: str, weights: int, prompt: list[int], **fields: Any) -> None:
            producer.publish(
                rollout_uid=uid,
                example_id="ex-1",
                group_uid="g",
                group_size=3,
                policy_version=f"step-{weights}",
                weight_step=weights,
                prompt_tokens=prompt,
                logprobs=[-0.5] * len(fields["output_tokens"]),
                **fields,
            )

        first: dict[str, Any] = {"output_tokens": [3, 4], "is_last_segment": False}
        publish("whole", 0, [1, 2], reward=None, **first)
        publish("partial", 0, [1, 2], reward=0.25, **first)
        publish(
            later,
            *(1, [1, 2, 3, 4]),
            output_tokens=[5],
            segment_idx=1,
            continuation_of="whole",
            reward=1.0,
        )
    run.seal(1)
    with run.sampler() as sampler:
        assert sampler.resume(0) == 1
        batch = sampler.next_batch(1, 1, timeout_s=0.0, columns=["token_weight_steps"])
    assert batch.uids == ("whole", later, "partial")
    assert batch.trajectory_returns.tolist() == [1.0, 0.25]
    whole, partial = Examples.of(batch, "dr_grpo", merge_turns=True)
    assert whole.tokens.tolist() == [1, 2, 3, 4, 5]
    assert whole.advantage.tolist() == [0, 0, 0.375, 0.375, 0.375]
    assert partial.tokens.tolist() == [1, 2, 3, 4]
    assert partial.advantage.tolist() == [0, 0, -0.375, -0.375]
    steps = Examples.of(batch, merge_turns=True).token_arrays["token_weight_steps"]
    assert steps.tolist() == [-1, -1, 0, 0, 1, -1, -1, 0, 0]
    assert run.read("audit")["holds"]
