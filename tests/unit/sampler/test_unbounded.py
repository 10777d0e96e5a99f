"""A sampler without a bound on lag says at its start what that gives up."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import memory_world


@pytest.mark.proves("F22")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, 0),
        ({"max_policy_lag": -1}, 1),
        ({"max_policy_lag": -1, "max_rollout_step_delay": 3}, 0),
        ({"max_policy_lag": -1, "order": "ready"}, 0),
    ],
)
def test_a_sampler_without_a_bound_says_so_once_when_it_starts(
    settings: dict[str, Any], said: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = memory_world()
    world.configure(**settings)
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(2)))
    with caplog.at_level(logging.WARNING, "rollstream.sampler"):
        sampler = world.open()
        assert sampler.stats().ready == {"math": 2}
        assert not caplog.messages, "looking starts nothing"
        sampler.resume(None)
        for step in range(2):
            sampler.next_batch(step, 1)
    found = [one for one in caplog.messages if "groups of any age, of unknown weights" in one]
    assert len(found) == said
    world.close()
