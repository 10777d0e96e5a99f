"""A writer of steps in memory, which fails as it is told, and a gateway over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from fastapi import FastAPI

from rollstream.gateway import LateScores, create_app
from rollstream.producers import (
    AsyncStepProducer,
    DeliveryFailed,
    FollowedPolicy,
    NoPolicy,
    ScoreProducer,
    Step,
)
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.streams.errors import BrokerUnavailable

TOKENS = {"math": "math-token-0123456789", "code": "code-token-0123456789"}
STEP: dict[str, Any] = {
    "prompt_ids": [1, 2, 3],
    "response_ids": [4, 5],
    "logprobs": [-0.5, -0.25],
    "trajectory_uid": "t-1",
    "prompt_uid": "p-1",
    "step_index": 0,
    "policy_version": "step-1",
    "weight_step": 1,
}
STEPS = "/v1/environments/math/steps"
COMPLETE = "/v1/environments/math/trajectories/t-1/complete"


class MemoryStepWriter:
    """Attributes:
    steps: that were submitted, by environment.
    completed: trajectories, with their prompt.
    failed: trajectories, with what was said of them.
    refusal: raised by every call, before it waits.
    failure: raised by every call, after it waited.
    answering: cleared, every call waits until it is set.
    waiting: how many calls do.
    closed: whether it was.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[str, Step]] = []
        self.completed: list[tuple[str, str, str, int | None]] = []
        self.failed: list[tuple[str, str, dict[str, Any]]] = []
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.waiting = 0
        self.closed = False

    async def submit_steps(self, steps: Iterable[Step], *, environment: str) -> None:
        await self._answer()
        self.steps += [(environment, step) for step in steps]

    async def complete_trajectory(
        self, trajectory_uid: str, *, environment: str, prompt_uid: str, steps: int | None
    ) -> None:
        await self._answer()
        self.completed.append((environment, trajectory_uid, prompt_uid, steps))

    async def fail_trajectory(
        self, trajectory_uid: str, *, environment: str, **failure: Any
    ) -> None:
        await self._answer()
        self.failed.append((environment, trajectory_uid, failure))

    async def policy(
        self, *, environment: str, lineage: str | None, timeout_s: float
    ) -> FollowedPolicy:
        await self._answer()
        raise NoPolicy("a policy was not known within 0 s; check that its trainer runs")

    def take_failures(self) -> DeliveryFailed | None:
        return None

    async def close(self) -> None:
        self.closed = True

    async def _answer(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.waiting += 1
        await self.answering.wait()
        self.waiting -= 1
        if self.failure is not None:
            await asyncio.sleep(0)
            raise self.failure


class Reached:
    """Whether the broker answers a probe."""

    def __init__(self) -> None:
        self.away = False

    def __call__(self, timeout_s: float) -> None:
        if self.away:
            raise BrokerUnavailable(f"no broker answered within {timeout_s:g} s")


def gateway_config(**gateway: Any) -> RollstreamConfig:
    """Of two environments, with a token each."""
    return RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": "unused:9092"},
            "store": {"root": "file:///unused"},
            "environments": {"math": {}, "code": {}},
            "gateway": {"tokens": {name: [token] for name, token in TOKENS.items()}, **gateway},
        }
    )


def gateway_over(
    writer: MemoryStepWriter | AsyncStepProducer, *, reach: Reached | None = None, **gateway: Any
) -> FastAPI:
    """Takes no scores, which no test over it publishes."""
    return create_app(
        gateway_config(**gateway),
        writer=cast("AsyncStepProducer", writer),
        reach=reach or Reached(),
        scores=LateScores(_no_scores, 0.0),
    )


def _no_scores() -> ScoreProducer:
    raise BrokerUnavailable("this gateway takes no scores")


def bearer(environment: str = "math") -> dict[str, str]:
    """The header with its token."""
    return {"Authorization": f"Bearer {TOKENS[environment]}"}
