"""Figures with wide numbers, for tests of what ``status`` shows."""

from __future__ import annotations

from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.status import PartitionFigures, SamplerFigures

PARTITION = PartitionFigures(
    environment="math",
    partition=12,
    kept_from=0,
    ingest_end=12_345_678,
    published_age_s=59.9,
    oldest_age_s=59.9,
    records_per_s=1_234.5,
    held=True,
    owner="sealer-2",
    watermark=12_345_600,
    settled=12_345_600,
    touched=12_345_600,
    touched_entries=12_345_600,
    groups=771_604,
    segments=12_345_000,
    groups_per_s=1_234.5,
    flush_age_s=3_599.0,
)
SAMPLER = SamplerFigures(
    name="trainer-a",
    environments=("math",),
    owner="node-7:41234",
    ready=65_536,
    waiting={"reward": 10, "eval": 6},
    older=7,
    over=False,
    batches=12_345,
    batches_per_minute=120,
    open_batches=64,
    unacked=1,
    unacked_step=1,
    unacked_age_s=3.0,
    next_step=12_345,
    trainer_step=12_001,
    policy_epoch=1,
    policy_step=12_345,
    decision_age_s=91.0,
    dropped_since={},
    waiting_since={},
)
SAMPLERS = {"trainer-a": Choosing(environments=(ServedEnvironment(name="math"),))}
