"""Rollstream end to end: ``RolloutProducer``, ``rollstream seal``, ``SamplerClient`` over Ray."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.systems.interface import STOP_TIMEOUT_S, Services, Source
from benchmarks.workload import ENVIRONMENT, GROUP_SIZE, Rollout, Workload
from rollstream.producers import RolloutProducer


class RollstreamPublisher:
    def __init__(self, bootstrap: str, replica: int) -> None:
        self._producer = RolloutProducer(
            bootstrap, environment=ENVIRONMENT, replica_id=f"replica-{replica}"
        )

    def publish(self, rollout: Rollout) -> None:
        self._producer.publish(
            rollout_uid=rollout.uid,
            example_id=rollout.example_id,
            group_uid=rollout.group_uid,
            group_size=GROUP_SIZE,
            policy_version=rollout.policy_version,
            weight_step=rollout.weight_step,
            prompt_tokens=rollout.prompt,
            output_tokens=rollout.output,
            logprobs=rollout.logprobs,
            reward=rollout.reward,
            stop_reason="stop",
        )

    def idle(self) -> None:
        """The producer sends by itself."""

    def close(self) -> None:
        self._producer.flush(STOP_TIMEOUT_S)
        self._producer.close()


@dataclass(frozen=True)
class Rollstream:
    name: str = "rollstream"

    def missing(self) -> str | None:
        return None

    def services(self, folder: Path) -> AbstractContextManager[Services]:
        services: AbstractContextManager[Services] = _part("services").services(folder)
        return services

    def publisher(self, address: str, replica: int, workload: Workload) -> RollstreamPublisher:
        bootstrap, _, _ = address.partition(" ")
        return RollstreamPublisher(bootstrap, replica)

    def source(self, address: str) -> Source:
        _, _, config = address.partition(" ")
        source: Source = _part("source").RollstreamSource(Path(config))
        return source


def _part(name: str) -> Any:
    """Loads a part where it runs: an env replica has no Ray, pyarrow or pydantic in memory."""
    return import_module(f"benchmarks.systems.rollstream_{name}")
