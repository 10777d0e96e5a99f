"""The first stage that is stuck, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
    SamplerConfig,
    StoreConfig,
)
from rollstream.streams.status import (
    Figures,
    PartitionFigures,
    SamplerFigures,
    first_stuck,
)

CONFIG = RollstreamConfig(
    kafka=KafkaConfig(bootstrap="nobody:9092"),
    store=StoreConfig(root="file:///nowhere"),
    environments={"math": EnvironmentConfig(seal_timeout_s=50.0, expire_after_s=100.0)},
    samplers={"t": SamplerConfig(environments=("math",), max_open_batches=3)},
)
HEALTHY_PARTITION = PartitionFigures(
    environment="math",
    partition=0,
    kept_from=0,
    ingest_end=100,
    published_age_s=1.0,
    owner="sealer-1",
    watermark=90,
    settled=90,
    touched=90,
    touched_entries=90,
    groups=9,
    segments=90,
    flush_age_s=1.0,
)
HEALTHY_SAMPLER = SamplerFigures(
    name="t",
    environments=("math",),
    owner="actor",
    ready=5,
    waiting={},
    older=0,
    batches=2,
    acked=1,
    open_batches=1,
    next_step=2,
    policy_epoch=2,
    policy_step=1,
    decision_age_s=1.0,
    dropped_since={},
    waiting_since={},
)


@pytest.mark.proves("F17")
@pytest.mark.parametrize(
    ("partition", "of_sampler", "stage", "reason"),
    [
        ({}, {}, "", "nothing is stuck"),
        ({"ingest_end": 0, "watermark": 0}, {}, "env workers", "nothing was ever published"),
        ({"kept_from": 95}, {}, "sealers", "retention deleted 5 records of math[0]"),
        ({"owner": ""}, {}, "sealers", "no sealer ever claimed"),
        (
            {"published_age_s": 500.0, "flush_age_s": 400.0},
            {},
            "sealers",
            "10 records of math[0] wait for 400 s",
        ),
        ({}, {"owner": ""}, "sampler", "t was never started"),
        ({}, {"open_batches": 3}, "trainer", "call checkpointed(step)"),
        ({}, {"decision_age_s": 90.0}, "trainer", "5 groups are ready for t"),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0},
            "env workers",
            "nothing was published to math for 80 s",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"off_branch": 7, "stale": 1}},
            "env workers",
            "t served nothing for 90 s; of 8 groups 7 were dropped as off_branch: "
            "a resume went back to before the weights that they name; workers must "
            "publish(policy_epoch=2), as publish_policy returned it",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 2, "dropped_since": {"stale": 7}},
            "env workers",
            "raise samplers.t.max_policy_lag",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"filtered": 7}},
            "env workers",
            "without accept",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"capacity": 7}},
            "sampler",
            "raise samplers.t.capacity_groups",
        ),
        # The sampler drops what exceeds its capacity whether or not a trainer asks.
        (
            {},
            {"decision_age_s": 90.0, "dropped_since": {"capacity": 7}},
            "trainer",
            "5 groups are ready for t",
        ),
        ({}, {"ready": 0, "dropped_since": {"stale": 7}}, "", "nothing is stuck"),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "waiting_since": {"reward": 10}},
            "env workers",
            "t served nothing for 90 s; of 10 groups 10 wait: a member has no reward, and none "
            "can be given later; name one when publishing: publish(reward=R)",
        ),
        (
            {},
            {"decision_age_s": 90.0, "waiting_since": {"reward": 10}},
            "trainer",
            "5 groups are ready for t",
        ),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0, "waiting": {"reward": 10}},
            "env workers",
            "no group ready (10 wait: a member has no reward, and none can be given later",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "waiting_since": {"eval": 10}},
            "env workers",
            "of 10 groups 10 are eval groups: they are never served for training; "
            "publish(split='train')",
        ),
        # What waited before says nothing of a trainer that waits for groups in the making.
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "waiting": {"eval": 10}},
            "",
            "nothing is stuck",
        ),
        # Groups that wait for members, within their time, are no stall.
        ({"published_age_s": 90.0, "flush_age_s": 90.0}, {}, "", "nothing is stuck"),
    ],
)
def test_first_stuck_stage_is_named_with_its_reason(
    partition: dict[str, Any], of_sampler: dict[str, Any], stage: str, reason: str
) -> None:
    figures = Figures(
        partitions=(replace(HEALTHY_PARTITION, **partition),),
        samplers=(replace(HEALTHY_SAMPLER, **of_sampler),),
    )
    verdict = first_stuck(figures, CONFIG)
    assert verdict.stage == stage
    assert reason in verdict.reason


def test_stage_before_others_is_named_first() -> None:
    figures = Figures(
        partitions=(replace(HEALTHY_PARTITION, owner=""),),
        samplers=(replace(HEALTHY_SAMPLER, open_batches=3),),
    )
    assert first_stuck(figures, CONFIG).stage == "sealers"
