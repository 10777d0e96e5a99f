"""What the guides for trainers show does what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.documented_run import RELEASED_FROM, DocumentedRun
from harness.printed_pages import printed

CHOOSING = "guides/choosing_groups.md"
GROUPS = 160  # Every eighth has equal rewards.
IN_A_BATCH = 64


@pytest.mark.proves("F13")
def test_groups_with_equal_rewards_are_replaced(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    functions, _, _ = printed(CHOOSING, "trainer.py").partition("\nwith Sampler(")
    names: dict[str, Any] = {}
    exec(functions, names)
    with run.sampler() as sampler:
        policy = sampler.publish_policy(RELEASED_FROM + 1, policy_version="newer")
        with run.producer() as producer:
            for number in range(GROUPS):
                with producer.dispatch(example_id=f"easy-{number}", group_size=2) as group:
                    for reward in (1.0, 0.0 if number % 8 else 1.0):
                        group.publish(
                            policy_version=policy.version,
                            weight_step=policy.step,
                            policy_epoch=policy.epoch,
                            output_tokens=[1],
                            logprobs=[-0.1],
                            reward=reward,
                        )
        run.seal(GROUPS)
        served = sampler.next_batch(RELEASED_FROM + 1, IN_A_BATCH, timeout_s=300.0)
        assert names["all_equal"](served)
        batch = names["without_equal_groups"](sampler, served)
        assert names["all_equal"](batch) == []
        assert batch.metrics()["all_equal_share"] == 0.0
        assert set(batch.sampled.group_ids) != set(served.sampled.group_ids)
        sampler.ack(batch)
