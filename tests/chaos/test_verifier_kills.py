"""A real verifier on a real broker, whose scores differ at each try, killed between its steps."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import kafka_world
from harness.sealing import SHORT_SESSIONS
from harness.verifying import VerifierProcess, first_rewards

pytestmark = pytest.mark.broker
GROUPS = 4
# Two records are on their way; all are in the log, and nothing is committed.
STEPS = (2, GROUPS + 1)


@pytest.mark.proves("A18")
def test_a_verifier_that_is_killed_leaves_no_group_out_and_scores_none_twice(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    world = kafka_world(kafka_bootstrap, tmp_path)
    world.configure(score_timeout_s=4e9)
    kafka = world.config.kafka.model_copy(update={"client": SHORT_SESSIONS})
    config = world.config.model_copy(update={"kafka": kafka})
    try:
        flushed = world.writer().flush(*[GroupSpec(rewards=(None, None))] * GROUPS)
        sealed = {group.group_id for group in flushed.groups}
        for step in STEPS:
            process = VerifierProcess(config, groups=GROUPS, die_at=step)
            try:
                assert process.wait() == -signal.SIGKILL
            finally:
                process.close()
        process = VerifierProcess(config, groups=GROUPS)
        try:
            assert process.wait() == 0
        finally:
            process.close()
        first, others = first_rewards(world.config, "math", world.broker())
        assert first.keys() == sealed
        assert others > 0
        sampler = world.open()
        sampler.resume(None)
        batch = sampler.next_batch(0, len(sealed), timeout_s=60.0)
        served = dict(zip(batch.uids, batch.rewards.tolist(), strict=True))
        said = {uid: reward for rewards in first.values() for uid, reward in rewards.items()}
        assert served == pytest.approx(said)
    finally:
        world.close()
