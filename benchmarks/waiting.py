"""Measures what hundreds of ranks that wait for groups cost others, and how soon they are served.

``python -m benchmarks.waiting``: a trainer acks batch after batch while 8 and then 256 calls of
``next_batch`` are awaited by four processes. Beside each ack a record is appended to Kafka, so that
both meet the same machine. Then groups are published, and each rank takes the time from the
broker's time-stamp of the flush with the last of them until it has its share. Beside it as many
calls of an actor that does nothing but let them wait and answer: what Ray itself takes for as many.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.one_round import Child, child
from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S
from benchmarks.systems.rollstream_services import ANY_LAG, services
from benchmarks.systems.rollstream_source import SAMPLER
from benchmarks.waiting_ranks import (
    BARE,
    BARE_NAMESPACE,
    TIMEOUT_S,
    BareActor,
    Wait,
    run_ranks,
)
from benchmarks.workload import ENVIRONMENT
from rollstream.producers import RolloutProducer
from rollstream.runtime.config.load import load_config
from rollstream.sampler import Batch, SamplerClient
from rollstream.sampler.configuration import seal_logs_of
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

PROCESSES = 4
FEW, MANY = 8, 256  # Calls that wait.
SLOTS = 8  # Groups a batch that is waited for; ranks with the same slot are peers.
TOKENS = 1024
WARM_UP_ACKS = 50
APPENDED_BYTES = 256  # About as large as the event of an ack.
SHARE_BYTES = 12_288  # About as large as a share that is waited for.


@dataclass
class Times:
    """Milliseconds of single calls."""

    acks: dict[int, list[float]] = field(default_factory=dict)
    appends: dict[int, list[float]] = field(default_factory=dict)
    served: dict[int, list[float]] = field(default_factory=dict)
    bare: dict[int, list[float]] = field(default_factory=dict)


class Trainer:
    """The trainer, its env worker, and a writer of raw records."""

    def __init__(self, bootstrap: str, config: Path, sampler: SamplerClient) -> None:
        settings = load_config(config)
        self.sampler = sampler
        self.step = sampler.resume(None)
        self._broker = KafkaBroker(bootstrap)
        self._raw: Writer = self._broker.writer(linger_ms=0.0, retries=False)
        self._raw_topic = Layout.of(settings.kafka).dead_letters()
        self._worker = RolloutProducer(bootstrap, environment=ENVIRONMENT, replica_id="worker")
        self._follower = Follower(self._broker, dict.fromkeys(seal_logs_of(SAMPLER, settings), 0))
        self._published = 0
        self._delivered: list[Delivery] = []

    def publish(self, groups: int) -> None:
        """Publishes groups of one rollout each, and waits until they are delivered."""
        tokens = np.arange(TOKENS, dtype=np.int32)
        logprobs = np.zeros(TOKENS, np.float32)
        for number in range(self._published, self._published + groups):
            self._worker.publish(
                rollout_uid=f"rollout-{number}",
                group_uid=f"group-{number}",
                group_size=1,
                example_id=f"example-{number}",
                policy_version="step-0",
                weight_step=0,
                prompt_tokens=tokens[:128],
                output_tokens=tokens,
                logprobs=logprobs,
                reward=1.0,
                stop_reason="stop",
            )
        self._published += groups
        self._worker.flush(STOP_TIMEOUT_S)

    def serve(self, batches: int) -> list[Batch]:
        """Serves batches of one group, to be acked."""
        self.publish(batches)
        served = []
        for _ in range(batches):
            served.append(self.sampler.next_batch(self.step, 1, timeout_s=TIMEOUT_S))
            self.step += 1
        return served

    def ack(self, batches: Sequence[Batch]) -> tuple[list[float], list[float]]:
        """Acks each, after a raw append; returns the times of appends and of acks."""
        appends, acks = [], []
        for batch in batches:
            begun = time.perf_counter()
            self._append()
            appended = time.perf_counter()
            self.sampler.ack(batch)
            acks.append(1e3 * (time.perf_counter() - appended))
            appends.append(1e3 * (appended - begun))
        return appends, acks

    def await_calls(self, count: int) -> None:
        """Returns once so many calls wait."""
        _until(lambda: self.sampler.stats().calls_waiting == count)

    def last_flush_us(self) -> int:
        """The broker's time-stamp of the newest event of the seal logs."""
        newest_us = 0
        while events := self._follower.poll(1000, 1.0):
            newest_us = max(newest_us, *(event.timestamp_us for event in events))
        return newest_us

    def close(self) -> None:
        self._follower.close()
        self._worker.close()
        self._broker.close()

    def _append(self) -> None:
        self._delivered.clear()
        self._raw.append(
            self._raw_topic,
            bytes(APPENDED_BYTES),
            partition=0,
            on_delivery=self._delivered.append,
        )
        while not self._delivered:
            self._raw.poll(1.0)
        if self._delivered[0].error is not None:
            raise self._delivered[0].error


def main() -> None:
    arguments = _arguments()
    times = Times()
    with tempfile.TemporaryDirectory(prefix="bench-waiting-") as name, ExitStack() as stack:
        settings = f"{ANY_LAG}max_open_batches = {100 + 2 * arguments.rounds * arguments.acks}\n"
        started = services(Path(name), environment="flush_interval_s = 0.15\n", sampler=settings)
        address = stack.enter_context(started).address
        bootstrap, _, config = address.partition(" ")
        stack.callback(ray.shutdown)  # Once the client has left.
        client = stack.enter_context(SamplerClient.attach(SAMPLER, config=config))
        trainer = Trainer(bootstrap, Path(config), client)
        stack.callback(trainer.close)
        bare: Any = ray.remote(BareActor).options(
            name=BARE, namespace=BARE_NAMESPACE, num_cpus=0, max_concurrency=2 * MANY
        )
        bare = bare.remote(SHARE_BYTES)
        ray.get(bare.parked.remote())  # It runs.
        with _ranks(config) as ranks:
            trainer.ack(trainer.serve(WARM_UP_ACKS))
            for number in range(arguments.rounds):
                for count in (FEW, MANY):
                    _measure(trainer, ranks, count, arguments, times)
                    _measure_bare(bare, ranks, count, arguments.batches, times)
                print(f"round {number + 1} of {arguments.rounds} done", flush=True)
    print()
    print(_report(times))


def _measure(
    trainer: Trainer, ranks: list[Child], count: int, arguments: argparse.Namespace, times: Times
) -> None:
    batches = trainer.serve(arguments.acks)
    for number in range(1 + arguments.batches):
        waited_for = trainer.step
        for one in ranks:
            one.pipe.send(Wait(waited_for, SLOTS, count // PROCESSES))
        trainer.await_calls(count)
        if number == 0:
            appends, acks = trainer.ack(batches)
            times.appends.setdefault(count, []).extend(appends)
            times.acks.setdefault(count, []).extend(acks)
        trainer.publish(SLOTS)
        got_us = [us for one in ranks for us in one.receive(TIMEOUT_S)]
        flushed_us = trainer.last_flush_us()
        served = [(us - flushed_us) / 1e3 for us in got_us]
        times.served.setdefault(count, []).extend(served)
        trainer.sampler.checkpointed(waited_for)
        trainer.step += 1


def _measure_bare(bare: Any, ranks: list[Child], count: int, batches: int, times: Times) -> None:
    for _ in range(1 + batches):
        for one in ranks:
            one.pipe.send(Wait(0, 0, count // PROCESSES))
        _until(lambda: ray.get(bare.parked.remote()) == count)
        gone_us = ray.get(bare.go.remote())
        got_us = [us for one in ranks for us in one.receive(TIMEOUT_S)]
        times.bare.setdefault(count, []).extend([(us - gone_us) / 1e3 for us in got_us])


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the calls do not wait")
        time.sleep(0.05)


@contextmanager
def _ranks(config: str) -> Iterator[list[Child]]:
    address = ray.get_runtime_context().gcs_address
    os.environ["RAY_AUTH_MODE"] = "token"  # As a Ray that was started with one asks for.
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(child(f"ranks-{number}", run_ranks, (config, address)))
            for number in range(PROCESSES)
        ]
        for one in ranks:
            assert one.receive(START_TIMEOUT_S) == "ready"
        yield ranks


def _report(times: Times) -> str:
    lines = [f"{'ms':32}{'p50':>8}{'p90':>8}{'p99':>8}{'number':>8}"]
    for name, by_count in (
        ("a raw append, {} wait", times.appends),
        ("an ack, {} wait", times.acks),
        ("flush to a rank, {} wait", times.served),
        ("a bare actor's reply, {} wait", times.bare),
    ):
        for count, values in by_count.items():
            p50, p90, p99 = np.percentile(values, (50, 90, 99))
            lines.append(f"{name.format(count):32}{p50:8.1f}{p90:8.1f}{p99:8.1f}{len(values):8}")
    p50 = {
        count: np.median(times.served[count]) / np.median(of) for count, of in times.bare.items()
    }
    p99 = {name: np.percentile(each, 99) for name, each in times.acks.items()}
    raw = np.percentile(times.appends[MANY], 99)
    lines += [
        "",
        f"p99 of an ack while {MANY} wait: {p99[MANY] / raw:.2f} x a raw append's, "
        f"{p99[MANY] / p99[FEW]:.2f} x its own while {FEW} wait",
        f"p50 from flush to a rank: {p50[FEW]:.1f} x a bare reply while {FEW} wait, "
        f"{p50[MANY]:.1f} x while {MANY} wait",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of few and of many that wait")
    parser.add_argument("--acks", type=int, default=300, help="of each round")
    parser.add_argument("--batches", type=int, default=10, help="that are waited for, each round")
    return parser.parse_args()


if __name__ == "__main__":
    main()
