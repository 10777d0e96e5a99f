"""Measures how the folds bear a long run: time and memory over ten million rollouts.

``python -m benchmarks.folds``: flushes of 1,024 rollouts in groups of eight go through the fold of
a sealer, and then through that of a sampler whose trainer takes batches of 64 groups and writes a
checkpoint every 16 steps. Events are made as they are needed, without Kafka and without files; the
time is the processor's, in the folds and in making the decisions. A fold that keeps something of
every rollout shows here as memory that rises with each row of the table.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil

from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.schemas.events import (
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Flushed,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    TouchedOffsets,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.seal import SealFold

ROLLOUTS = 10_000_000
GROUP_SIZE = 8
FLUSH_ROLLOUTS = 1_024
FLUSH_US = 1_000_000  # Between two flushes: a fold keeps something of those of the last minute.
BATCH_GROUPS = 64
CHECKPOINT_STEPS = 16
EXAMPLES = 100_000  # Problems that groups take turns over.
ROWS = 10  # Of the table, for each fold.
LOG = PartitionAddress("math", 1, 0)
CHOOSING = Choosing(environments=(ServedEnvironment(name="math"),))
OWNER: dict[str, Any] = {"epoch": 0, "nonce": "bench", "now_ts": 0}


class Row(NamedTuple):
    """After so many rollouts.

    Attributes:
        fold_us: microseconds a rollout since the row before.
        resident_mib: of this process.
    """

    fold: str
    rollouts: int
    fold_us: float
    resident_mib: float


def flushes(rollouts: int) -> Iterator[Flushed]:
    """Flushes over as many rollouts, one a record, in the order of the ingest log."""
    return map(flush_at, range(-(-rollouts // FLUSH_ROLLOUTS)))


def flush_at(number: int) -> Flushed:
    """The flush of this number, of the next rollouts."""
    count, groups = FLUSH_ROLLOUTS, FLUSH_ROLLOUTS // GROUP_SIZE
    first = number * count
    zeros = np.zeros(count, np.int32)
    offsets = np.arange(first, first + count)
    return Flushed(
        **OWNER | {"now_ts": number * FLUSH_US},
        watermark=first + count,
        files=(SealedFile(path=f"groups/{first}", size=1, rows=count, checksum=""),),
        groups=SealedGroupColumns.of(
            _group(first // GROUP_SIZE + index, index) for index in range(groups)
        ),
        segments=SealedSegments(
            offsets=offsets,
            entries=zeros,
            uids=tuple(f"worker-0-{n}" for n in range(first, first + count)),
            segment_idxs=zeros,
            policy_epochs=zeros,
            weight_steps=np.full(count, first // GROUP_SIZE // BATCH_GROUPS),
            prompt_counts=np.full(count, 128, np.int32),
            token_counts=np.full(count, 1_024, np.int32),
            rewards=(np.arange(count) % 2).astype(np.float64),
            created_ts=offsets,
            replica_idxs=zeros,
            replicas=("replica-0",),
            stop_reasons=("stop",),
            stop_reason_idxs=zeros,
        ),
        settled=(),
        touched=TouchedOffsets(offsets=offsets, counts=np.ones(count, np.int32)),
        incomplete=(),
    )


def _group(number: int, index: int) -> SealedGroup:
    return SealedGroup(
        group_id=f"group-{number}",
        group_uid=f"group-{number}",
        example_id=f"problem-{number % EXAMPLES}",
        lineage="",
        policy_version=f"step-{number // BATCH_GROUPS}",
        policy_epoch=0,
        weight_step=number // BATCH_GROUPS,
        segment_idx=0,
        split="train",
        seal_reason="full",
        failed_members=0,
        file=0,
        row_start=index * GROUP_SIZE,
        rows=GROUP_SIZE,
        digest=number.to_bytes(16, "big"),
    )


class SealBench:
    """The fold of a sealer, and of every reader of its log."""

    name = "seal"

    def __init__(self) -> None:
        self._fold = SealFold(dedupe_horizon=EnvironmentConfig(partitions=1).dedupe_horizon)

    def apply(self, offset: int, event: Flushed) -> None:
        self._fold.apply(offset, 0, event)

    def check(self, rollouts: int) -> None:
        assert self._fold.settled_count == rollouts


class SamplerBench:
    """The fold of a sampler whose trainer keeps up."""

    name = "sampler"

    def __init__(self) -> None:
        self._state = SamplerState("trainer", CHOOSING, [LOG])
        self._waiting: deque[ChosenGroup] = deque()
        self._decisions = 0

    def apply(self, offset: int, event: Flushed) -> None:
        self._state.apply_groups(LOG, offset, event)
        for index, group in enumerate(event.groups):
            chosen = ChosenGroup(
                **LOG._asdict(),
                offset=offset,
                index=index,
                group_id=group.group_id,
                digest=group.digest,
            )
            self._waiting.append(chosen)
        while len(self._waiting) >= BATCH_GROUPS:
            self._serve()

    def _serve(self) -> None:
        step = self._state.next_step
        groups = tuple(self._waiting.popleft() for _ in range(BATCH_GROUPS))
        served = BatchServed(
            **OWNER,
            trainer_epoch=0,
            step=step,
            batch_id=f"batch-{step}",
            seed=0,
            request="{}",
            policy_step=step,
            cursor=self._state.cursor(),
            groups=groups,
            digest=step.to_bytes(16, "big"),
        )
        self._decide(served)
        if step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            self._decide(Checkpointed(**OWNER, trainer_epoch=0, step=step))

    def _decide(self, event: BatchServed | Checkpointed) -> None:
        self._state.apply(self._decisions, 0, event)
        self._decisions += 1

    def check(self, rollouts: int) -> None:
        taken = self._state.next_step * BATCH_GROUPS
        assert (taken + len(self._state.ready)) * GROUP_SIZE == rollouts


def measure(bench: SealBench | SamplerBench, rollouts: int) -> Iterator[Row]:
    """A row for each tenth of the rollouts."""
    process = psutil.Process()
    every = max(1, rollouts // FLUSH_ROLLOUTS // ROWS)
    took_s = 0.0
    for offset, event in enumerate(flushes(rollouts)):
        begun_s = time.process_time()
        bench.apply(offset, event)
        took_s += time.process_time() - begun_s
        done = (offset + 1) * FLUSH_ROLLOUTS
        if (offset + 1) % every == 0:
            gc.collect()
            resident_mib = process.memory_info().rss / 2**20
            yield Row(bench.name, done, 1e6 * took_s / (every * FLUSH_ROLLOUTS), resident_mib)
            took_s = 0.0
    bench.check(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    rollouts = parser.parse_args().rollouts
    if rollouts < FLUSH_ROLLOUTS:
        parser.error(f"--rollouts {rollouts}: give at least {FLUSH_ROLLOUTS}, a flush's")
    print(f"{'fold':8} {'rollouts':>12} {'us a rollout':>13} {'resident MiB':>13}")
    for bench in (SealBench, SamplerBench):
        for row in measure(bench(), rollouts):
            print(
                f"{row.fold:8} {row.rollouts:12,} {row.fold_us:13.3f} {row.resident_mib:13.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
