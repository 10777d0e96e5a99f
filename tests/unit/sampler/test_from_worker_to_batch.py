"""What an env worker gives with a rollout, in the trainer's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.published_run import Run

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
