"""A plain Ray actor: replicas call it for each rollout, and it joins groups and packs batches.

Nothing survives a crash. Many training loops start with this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import ray
from numpy.typing import NDArray

from benchmarks.scenarios import GROUPS_PER_BATCH, Scenario
from benchmarks.systems.interface import (
    STOP_TIMEOUT_S,
    TAKE_TIMEOUT_S,
    Packed,
    Services,
    Taken,
)
from benchmarks.systems.packing import Joiner, Member, pack
from benchmarks.systems.ray_cluster import connect, fresh_ray
from benchmarks.workload import Rollout, Workload

ACTOR = "rollouts"
POLL_S = 0.002
Fields = dict[str, Any]


class Rollouts:
    """The actor's class."""

    def __init__(self) -> None:
        self._joiner = Joiner()

    def add(self, rollout: Fields) -> None:
        arrays = (rollout["prompt"], rollout["output"], rollout["logprobs"])
        prompt, output, logprobs = (memoryview(array).cast("B") for array in arrays)
        member = Member(rollout["uid"], prompt, output, logprobs, rollout["reward"])
        self._joiner.add(rollout["group_uid"], member)

    def next_batch(self) -> tuple[list[str], dict[str, NDArray[Any]]] | None:
        """Uids and arrays of a batch; None while there are too few complete groups."""
        if self._joiner.ready < GROUPS_PER_BATCH:
            return None
        members = self._take(GROUPS_PER_BATCH)
        packed = pack(members)
        return [m.uid for m in members], {f.name: getattr(packed, f.name) for f in fields(Packed)}

    def _take(self, groups: int) -> list[Member]:
        return self._joiner.take(groups)

    def pid(self) -> int:
        return os.getpid()


class RayPublisher:
    def __init__(self, address: str) -> None:
        connect(address)
        self._actor: Any = ray.get_actor(ACTOR)

    def publish(self, rollout: Rollout) -> None:
        # Without a result to keep track of a call costs a quarter less.
        self._actor.add.options(num_returns=0).remote(
            {
                "uid": rollout.uid,
                "group_uid": rollout.group_uid,
                "prompt": rollout.prompt,
                "output": rollout.output,
                "logprobs": rollout.logprobs,
                "reward": rollout.reward,
            }
        )

    def idle(self) -> None:
        """Ray sends at once."""

    def close(self) -> None:
        # Calls of one caller run in order, so this answer means that all have run.
        ray.get(self._actor.pid.remote(), timeout=STOP_TIMEOUT_S)
        ray.shutdown()


class RaySource:
    def __init__(self, address: str) -> None:
        connect(address)
        self._actor: Any = ray.get_actor(ACTOR)

    def take(self) -> Taken:
        deadline = time.monotonic() + TAKE_TIMEOUT_S
        while time.monotonic() < deadline:
            found = ray.get(self._actor.next_batch.remote(), timeout=TAKE_TIMEOUT_S)
            if found is not None:
                uids, arrays = found
                return Taken(uids, Packed(**arrays))
            time.sleep(POLL_S)
        raise TimeoutError(f"ray: no batch within {TAKE_TIMEOUT_S} s")

    def pids(self) -> Mapping[str, int]:
        return {"actor": ray.get(self._actor.pid.remote())}

    def close(self) -> None:
        ray.shutdown()


@dataclass(frozen=True)
class RayActor:
    name: str = "ray"

    def missing(self) -> str | None:
        return None

    @contextmanager
    def services(self, folder: Path, scenario: Scenario) -> Iterator[Services]:
        with fresh_ray(folder) as services:
            actor: Any = ray.remote(Rollouts).options(name=ACTOR, num_cpus=0).remote()
            ray.get(actor.pid.remote())
            yield services

    def publisher(self, address: str, number: int, workload: Workload) -> RayPublisher:
        return RayPublisher(address)

    def source(self, address: str, workload: Workload) -> RaySource:
        return RaySource(address)
