"""What a maker makes of a few steps, for tests of ``TrainingBatches``."""

from __future__ import annotations

from typing import Any

from harness.groups import GroupSpec
from harness.sampler_worlds import SamplerWorld
from rollstream.sampler import (
    BatchMaker,
    GrpoBatchMaker,
    SamplerApi,
    TrainingBatch,
    TrainingBatches,
)

WAIT_S = 30.0


def seal(world: SamplerWorld, groups: int, **fields: Any) -> None:
    world.writer().flush(
        *(
            GroupSpec(example_id=f"ex-{i}", rewards=(0.0, 1.0, i % 3, 0.5), **fields)
            for i in range(groups)
        )
    )


def made_by(sampler: SamplerApi, maker: BatchMaker | None = None, **asked: Any) -> TrainingBatches:
    """Two groups of four a step, of which three trajectories are trained on: the rest is kept."""
    return TrainingBatches(
        sampler,
        GrpoBatchMaker(seed=3) if maker is None else maker,
        **{"num_groups": 2, "batch_size": 3, **asked},
    )


def everything(training: TrainingBatch) -> tuple[object, ...]:
    examples, batch = training.examples, training.batch
    arrays = {name: array.tobytes() for name, array in examples.arrays().items()}
    uids = [batch.uids[row] for row in examples.rows.tolist()]
    return batch.batch_id, batch.digest, arrays, uids, examples.policy_versions, training.metadata


def trained_uids(training: TrainingBatch) -> list[str]:
    return [training.batch.uids[row] for row in training.examples.rows.tolist()]


def run(batches: TrainingBatches, first: int, last: int) -> list[TrainingBatch]:
    found = []
    for step in range(first, last):
        found.append(batches.next(step, timeout_s=WAIT_S))
        batches.ack(found[-1])
    return found
