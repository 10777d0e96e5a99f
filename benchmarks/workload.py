"""The workload: its rollouts, and the order in which each env replica sends them.

It depends only on scenario and seed, so all systems move the same rollouts. Arrays are views into
pools, so that making a rollout costs almost nothing compared to moving it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenarios import EXPERTS, GROUPS_PER_BATCH, Scenario

PROMPT_TOKENS = 128
ENVIRONMENT = "bench"

LOGNORMAL_MEAN = 1024
LOGNORMAL_SIGMA = 0.8
LOGNORMAL_MAX = 8192

_VOCABULARY = 150_000
_POOL = 1 << 20
_EXPERTS = 128
_EXPERTS_POOL = 1 << 23
_PLANS = 64  # Block b is sent in the order of plan b modulo this.
_NO_ARRAYS: Mapping[str, NDArray[np.uint8]] = {}


class Rollout(NamedTuple):
    """One rollout: int32 tokens, float32 log-probs, named arrays with a row a response token."""

    number: int
    uid: str
    group_uid: str
    example_id: str
    policy_version: str
    weight_step: int
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    token_arrays: Mapping[str, NDArray[np.uint8]]
    reward: float


@dataclass(frozen=True)
class _Pools:
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    experts: NDArray[np.uint8]
    starts: list[int]
    lengths: list[int]
    plans: list[NDArray[np.int64]]


class Workload:
    """Rollouts 0, 1, 2, …; groups of eight: group g holds the rollouts 8 g to 8 g + 7.

    Args:
        scenario: how long rollouts are, and in which order they are sent.
        seed: of tokens, lengths and order.
    """

    def __init__(self, scenario: Scenario, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        shapes = scenario.shapes
        lengths = _response_lengths(scenario.length, shapes, rng)
        last_start = _POOL - PROMPT_TOKENS - int(lengths.max())
        self._pools = _Pools(
            tokens=rng.integers(0, _VOCABULARY, _POOL, np.int32),
            logprobs=-rng.exponential(1.0, _POOL).astype(np.float32),
            starts=rng.integers(0, last_start, shapes).tolist(),
            lengths=lengths.tolist(),
            plans=[_plan(scenario, rng) for _ in range(_PLANS)],
            experts=rng.integers(0, _EXPERTS, _EXPERTS_POOL if scenario.experts else 0, np.uint8),
        )
        self.scenario = scenario

    @property
    def bytes_per_rollout(self) -> float:
        """Average bytes of a rollout's arrays."""
        layers, chosen = self.scenario.experts or (0, 0)
        a_token = 8 + layers * chosen
        return 4 * PROMPT_TOKENS + a_token * sum(self._pools.lengths) / self.scenario.shapes

    def rollout(self, number: int) -> Rollout:
        """Returns rollout ``number``, the same at every call. The policy version changes with each
        ``GROUPS_PER_BATCH`` groups."""
        pools, scenario = self._pools, self.scenario
        shape, group = number % scenario.shapes, number // scenario.group_size
        weights = group // GROUPS_PER_BATCH
        start, length = pools.starts[shape], pools.lengths[shape]
        begin = start + PROMPT_TOKENS
        return Rollout(
            number=number,
            uid=f"rollout-{number:012d}",
            group_uid=f"group-{group:010d}",
            example_id=f"example-{group % 1000:04d}",
            policy_version=f"step-{weights}",
            weight_step=weights,
            prompt=pools.tokens[start:begin],
            output=pools.tokens[begin : begin + length],
            logprobs=pools.logprobs[begin : begin + length],
            token_arrays=self._token_arrays(start, length) if scenario.experts else _NO_ARRAYS,
            reward=float(number % 2),
        )

    def share(self, replica: int) -> Iterator[Sequence[int]]:
        """Yields what one replica's process sends, in order and without end: numbers of rollouts
        that one of its producers sends at once. Some come twice."""
        scenario = self.scenario
        block = 0
        while True:
            plan = self._pools.plans[block % _PLANS] + block * scenario.block
            yield from plan[replica :: scenario.processes].tolist()
            block += 1

    def _token_arrays(self, start: int, length: int) -> Mapping[str, NDArray[np.uint8]]:
        layers, chosen = self.scenario.experts or (0, 0)
        begin = start % (_EXPERTS_POOL - length * layers * chosen)
        flat = self._pools.experts[begin : begin + length * layers * chosen]
        return {EXPERTS: flat.reshape(length, layers, chosen)}


def number_of(uid: str | bytes) -> int:
    """The number of the rollout with this uid."""
    return int(uid[-12:])


def _response_lengths(length: str, shapes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if length != "lognormal":
        return np.full(shapes, int(length), np.int64)
    centre = np.log(LOGNORMAL_MEAN) - LOGNORMAL_SIGMA**2 / 2
    drawn = rng.lognormal(centre, LOGNORMAL_SIGMA, shapes)
    return np.clip(drawn, 1, LOGNORMAL_MAX).astype(np.int64)


def _plan(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.int64]:
    """A block in the order of sending, [n, rollouts sent at once]: its groups in order, or its
    rollouts at random with copies at random places."""
    size = scenario.block
    if scenario.in_groups:
        return np.arange(size).reshape(-1, scenario.group_size)
    twice = np.flatnonzero(rng.random(size) < scenario.sent_twice)
    order = rng.permutation(size)
    return np.insert(order, rng.integers(0, size, twice.size), twice)[:, None]
