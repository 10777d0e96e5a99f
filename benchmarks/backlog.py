"""Measures what a batch costs that comes from a replay buffer instead of a small queue.

``python -m benchmarks.backlog``: groups of eight rollouts of 1,024 tokens are sealed, and a trainer
takes batches of 64 while 50 groups a second come, with a pause after each batch in which it would
train: through Ray, and beside it from a plain Ray actor that has as many groups in lists; then once
more with cold pages. In one process, without arrivals: beside an acknowledged append and a copy of
the batch's bytes; of zstd files; and batches of 4 groups with router arrays, of 402 KB a rollout,
beside a copy of their bytes into a fresh buffer.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import ray

from benchmarks.one_round import child
from benchmarks.plain_backlog import PAUSE_S, publish_steadily, take_steadily
from benchmarks.sealed_backlog import SealedBacklog, seal_steadily
from benchmarks.systems.interface import START_TIMEOUT_S
from benchmarks.systems.kafka_broker import fresh_kafka
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config
from rollstream.sampler import Batch, Sampler, SamplerApi, SamplerClient
from rollstream.streams.broker import Delivery
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

BATCH_GROUPS, WIDE_BATCH_GROUPS = 64, 4
COMPARED_GROUPS, WIDE_GROUPS = 4_000, 200  # In one process.
PER_S = 50.0
TIMEOUT_S = 120.0
WARM_UP = 5  # Batches that are not measured.
CHECKPOINT_EVERY = 16
APPENDED_BYTES = 4_096  # About as large as the event of a batch.
CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
[store]
root = "{root}"
[environments.bench]
partitions = 1
[environments.compared]
partitions = 1
[environments.zipped]
partitions = 1
[environments.wide]
partitions = 1
[samplers.bench]
environments = ["bench"]
max_policy_lag = -1
[samplers.compared]
environments = ["compared"]
max_policy_lag = -1
[samplers.zipped]
environments = ["zipped"]
max_policy_lag = -1
[samplers.wide]
environments = ["wide"]
max_policy_lag = -1
"""
Times = dict[str, list[float]]


def main() -> None:
    arguments = _arguments()
    times: Times = {}
    with tempfile.TemporaryDirectory(prefix="bench-backlog-") as name, ExitStack() as stack:
        folder = Path(name)
        kafka = stack.enter_context(fresh_kafka(folder))
        config = folder / "rollstream.toml"
        root = folder / "store"
        config.write_text(CONFIG.format(bootstrap=kafka.bootstrap, root=root.as_uri()))
        create_deployment(load_config(config), timeout_s=START_TIMEOUT_S)
        steps = arguments.steps
        if not arguments.ray_only:
            _in_process(config, steps, times)
        _through_ray(config, root, arguments.groups, steps, times)
    print(_report(times))


def _through_ray(config: Path, root: Path, sizes: Sequence[int], steps: int, times: Times) -> None:
    """Rollstream and the plain actor in turn, while groups come to both. Both have so many groups
    again before each temperature: they take more than come."""
    with (
        SamplerClient.attach("bench", config=config) as sampler,
        child("plain actor", take_steadily, (config.parent,)) as plain,
    ):
        trainer = Trainer(sampler, BATCH_GROUPS)
        address = plain.receive(START_TIMEOUT_S)
        for number, (groups, cold) in enumerate(product(sizes, (None, root))):
            first = (number + 1) * 1_000_000
            backlog = SealedBacklog(config, "bench")
            backlog.seal(first, max(0, groups - sampler.stats().ready.get("bench", 0)))
            backlog.close()
            plain.pipe.send(groups)
            plain.receive(10 * START_TIMEOUT_S)
            _until(lambda: sampler.stats().ready.get("bench", 0) >= groups)  # noqa: B023
            arriving = str(config), "bench", first + 500_000, PER_S
            with (
                child("arrivals", seal_steadily, arriving) as sealed,
                child("plain arrivals", publish_steadily, (address, number, PER_S)) as published,
            ):
                for arrivals in (sealed, published):
                    assert arrivals.receive(START_TIMEOUT_S) == "ready"
                of = f"{groups:,} ready, through Ray" + (", cold" if cold else "")
                beside = times[f"{of}, plain Ray actor"] = []
                found = times[of] = []
                for step in range(-WARM_UP, steps):
                    taken = trainer.take(1, cold=cold)
                    plain.pipe.send("next batch")
                    taken.append(plain.receive(TIMEOUT_S))
                    if step >= 0:
                        found.append(taken[0])
                        beside.append(taken[1])
        plain.pipe.send("end")
        plain.process.join(START_TIMEOUT_S)
    ray.shutdown()


def _in_process(config: Path, steps: int, times: Times) -> None:
    settings = load_config(config)
    appended = times["an acknowledged append"] = []
    for name, groups, options in (
        ("compared", COMPARED_GROUPS, {}),
        ("zipped", COMPARED_GROUPS, {"compression": "zstd"}),
        ("wide", WIDE_GROUPS, {"experts": True}),
    ):
        backlog = SealedBacklog(config, name, **options)
        backlog.seal(0, groups)
        backlog.close()
        wide = name == "wide"
        with Sampler(name, config=settings) as sampler, _appending(config) as append:
            columns = ["routed_experts"] if wide else []
            trainer = Trainer(sampler, WIDE_BATCH_GROUPS if wide else BATCH_GROUPS, columns)
            trainer.take(WARM_UP)
            copies = times[f"{name}, a copy of its bytes"] = []
            taken = times[f"{name}, in process"] = []
            for _ in range(min(steps, groups // trainer.num_groups - 6)):
                if name == "compared":
                    appended.append(append())
                taken += trainer.take(1)
                copies.append(_copied(trainer.newest))


class Trainer:
    """Takes batch after batch."""

    def __init__(self, sampler: SamplerApi, num_groups: int, columns: Sequence[str] = ()) -> None:
        self.num_groups = num_groups
        self._sampler, self._columns = sampler, columns
        self._step = sampler.resume(None)
        self.sealed = 0
        self.newest: Batch | None = None

    def take(self, steps: int, *, cold: Path | None = None) -> list[float]:
        """Milliseconds of each ``next_batch``; after each batch the store's pages are dropped where
        they are to be cold, then it is trained on and acked."""
        found = []
        for _ in range(steps):
            if cold is not None:
                _drop_pages(cold)
            time.sleep(PAUSE_S)
            if self.newest is not None:
                self._sampler.ack(self.newest)
                if self._step % CHECKPOINT_EVERY == 0:
                    self._sampler.checkpointed(self._step - 1)
            begun = time.perf_counter()
            self.newest = self._sampler.next_batch(
                self._step, self.num_groups, timeout_s=TIMEOUT_S, columns=self._columns
            )
            found.append(1e3 * (time.perf_counter() - begun))
            self._step += 1
        return found


def _copied(batch: Batch | None) -> float:
    """Milliseconds that a copy of the batch's arrays into a fresh buffer takes."""
    assert batch is not None
    arrays = [array.reshape(-1).view(np.uint8) for array in batch.arrays().values() if array.size]
    begun = time.perf_counter()
    into = np.empty(sum(map(len, arrays)), np.uint8)
    at = 0
    for array in arrays:
        into[at : at + len(array)] = array
        at += len(array)
    return 1e3 * (time.perf_counter() - begun)


def _drop_pages(root: Path) -> None:
    os.sync()
    for path in (root / "groups").rglob("*.parquet"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


@contextmanager
def _appending(config: Path) -> Iterator[Callable[[], float]]:
    """A call that appends a record and returns how many milliseconds its acknowledgement took."""
    settings = load_config(config)
    broker = KafkaBroker(settings.kafka.bootstrap)
    writer = broker.writer(linger_ms=0.0, retries=False)
    topic = Layout.of(settings.kafka).dead_letters()
    delivered: list[Delivery] = []

    def append() -> float:
        delivered.clear()
        begun = time.perf_counter()
        writer.append(topic, bytes(APPENDED_BYTES), partition=0, on_delivery=delivered.append)
        while not delivered:
            writer.poll(1.0)
        assert delivered[0].error is None, delivered[0].error
        return 1e3 * (time.perf_counter() - begun)

    try:
        yield append
    finally:
        broker.close()


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10 * START_TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the groups are not ready")
        time.sleep(0.1)


def _report(times: Times) -> str:
    lines = [f"{'ms':44}{'p50':>9}{'p90':>9}{'p99':>9}{'number':>8}"]
    p50, p99 = {}, {}
    for name, values in times.items():
        p50[name], p90, p99[name] = np.percentile(values, (50, 90, 99))
        lines.append(f"{name:44}{p50[name]:9.2f}{p90:9.2f}{p99[name]:9.2f}{len(values):8}")
    lines.append("")
    for name, of_actor in p50.items():
        of = name.removesuffix(", plain Ray actor")
        if of != name:
            lines.append(
                f"{of}: {p50[of] / of_actor:.2f} x the plain actor's p50, "
                f"{p99[of] / p99[name]:.2f} x its p99"
            )
    if "compared, in process" in p50:
        both = p50["an acknowledged append"] + p50["compared, a copy of its bytes"]
        plain, zipped = p50["compared, in process"], p50["zipped, in process"]
        wide = p50["wide, in process"] / p50["wide, a copy of its bytes"]
        lines += [
            f"in process: {plain / both:.2f} x an append and a copy; zstd {zipped / plain:.2f} x",
            f"wide, in process: {wide:.2f} x the copy",
        ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--groups", type=int, nargs="*", default=[10_000, 50_000], help="ready, rising"
    )
    parser.add_argument("--steps", type=int, default=100, help="measured, of each kind")
    parser.add_argument("--ray-only", action="store_true", help="nothing in this process")
    found = parser.parse_args()
    if (WARM_UP + found.steps) * BATCH_GROUPS > min(found.groups):
        parser.error(f"{found.steps} steps take more than {min(found.groups)} groups")
    return found


if __name__ == "__main__":
    main()
