"""Measures what a batch costs the sampler, by who reads its rows and by their length.

``python -m benchmarks.payloads``: a trainer in another process asks the Ray actor for batches of
groups of 256 and of 8,192 tokens, in turn with ``payloads="sampler"`` and ``"rank"``. The table has
the actor's processor time a batch, all its threads together, less what it takes in as much time
while nobody asks. Where ranks read for themselves it must not grow with tokens.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import numpy as np
import ray

from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S
from benchmarks.systems.rollstream_services import ANY_LAG, services
from benchmarks.systems.rollstream_source import SAMPLER
from benchmarks.workload import ENVIRONMENT
from rollstream.producers import RolloutProducer
from rollstream.sampler import SamplerClient
from rollstream.sampler.decide.batches.next_batch import PayloadsBy

TOKENS = (256, 8_192)
GROUP_SIZE = 8
BATCH_GROUPS = 16
WARM_UP_BATCHES = 5  # Of each kind: imports, caches, and the first pages of Ray's store.
IDLE_S = 5.0
WAYS: tuple[PayloadsBy, ...] = get_args(PayloadsBy)


def main() -> None:
    steps = len(WAYS) * (WARM_UP_BATCHES + _arguments().batches)
    settings = f"{ANY_LAG}max_open_batches = {len(TOKENS) * steps + 1}\n"
    print(f"{'actor, ms a batch':24}{'p25':>8}{'p50':>8}{'p75':>8}{'batches':>9}")
    with tempfile.TemporaryDirectory(prefix="bench-payloads-") as name, ExitStack() as stack:
        address = stack.enter_context(services(Path(name), sampler=settings)).address
        bootstrap, _, config = address.partition(" ")
        stack.callback(ray.shutdown)  # Once the client has left.
        sampler = stack.enter_context(SamplerClient.attach(SAMPLER, config=config))
        step = sampler.resume(None)
        for tokens in TOKENS:
            _publish(bootstrap, tokens, steps * BATCH_GROUPS)
            for way, spent in _spent(sampler, step, steps).items():
                p25, p50, p75 = np.percentile(spent, (25, 50, 75))
                row = f"{tokens} tokens, {way}"
                print(f"{row:24}{p25:8.2f}{p50:8.2f}{p75:8.2f}{len(spent):9}", flush=True)
            step += steps


def _spent(sampler: SamplerClient, first: int, steps: int) -> dict[PayloadsBy, list[float]]:
    """The actor's milliseconds of processor time for each batch, once all groups are ready."""
    until = time.monotonic() + START_TIMEOUT_S
    while sampler.stats().ready.get(ENVIRONMENT, 0) < steps * BATCH_GROUPS:
        if time.monotonic() > until:
            raise TimeoutError(f"ready are {sampler.stats().ready}")
        time.sleep(0.2)
    pid = sampler.stats().pid
    idle = _processor_ms(pid)
    time.sleep(IDLE_S)
    idle = (_processor_ms(pid) - idle) / IDLE_S
    spent: dict[PayloadsBy, list[float]] = {way: [] for way in WAYS}
    for step in range(first, first + steps):
        way = WAYS[step % len(WAYS)]
        before, begun = _processor_ms(pid), time.monotonic()
        sampler.next_batch(step, BATCH_GROUPS, timeout_s=STOP_TIMEOUT_S, payloads=way)
        idled = idle * (time.monotonic() - begun)
        spent[way].append(_processor_ms(pid) - before - idled)
    return {way: each[WARM_UP_BATCHES:] for way, each in spent.items()}


def _publish(bootstrap: str, tokens: int, groups: int) -> None:
    output = np.arange(tokens, dtype=np.int32)
    logprobs = np.zeros(tokens, np.float32)
    with RolloutProducer(bootstrap, environment=ENVIRONMENT, replica_id="worker") as worker:
        for number in range(groups * GROUP_SIZE):
            group = number // GROUP_SIZE
            worker.publish(
                rollout_uid=f"rollout-{tokens}-{number}",
                group_uid=f"group-{tokens}-{group}",
                group_size=GROUP_SIZE,
                example_id=f"example-{tokens}-{group}",
                policy_version="step-0",
                weight_step=0,
                prompt_tokens=output[:128],
                output_tokens=output,
                logprobs=logprobs,
                reward=1.0,
                stop_reason="stop",
            )


def _processor_ms(pid: int) -> float:
    """Of all threads of a process, so far: the kernel's own count, in nanoseconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e6


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20, help="of each length, each way")
    return parser.parse_args()


if __name__ == "__main__":
    main()
