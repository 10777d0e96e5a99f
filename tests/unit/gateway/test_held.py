"""What is held of a body until its call is answered."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from rollstream.gateway import bodies
from rollstream.gateway.models import StepsBody

VALUES = 100_000


@pytest.mark.parametrize("value", ["{}", "[]", "0"])
def test_of_metadata_as_much_is_held_as_was_sent(value: str) -> None:
    step = {
        **{"trajectory_uid": "run-17", "prompt_uid": "web-3", "step_index": 0},
        **{"prompt_ids": [1], "response_ids": [2], "policy_version": "v", "weight_step": 1},
    }
    metadata = '{"many": [' + ",".join([value] * VALUES) + "]}"
    raw = json.dumps({"steps": [{**step, "metadata": "@"}]}).replace('"@"', metadata).encode()
    tracemalloc.start()
    try:
        held = [one.step() for one in bodies.read(raw, StepsBody).steps]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json.loads(str(held[0].metadata)) == json.loads(metadata)
    assert size < 1.5 * len(raw)
