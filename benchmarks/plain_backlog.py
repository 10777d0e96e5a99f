"""The plain Ray actor beside a replay buffer: as many groups, in its memory."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.sealed_backlog import GROUP_SIZE, TOKENS
from benchmarks.systems.packing import Member
from benchmarks.systems.ray_actor import ACTOR, RayPublisher, Rollouts
from benchmarks.systems.ray_cluster import fresh_ray
from benchmarks.workload import PROMPT_TOKENS, Rollout

PAUSE_S = 0.1  # In which a trainer trains.


class Backlog(Rollouts):
    """The plain actor, with groups in its lists from the beginning; batches are drawn from all."""

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(0)
        self._filled = 0

    def fill(self, groups: int) -> None:
        """Adds groups until so many are ready."""
        while self._joiner.ready < groups:
            number, self._filled = self._filled, self._filled + 1
            output = self._random.integers(0, 150_000, TOKENS).astype(np.int32).tobytes()
            logprobs = self._random.random(TOKENS, np.float32).tobytes()
            member = Member(f"old-{number}", output[: 4 * PROMPT_TOKENS], output, logprobs, 1.0)
            self._joiner.add(f"old-{number // GROUP_SIZE}", member)

    def _take(self, groups: int) -> list[Member]:
        return self._joiner.sample(groups)


def publish_steadily(address: str, series: int, per_s: float, pipe: Connection) -> None:
    """A process that sends the plain actor ``per_s`` groups a second until it is killed, with other
    ids than another series has."""
    publisher = RayPublisher(address)
    pipe.send("ready")
    tokens, logprobs = np.arange(TOKENS, dtype=np.int32), np.zeros(TOKENS, np.float32)
    number, due = 0, time.monotonic()
    while True:
        for _ in range(GROUP_SIZE):
            uid, group = f"new-{series}-{number}", f"new-{series}-{number // GROUP_SIZE}"
            prompt = tokens[:PROMPT_TOKENS]
            rollout = Rollout(
                number, uid, group, group, "step-0", 0, prompt, tokens, logprobs, {}, 1.0
            )
            publisher.publish(rollout)
            number += 1
        due += 1 / per_s
        time.sleep(max(0.0, due - time.monotonic()))


def take_steadily(folder: Path, pipe: Connection) -> None:
    """A process with a plain actor: it fills the actor up to each number that it is sent, and takes
    a batch whenever it is told to, and sends how many milliseconds that took."""
    with fresh_ray(folder) as services:
        actor: Any = ray.remote(Backlog).options(name=ACTOR, num_cpus=0).remote()
        pipe.send(services.address)
        while (asked := pipe.recv()) != "end":
            if isinstance(asked, int):
                ray.get(actor.fill.remote(asked))
                pipe.send("filled")
                continue
            time.sleep(PAUSE_S)
            begun = time.perf_counter()
            batch = ray.get(actor.next_batch.remote())
            pipe.send(1e3 * (time.perf_counter() - begun))
            assert batch is not None, "fewer groups are ready than a batch has"
