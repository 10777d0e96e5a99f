"""Measures how fresh what is trained is, where workers could sample ten times what is trained.

``python -m benchmarks.freshness``: eight processes with 20 coroutines each dispatch groups, sample
them for up to a step, which here is a sleep, and publish them under the newest policy that they
know. A trainer takes a batch, trains for a second, which is a sleep too, and publishes its next
policy. First without admission, and then with it; both once more where a tenth of the groups takes
up to twelve steps; and with it while a worker's process, or the sampler's actor, is killed every
ten seconds; both once more where the sampler draws newer policies more often. Last, with admission,
a worker's process is killed every 2.5 s; and, with the slow groups, every 10 s and every 2.5 s.

The bound on staleness is the default one in all of them; what it cost is the share of what was
generated that was dropped as stale. ``lost`` is what kills make unavoidable, of each that is
trained: groups that were open in a worker when it was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.one_round import Child, child
from benchmarks.systems.interface import START_TIMEOUT_S
from benchmarks.systems.rollstream_services import services
from benchmarks.systems.rollstream_source import SAMPLER
from benchmarks.workload import ENVIRONMENT
from rollstream.producers import AsyncRolloutProducer, NotAdmitted, RunOver
from rollstream.runtime.config.load import load_config
from rollstream.sampler import SamplerClient
from rollstream.sampler.actor.loopback_ray import RAY_NAMESPACE
from rollstream.sampler.api.client import actor_name

PROCESSES, COROUTINES = 8, 20
GROUP_SIZE, TOKENS = 4, 64
BATCH_GROUPS = 32
STEP_S = 1.0
FASTER = 10.0  # So many times the trainer's pace do the workers sample.
SLOW, SLOW_STEPS = 0.1, 12.0
RARELY_S, OFTEN_S = 10.0, 2.5  # Between kills.
TIMEOUT_S = 60.0
WARM_UP = 10  # Steps that are not counted: the first groups were begun before there was a policy.


@dataclass(frozen=True)
class Case:
    """What a run has.

    Attributes:
        admission: whether the sampler bounds what is begun.
        recency: the sampler's: ``uniform``, or how much newer policies are preferred. Almost every
            example has one group.
        slow: whether a tenth of the groups takes up to twelve steps.
        killed: what is killed every so often: ``replica``, ``sampler``, or nothing.
        every_s: how often.
    """

    admission: bool
    slow: bool = False
    killed: str = ""
    recency: str = "uniform"
    every_s: float = RARELY_S

    def __str__(self) -> str:
        words = ["admission" if self.admission else "without"]
        words += [self.recency] * (self.recency != "uniform")
        words += ["slow tail"] * self.slow
        words += [f"{self.killed} killed each {self.every_s:g} s"] * bool(self.killed)
        return ", ".join(words)


CASES = (
    Case(admission=False),
    Case(admission=True),
    Case(admission=False, slow=True),
    Case(admission=True, slow=True),
    Case(admission=True, killed="replica"),
    Case(admission=True, killed="sampler"),
    Case(admission=False, recency="exp"),
    Case(admission=True, recency="exp"),
    Case(admission=True, killed="replica", every_s=OFTEN_S),
    Case(admission=True, slow=True, killed="replica"),
    Case(admission=True, slow=True, killed="replica", every_s=OFTEN_S),
)


@dataclass
class Found:
    """Of one run.

    Attributes:
        lags: of each trained rollout, in steps.
        waited_s: of the trainer for batches.
        seconds: of the steps that were counted.
        trained: groups in batches.
        begun: groups that workers began; those of workers that were killed among them.
        generated: groups that workers published whole.
        dropped: groups by the sampler's reason.
    """

    lags: list[int] = field(default_factory=list)
    waited_s: float = 0.0
    seconds: float = 0.0
    trained: int = 0
    begun: int = 0
    generated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def run_worker(number: int, folder: Path, bootstrap: str, slow: bool, pipe: Connection) -> None:
    """One process of env workers, until it is killed."""
    pipe.send("ready")
    asyncio.run(_work(number, folder, bootstrap, slow))


async def _work(number: int, folder: Path, bootstrap: str, slow: bool) -> None:
    dice = random.Random(f"{number} {os.getpid()}")
    sample_s = _sample_s()
    begun, ended = (
        (folder / f"worker-{number}.{what}").open("ab", buffering=0) for what in ("begun", "ended")
    )
    tokens, logprobs = np.arange(TOKENS, dtype=np.int32), np.zeros(TOKENS, np.float32)

    async def sample(producer: AsyncRolloutProducer) -> None:
        while True:
            example = f"example-{dice.randrange(10_000)}"
            try:
                async with producer.dispatch(
                    example_id=example, group_size=GROUP_SIZE, timeout_s=TIMEOUT_S
                ) as group:
                    begun.write(b".")
                    policy = await producer.policy(timeout_s=TIMEOUT_S)
                    long = slow and dice.random() < SLOW
                    longest_s = SLOW_STEPS * STEP_S if long else 2 * sample_s
                    await asyncio.sleep(dice.uniform(0, longest_s))
                    publish = partial(
                        group.publish, policy=policy, prompt_tokens=tokens[:16],
                        output_tokens=tokens, logprobs=logprobs,
                    )  # fmt: skip
                    await asyncio.gather(
                        *(publish(reward=float(dice.random() < 0.5)) for _ in range(GROUP_SIZE))
                    )
                ended.write(b".")
            except (NotAdmitted, RunOver):
                continue

    async with AsyncRolloutProducer(
        bootstrap, environment=ENVIRONMENT, replica_id=f"replica-{number}"
    ) as producer:
        await producer.policy(timeout_s=TIMEOUT_S)  # Before it nothing bounds what is begun.
        await asyncio.gather(*(sample(producer) for _ in range(COROUTINES)))


def measure(case: Case, steps: int) -> Found:
    """One run on a Kafka, sealers and a Ray of its own."""
    found = Found()
    with tempfile.TemporaryDirectory(prefix="bench-fresh-") as name, ExitStack() as stack:
        folder = Path(name)
        settings = (
            f"groups_per_step = {BATCH_GROUPS}\n" if case.admission else "admission = false\n"
        )
        settings += f'recency = "{case.recency}"\n'
        started = services(folder, environment="flush_interval_s = 0.15\n", sampler=settings)
        bootstrap, _, config = stack.enter_context(started).address.partition(" ")
        client = stack.enter_context(SamplerClient.attach(SAMPLER, config=config))
        stack.callback(_end_actor, config)
        client.resume(None)
        client.publish_policy(0, policy_version="step-0")
        start = partial(_worker, folder, bootstrap, case.slow)
        workers = [stack.enter_context(start(number)) for number in range(PROCESSES)]
        stack.enter_context(_killing(case, client, workers, start))
        for step in range(WARM_UP + steps):
            begun_s = time.perf_counter()
            batch = client.next_batch(step, BATCH_GROUPS, timeout_s=TIMEOUT_S)
            waited_s = time.perf_counter() - begun_s
            time.sleep(STEP_S)
            client.ack(batch)
            client.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            client.checkpointed(step)
            if step >= WARM_UP:
                found.lags += (step - batch.weight_steps).tolist()
                found.waited_s += waited_s
                found.seconds += time.perf_counter() - begun_s
        found.trained = (WARM_UP + steps) * BATCH_GROUPS
        found.begun, found.generated = (
            sum(file.stat().st_size for file in folder.glob(f"worker-*.{what}"))
            for what in ("begun", "ended")
        )
        outcomes = client.stats().outcomes
        found.dropped = {reason: count for reason, count in outcomes.items() if count}
    return found


def _end_actor(config: str) -> None:
    """It would serve the next run from the logs of this one."""
    name = actor_name(SAMPLER, load_config(config))
    ray.kill(ray.get_actor(name, namespace=RAY_NAMESPACE))


@contextmanager
def _worker(folder: Path, bootstrap: str, slow: bool, number: int) -> Iterator[Child]:
    arguments = number, folder, bootstrap, slow
    with child(f"worker-{number}", run_worker, arguments) as started:
        assert started.receive(START_TIMEOUT_S) == "ready"
        yield started


@contextmanager
def _killing(case: Case, client: SamplerClient, workers: list[Child], start: Any) -> Iterator[None]:
    """Kills what the case names until the block ends; a worker has a successor at once."""
    ends = threading.Event()
    dice = random.Random(0)

    def kill() -> None:
        with ExitStack() as successors:
            while not ends.wait(case.every_s):
                if case.killed == "sampler":
                    os.kill(client.stats().pid, signal.SIGKILL)
                    continue
                number = dice.randrange(PROCESSES)
                workers[number].process.kill()
                workers[number] = successors.enter_context(start(number))
            ends.wait()

    thread = threading.Thread(target=kill, name="kills", daemon=True)
    if case.killed:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        if case.killed:
            thread.join()


def _lost(case: Case) -> float:
    """Groups that kills of workers make unavoidable, of each that is trained: a worker's are lost
    that it has open, which are as many as it begins while one is sampled."""
    if case.killed != "replica":
        return 0.0
    mean_s = (1 - SLOW) * _sample_s() + SLOW * SLOW_STEPS * STEP_S / 2 if case.slow else _sample_s()
    return mean_s / PROCESSES / case.every_s


def _sample_s() -> float:
    """How long a group is sampled, so that all coroutines together sample at their pace, were none
    ever held back."""
    return PROCESSES * COROUTINES * STEP_S / (FASTER * BATCH_GROUPS)


def _report(found: dict[Case, Found]) -> str:
    names = ("mean lag", "largest", "waited", "generated/trained", "begun/trained", "lost", "stale")
    lines = [f"{'':48}" + "".join(f"{name:>18}" for name in names)]
    for case, one in found.items():
        stale = one.dropped.get("stale", 0) / max(1, one.generated)
        figures = (
            f"{np.mean(one.lags):.2f}",
            f"{max(one.lags)}",
            f"{one.waited_s / one.seconds:.1%}",
            f"{one.generated / one.trained:.3f}",
            f"{one.begun / one.trained:.3f}",
            f"{_lost(case):.3f}",
            f"{stale:.2%}",
        )
        lines.append(f"{case!s:48}" + "".join(f"{figure:>18}" for figure in figures))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="that are counted, of each case")
    parser.add_argument("--case", type=int, nargs="*", default=range(len(CASES)), help="by number")
    arguments = parser.parse_args()
    found: dict[Case, Found] = {}
    for number in arguments.case:
        case = CASES[number]
        found[case] = measure(case, arguments.steps)
        print(f"{case}: {found[case].dropped}", flush=True)
    print(_report(found))


if __name__ == "__main__":
    main()
