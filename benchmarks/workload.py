"""The workload: its rollouts, and the order in which each env replica sends them.

It depends only on scenario and seed, so all systems move the same rollouts. Arrays are views into
pools, so that making a rollout costs almost nothing compared to moving it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
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


class _Shape(NamedTuple):
    """The arrays of all rollouts of one shape."""

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    token_arrays: Mapping[str, NDArray[np.uint8]]


class Workload:
    """Rollouts 0, 1, 2, …; groups of eight: group g holds the rollouts 8 g to 8 g + 7.

    Args:
        scenario: how long rollouts are, and in which order they are sent.
        seed: of tokens, lengths and order.
    """

    def __init__(self, scenario: Scenario, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        self._shapes = _shapes(scenario, rng)
        self._plans = [_plan(scenario, rng) for _ in range(_PLANS)]
        self.scenario = scenario

    @property
    def bytes_per_rollout(self) -> float:
        """Average bytes of a rollout's arrays."""
        return sum(
            shape.prompt.nbytes
            + shape.output.nbytes
            + shape.logprobs.nbytes
            + sum(array.nbytes for array in shape.token_arrays.values())
            for shape in self._shapes
        ) / len(self._shapes)

    def rollout(self, number: int) -> Rollout:
        """Returns rollout ``number``, the same at every call. The policy version changes with each
        ``GROUPS_PER_BATCH`` groups."""
        shape = self._shapes[number % len(self._shapes)]
        group = number // self.scenario.group_size
        weights = group // GROUPS_PER_BATCH
        return Rollout(
            number=number,
            uid=f"rollout-{number:012d}",
            group_uid=f"group-{group:010d}",
            example_id=f"example-{group % 1000:04d}",
            policy_version=f"step-{weights}",
            weight_step=weights,
            prompt=shape.prompt,
            output=shape.output,
            logprobs=shape.logprobs,
            token_arrays=shape.token_arrays,
            reward=float(number % 2),
        )

    def share(self, replica: int) -> Iterator[Sequence[int]]:
        """Yields what one replica's process sends, in order and without end: numbers of rollouts
        that one of its producers sends at once. Some come twice."""
        scenario = self.scenario
        block = 0
        while True:
            plan = self._plans[block % _PLANS] + block * scenario.block
            yield from plan[replica :: scenario.processes].tolist()
            block += 1


def number_of(uid: str | bytes) -> int:
    """The number of the rollout with this uid."""
    return int(uid[-12:])


def _shapes(scenario: Scenario, rng: np.random.Generator) -> list[_Shape]:
    lengths = _response_lengths(scenario.length, scenario.shapes, rng)
    tokens = rng.integers(0, _VOCABULARY, _POOL, np.int32)
    logprobs = -rng.exponential(1.0, _POOL).astype(np.float32)
    last_start = _POOL - PROMPT_TOKENS - max(lengths)
    starts: list[int] = rng.integers(0, last_start, scenario.shapes).tolist()
    routed = _routed_experts(scenario, lengths, rng)
    shapes = []
    for start, length, token_arrays in zip(starts, lengths, routed, strict=True):
        begin = start + PROMPT_TOKENS
        end = begin + length
        shapes.append(
            _Shape(tokens[start:begin], tokens[begin:end], logprobs[begin:end], token_arrays)
        )
    return shapes


def _routed_experts(
    scenario: Scenario, lengths: list[int], rng: np.random.Generator
) -> Iterator[Mapping[str, NDArray[np.uint8]]]:
    if scenario.experts is None:
        yield from repeat(_NO_ARRAYS, len(lengths))
        return
    a_token = math.prod(scenario.experts)
    pool = rng.integers(0, _EXPERTS, _EXPERTS_POOL, np.uint8)
    for length in lengths:
        begin = int(rng.integers(0, _EXPERTS_POOL - length * a_token))
        flat = pool[begin : begin + length * a_token]
        yield {EXPERTS: flat.reshape(length, *scenario.experts)}


def _response_lengths(length: str, shapes: int, rng: np.random.Generator) -> list[int]:
    if length != "lognormal":
        return [int(length)] * shapes
    centre = np.log(LOGNORMAL_MEAN) - LOGNORMAL_SIGMA**2 / 2
    drawn = rng.lognormal(centre, LOGNORMAL_SIGMA, shapes)
    lengths: list[int] = np.clip(drawn, 1, LOGNORMAL_MAX).astype(np.int64).tolist()
    return lengths


def _plan(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.int64]:
    """A block in the order of sending, [n, rollouts sent at once]: its groups in order, or its
    rollouts at random with copies at random places."""
    size = scenario.block
    if scenario.in_groups:
        return np.arange(size).reshape(-1, scenario.group_size)
    twice = np.flatnonzero(rng.random(size) < scenario.sent_twice)
    order = rng.permutation(size)
    return np.insert(order, rng.integers(0, size, twice.size), twice)[:, None]
