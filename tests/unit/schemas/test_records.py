"""Rollouts and groups as users see them."""

from __future__ import annotations

import numpy as np

from rollstream.schemas.records import RolloutGroup, RolloutRecord, SampledBatch


def test_reprs_are_one_line_however_much_they_hold() -> None:
    record = RolloutRecord(
        environment="math",
        example_id="aime-17",
        policy_version="step-3",
        rollout_uid="u1",
        reward=1.0,
        prompt_tokens=np.zeros(12_000, np.int32),
        output_tokens=np.zeros(40, np.int32),
    )
    assert repr(record) == (
        "RolloutRecord('u1' of math/'aime-17': policy 'step-3', tokens 12,000 + 40, reward 1.0, "
        "stop)"
    )
    group = RolloutGroup.of("g1", [record] * 64, sealed_ts=0)
    assert repr(group) == "RolloutGroup('g1' of math/'aime-17': policy 'step-3', rollouts 64)"
    batch = SampledBatch("b1", ("g1",) * 2048, 7)
    assert repr(batch) == "SampledBatch('b1': groups 2,048, ts 7)"
