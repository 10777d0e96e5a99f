"""The examples of the OpenAPI page."""

from __future__ import annotations

from typing import Any

STEPS: dict[str, Any] = {
    "steps": [
        {
            "prompt_ids": [101, 7592, 102],
            "response_ids": [2023, 2003],
            "logprobs": [-0.11, -0.52],
            "trajectory_uid": "t-81c2-0",
            "prompt_uid": "p-81c2",
            "step_index": 0,
            "n_rollouts": 8,
            "policy_version": "step-12",
            "weight_step": 12,
        },
    ]
}
COMPLETE: dict[str, Any] = {"prompt_uid": "p-81c2"}
FAIL: dict[str, Any] = {"prompt_uid": "p-81c2", "reason": "the browser crashed", "n_rollouts": 8}
SCORE: dict[str, Any] = {"prompt_uid": "p-81c2", "reward": 0.5, "scorer": "tests"}
