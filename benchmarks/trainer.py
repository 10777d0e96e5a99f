"""The trainer's process: takes batches, reads their arrays, and checks what was delivered."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.progress import DRAINING, MEASURING, WARMING_UP, Progress
from benchmarks.scenarios import Scenario
from benchmarks.systems.interface import Packed, System, Taken
from benchmarks.workload import Workload, number_of

STRIDE = 64


class WrongDelivery(RuntimeError):
    """A system lost, repeated, mixed up or changed rollouts, so its speed is not reported."""


@dataclass(frozen=True)
class Measured:
    """Rollouts that the trainer took between warm-up and draining, and the seconds it took.

    Attributes:
        latencies_ms: of each of them, where they go one at a time.
    """

    rollouts: int
    seconds: float
    latencies_ms: list[float]


@dataclass(frozen=True)
class Ready:
    """Sent once the trainer can begin, with the processes to measure by label."""

    pids: Mapping[str, int]


def run_trainer(
    system: System,
    address: str,
    scenario: Scenario,
    warm_up_s: float,
    progress_path: Path,
    pipe: Connection,
) -> None:
    """Warms up, measures, drains, checks, and reports a ``Measured``."""
    progress = Progress(progress_path)
    workload = Workload(scenario)
    check = _Check(workload)
    source = system.source(address, workload)
    pipe.send(Ready({"trainer": os.getpid(), **source.pids()}))
    pipe.recv()
    progress.phase = WARMING_UP
    ends = time.monotonic() + warm_up_s
    began, begun_at = 0, 0.0
    latencies_ms: list[float] = []
    measured: Measured | None = None
    while progress.consumed < progress.limit:
        taken = source.take()
        if scenario.one_at_a_time and progress.phase == MEASURING:
            latencies_ms.append((time.monotonic_ns() - progress.sent_ns) / 1e6)
        progress.consumed += len(taken.uids)
        _train(taken.packed)
        check.add(taken)
        now = time.monotonic()
        if now < ends:
            continue
        if progress.phase == WARMING_UP:
            progress.phase = MEASURING
            began, begun_at, ends = progress.consumed, now, now + scenario.measure_s
        elif progress.phase == MEASURING:
            measured = Measured(progress.consumed - began, now - begun_at, latencies_ms)
            # No replica can have passed this number yet, so all of them end there.
            ahead = progress.consumed + scenario.ahead_max + scenario.block
            a_batch = scenario.rollouts_per_batch
            progress.limit = -(-ahead // a_batch) * a_batch
            progress.phase = DRAINING
    check.finish(progress.limit)
    assert measured is not None
    pipe.send(measured)
    source.close()


def _train(packed: Packed | None) -> float:
    """Stands for the trainer's work: reads the arrays, cheaply, and in the same way for all."""
    if packed is None:
        return 0.0
    strided = packed.tokens[::STRIDE].sum() + packed.logprobs[::STRIDE].sum()
    named = sum(array[::STRIDE].sum() for array in packed.token_arrays.values())
    return float(packed.offsets.sum() + packed.rewards.sum() + strided + named)


class _Check:
    """Checks that every rollout came once, in a complete group, with the arrays that were sent."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._taken: list[tuple[Sequence[str | bytes], NDArray[np.int32] | None]] = []

    def add(self, taken: Taken) -> None:
        """Compares one rollout of the batch now; keeps uids and groups for ``finish``."""
        groups = None
        if taken.packed is not None:
            self._compare(taken.uids, taken.packed, row=len(self._taken) % len(taken.uids))
            groups = taken.packed.group_index.copy()
        self._taken.append((taken.uids, groups))

    def finish(self, total: int) -> None:
        counts = np.zeros(total, np.int64)
        for batch, (uids, groups) in enumerate(self._taken):
            numbers = np.array([number_of(uid) for uid in uids])
            if numbers.max() >= total:
                raise WrongDelivery(f"batch {batch} has rollout {numbers.max()} of {total}")
            np.add.at(counts, numbers, 1)
            if groups is not None and not self._complete_groups(numbers, groups):
                raise WrongDelivery(f"batch {batch} is not made of complete groups")
        if not (counts == 1).all():
            raise WrongDelivery(
                f"of {total} rollouts {(counts == 0).sum()} are missing and "
                f"{(counts > 1).sum()} came more than once"
            )

    def _compare(self, uids: Sequence[str | bytes], packed: Packed, row: int) -> None:
        sent = self._workload.rollout(number_of(uids[row]))
        begin, end = int(packed.offsets[row]), int(packed.offsets[row + 1])
        middle = begin + len(sent.prompt)
        same = (
            packed.prompt_lengths[row] == len(sent.prompt)
            and np.array_equal(packed.tokens[begin:middle], sent.prompt)
            and np.array_equal(packed.tokens[middle:end], sent.output)
            and np.array_equal(packed.logprobs[middle:end], sent.logprobs)
            and not packed.loss_mask[begin:middle].any()
            and packed.loss_mask[middle:end].all()
            and packed.rewards[row] == sent.reward
            and all(
                np.array_equal(packed.token_arrays[name][middle:end], sent.token_arrays[name])
                and not packed.token_arrays[name][begin:middle].any()
                for name in self._workload.scenario.columns
            )
        )
        if not same:
            raise WrongDelivery(f"{sent.uid} is not what was sent")

    def _complete_groups(self, numbers: NDArray[np.int64], index: NDArray[np.int32]) -> bool:
        """True where rows share an index if and only if their rollouts share a group."""
        scenario = self._workload.scenario
        pairs = np.stack((numbers // scenario.group_size, index.astype(np.int64)))
        together, sizes = np.unique(pairs, axis=1, return_counts=True)
        groups, indexes = (np.unique(row).size for row in pairs)
        return together.shape[1] == groups == indexes == scenario.groups_per_batch and bool(
            (sizes == scenario.group_size).all()
        )
