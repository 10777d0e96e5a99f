"""Measures packing: how full and how even packs are, and what planning and filling take.

``python -m benchmarks.packing``: batches of 64 groups of eight with lognormal responses, cut to a
pack's length, for eight ranks. Beside it stands first fit, in the order of arrival and with the
longest first, whose packs go to ranks in turn; and the lower bound, the fewest packs that hold the
tokens with equal counts on every rank. No Kafka, and no processes.

From batches to packed arrays is measured beside ``memcpy`` of arrays of the packs' sizes, array for
array, in turn and each batch once, so that caches hold none of what is read; what is written was
freed just before, and caches hold much of it, for both. The shares are of each pair. The last
column is of the machine's ``memcpy``: of arrays that are several times as large as its caches, as
STREAM measures it (McCalpin 1995). Freed memory stays mapped, so that nothing pays for page faults.
Times are processor time; GB/s counts the bytes written, all rectangles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenarios import GROUPS_PER_BATCH
from benchmarks.workload import LOGNORMAL_MAX, LOGNORMAL_MEAN, LOGNORMAL_SIGMA, PROMPT_TOKENS
from rollstream.sampler import Batch, Examples, PackPlan, Packs, plan_packs
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.training.packs.plan import ATTENTION_WEIGHT
from rollstream.store.warm_memory import keep_memory_warm

BATCHES = 1_000
FILLED_BATCHES = 64
RANKS = 8
GROUP_SIZE = 8
LENGTHS = (8_192, 32_768)
PERCENTILES = (50, 99, 100)
LARGE_BYTES = 256 * 1024 * 1024
LARGE_COPIES = 9


class Row(NamedTuple):
    """Of one way of packing, over all batches; each [batches].

    Attributes:
        rounds_over: packs a rank above the lower bound.
        fill: tokens over what the packs could hold.
        imbalance: of the ranks' costs, the largest over the mean.
        micro_steps: the same of each micro-step, in all.
        ms: that the plan took, in processor time.
    """

    rounds_over: list[float]
    fill: list[float]
    imbalance: list[float]
    micro_steps: list[float]
    ms: list[float]

    def text(self, name: str) -> str:
        over = np.array(self.rounds_over)
        shares = f"{np.mean(over == 0):9.1%}{np.mean(over == 1):8.1%}{np.mean(over > 1):8.1%}"
        fill = f"{np.median(self.fill):8.3f}"
        of_ranks = "".join(f"{p:8.3f}" for p in np.percentile(self.imbalance, PERCENTILES))
        of_steps = "".join(f"{p:8.3f}" for p in np.percentile(self.micro_steps, PERCENTILES[:2]))
        ms = "".join(f"{p:8.2f}" for p in np.percentile(self.ms, PERCENTILES))
        return f"{name:24}{shares}{fill}{of_ranks}{of_steps}{ms}"


def main() -> None:
    arguments = _arguments()
    keep_memory_warm()
    for length in LENGTHS:
        print(f"\npacks of {length:,} tokens, {RANKS} ranks, {arguments.batches:,} batches")
        print(
            f"{'':24}{'bound':>9}{'+1':>8}{'more':>8}{'fill':>8}{'ranks':>8}{'p99':>8}"
            f"{'max':>8}{'steps':>8}{'p99':>8}{'ms':>8}{'p99':>8}"
            f"{'max':>8}"
        )
        batches = [_lengths(seed, length) for seed in range(arguments.batches)]
        for name, way in WAYS.items():
            print(_row(way, batches, length).text(name), flush=True)
        _print_filling(length, min(arguments.batches, FILLED_BATCHES))


def _lengths(seed: int, longest: int) -> NDArray[np.int64]:
    centre = np.log(LOGNORMAL_MEAN) - LOGNORMAL_SIGMA**2 / 2
    count = GROUPS_PER_BATCH * GROUP_SIZE
    drawn = np.random.default_rng(seed).lognormal(centre, LOGNORMAL_SIGMA, count)
    responses = np.clip(drawn, 1, LOGNORMAL_MAX).astype(np.int64)
    return np.minimum(PROMPT_TOKENS + responses, longest)


Plan = list[list[list[int]]]
"""By rank and pack, the lengths in it."""


def _planned(lengths: NDArray[np.int64], length: int) -> Callable[[], Plan]:
    plan = plan_packs(lengths, length, ranks=RANKS)

    def of_plan() -> Plan:
        found: Plan = [[[] for _ in range(plan.packs_per_rank)] for _ in range(RANKS)]
        for n, rank, pack in zip(plan.lengths, plan.rank, plan.pack, strict=True):
            found[rank][pack].append(int(n))
        return found

    return of_plan


def _first_fit(lengths: Sequence[int], length: int) -> Callable[[], Plan]:
    packs: list[list[int]] = []
    spaces: list[int] = []
    for n in lengths:
        where = next((i for i, space in enumerate(spaces) if space >= n), len(packs))
        if where == len(packs):
            packs.append([])
            spaces.append(length)
        packs[where].append(n)
        spaces[where] -= n
    packs += [[] for _ in range(-len(packs) % RANKS)]
    return lambda: [packs[rank::RANKS] for rank in range(RANKS)]


WAYS: dict[str, Callable[[NDArray[np.int64], int], Callable[[], Plan]]] = {
    "plan_packs": _planned,
    "first fit": lambda lengths, length: _first_fit(lengths.tolist(), length),
    "first fit decreasing": lambda lengths, length: _first_fit(
        np.sort(lengths)[::-1].tolist(), length
    ),
}


def _row(
    way: Callable[[NDArray[np.int64], int], Callable[[], Plan]],
    batches: Sequence[NDArray[np.int64]],
    length: int,
) -> Row:
    row = Row([], [], [], [], [])
    for lengths in batches:
        seconds, made = _timed(partial(way, lengths, length))
        row.ms.append(seconds * 1e3)
        plan = made()
        if sorted(n for of_rank in plan for pack in of_rank for n in pack) != sorted(lengths):
            raise SystemExit("a plan has other examples than the batch")
        if max(sum(pack) for of_rank in plan for pack in of_rank) > length:
            raise SystemExit("a pack has more tokens than its length")
        costs = np.array(
            [[sum(n + n * n * ATTENTION_WEIGHT for n in pack) for pack in r] for r in plan]
        )
        packs, tokens = costs.size, int(lengths.sum())
        fewest = ceil(ceil(tokens / length) / RANKS)
        row.rounds_over.append(packs / RANKS - fewest)
        row.fill.append(tokens / (packs * length))
        mean = costs.sum() / RANKS
        row.imbalance.append(costs.sum(axis=1).max() / mean)
        row.micro_steps.append(costs.max(axis=0).sum() / mean)
    return row


def _print_filling(length: int, count: int) -> None:
    batches = [_batch(_lengths(seed, length), seed) for seed in range(count)]
    plans = [plan_packs(np.diff(batch.offsets), length, ranks=RANKS) for batch in batches]
    kinds = [a.dtype for a in Packs.of(Examples.of(batches[0]), plans[0]).arrays().values()]
    sizes = [plan.ranks * plan.packs_per_rank * length for plan in plans]
    written = np.array(sizes) * sum(kind.itemsize for kind in kinds)
    blocks = [np.ones(size, np.uint8) for size in written]
    sources = [[np.ones(n // RANKS, k) for _ in range(RANKS) for k in kinds] for n in sizes]
    seconds = np.empty((count, 4))
    for row, batch, plan, block, source in zip(
        seconds, batches, plans, blocks, sources, strict=True
    ):
        row[0], _ = _timed(block.copy)
        row[1], _ = _timed(partial(_copied, source))
        row[2], examples = _timed(partial(Examples.of, batch))
        row[3], _ = _timed(partial(_filled, examples, plan))
    in_one, copied, made, filled = seconds.T
    of_machine = _large_copies_per_s()
    print(
        f"{'processor time':24}{'ms':>9}{'GB/s':>8}{'of memcpy: p25':>16}{'p50':>8}{'p75':>8}"
        f"{f'of {of_machine / 1e9:.1f} GB/s':>16}"
    )
    for name, took in {
        "memcpy": copied,
        "memcpy of one block": in_one,
        "packs of all ranks": filled,
        "batch to packs": made + filled,
    }.items():
        shares = "".join(f"{p:8.2f}" for p in np.percentile(copied / took, (25, 50, 75)))
        rate = np.median(written / took)
        print(
            f"{name:24}{np.median(took) * 1e3:9.2f}{rate / 1e9:8.1f}{'':8}{shares}"
            f"{rate / of_machine:16.2f}",
            flush=True,
        )


def _large_copies_per_s() -> float:
    """Bytes that ``memcpy`` writes in a second where no cache holds them."""
    source, target = (np.full(LARGE_BYTES, value, np.uint8) for value in (1, 0))
    took = [_timed(partial(np.copyto, target, source))[0] for _ in range(LARGE_COPIES)]
    return LARGE_BYTES / float(np.median(took))


def _copied(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return [array.copy() for array in arrays]


def _filled(examples: Examples, plan: PackPlan) -> list[Packs]:
    return [Packs.of(examples, plan, rank=rank) for rank in range(RANKS)]


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.thread_time()
    result = call()
    return time.thread_time() - start, result


def _batch(lengths: NDArray[np.int64], seed: int) -> Batch:
    """A batch of these lengths; what ``Examples.of`` does not read of it says nothing."""
    rng = np.random.default_rng(seed)
    total, count = int(lengths.sum()), len(lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    loss_mask = np.arange(total) - np.repeat(offsets[:-1], lengths) >= PROMPT_TOKENS
    nothing: Any = None
    texts = ("",) * count
    return Batch(
        step=0,
        batch_id="",
        digest=b"",
        tokens=rng.integers(0, 150_000, total, np.int32),
        offsets=offsets,
        prompt_lengths=np.minimum(lengths, PROMPT_TOKENS).astype(np.int32),
        loss_mask=loss_mask,
        logprobs=np.where(loss_mask, -rng.random(total, np.float32), np.float32(0)),
        rewards=np.zeros(count, np.float32),
        reward_components={},
        group_index=np.arange(count, dtype=np.int32) // GROUP_SIZE,
        trajectory_index=np.arange(count, dtype=np.int32),
        trajectory_returns=rng.random(count, np.float32),
        uids=texts,
        weight_steps=np.zeros(count, np.int64),
        off_branch=np.zeros(count, np.bool_),
        environments=texts,
        example_ids=texts,
        policy_versions=("v",) * count,
        policy_epochs=np.zeros(count, np.int32),
        stop_reasons=texts,
        token_arrays=TokenArrays({}, {}),
        sampled=nothing,
        slots=(),
        columns=(),
        dp_rank=0,
        dp_size=1,
        policy_step=0,
        algorithm=0,
        current_step=0,
        groups_ready=0,
        waited_s=0.0,
        read_group=None,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES)
    return parser.parse_args()


if __name__ == "__main__":
    main()
