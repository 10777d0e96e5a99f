"""The workload: its rollouts, and the order in which each env replica sends them.

It depends only on length and seed, so all systems move the same rollouts. Arrays are views into two
pools, so that making a rollout costs almost nothing compared to moving it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPLICAS = 4
PROMPT_TOKENS = 128
GROUP_SIZE = 8
GROUPS_SHUFFLED = 32  # Members of a group are sent at random among those of this many.
BLOCK = GROUP_SIZE * GROUPS_SHUFFLED
GROUPS_PER_BATCH = 64
ROLLOUTS_PER_BATCH = GROUP_SIZE * GROUPS_PER_BATCH
AHEAD_MAX = 4096  # Most rollouts that were sent and not yet taken.
SENT_TWICE = 0.01
ENVIRONMENT = "bench"

LENGTHS = ("256", "1024", "4096", "lognormal")
LOGNORMAL_MEAN = 1024
LOGNORMAL_SIGMA = 0.8
LOGNORMAL_MAX = 8192

_VOCABULARY = 150_000
_POOL = 1 << 20
_SHAPES = 1024  # Rollout n has the length and the tokens of shape n modulo this.
_PLANS = 64  # Block b is sent in the order of plan b modulo this.


class Rollout(NamedTuple):
    """One rollout: int32 tokens, float32 log-probs."""

    number: int
    uid: str
    group_uid: str
    example_id: str
    policy_version: str
    weight_step: int
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    reward: float


@dataclass(frozen=True)
class _Pools:
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    starts: list[int]
    lengths: list[int]
    plans: list[NDArray[np.int64]]


class Workload:
    """Rollouts 0, 1, 2, …; group g holds the rollouts 8 g to 8 g + 7.

    Args:
        length: response tokens a rollout: a number, or ``lognormal`` (mean 1024, at most 8192).
        seed: of tokens, lengths and order.
    """

    def __init__(self, length: str, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        lengths = _response_lengths(length, rng)
        last_start = _POOL - PROMPT_TOKENS - int(lengths.max())
        self._pools = _Pools(
            tokens=rng.integers(0, _VOCABULARY, _POOL, np.int32),
            logprobs=-rng.exponential(1.0, _POOL).astype(np.float32),
            starts=rng.integers(0, last_start, _SHAPES).tolist(),
            lengths=lengths.tolist(),
            plans=[_plan(rng) for _ in range(_PLANS)],
        )
        self.length = length

    @property
    def bytes_per_rollout(self) -> float:
        """Average bytes of a rollout's arrays."""
        return 4 * PROMPT_TOKENS + 8 * sum(self._pools.lengths) / _SHAPES

    def rollout(self, number: int) -> Rollout:
        """Returns rollout ``number``, the same at every call. The policy version changes with each
        ``GROUPS_PER_BATCH`` groups."""
        pools, shape = self._pools, number % _SHAPES
        group = number // GROUP_SIZE
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
            reward=float(number % 2),
        )

    def share(self, replica: int) -> Iterator[int]:
        """Yields the numbers that one replica sends, in order and without end; some come twice."""
        block = 0
        while True:
            numbers = self._pools.plans[block % _PLANS][replica::REPLICAS] + block * BLOCK
            yield from numbers.tolist()
            block += 1


def number_of(uid: str | bytes) -> int:
    """The number of the rollout with this uid."""
    return int(uid[-12:])


def _response_lengths(length: str, rng: np.random.Generator) -> NDArray[np.int64]:
    if length != "lognormal":
        return np.full(_SHAPES, int(length), np.int64)
    centre = np.log(LOGNORMAL_MEAN) - LOGNORMAL_SIGMA**2 / 2
    drawn = rng.lognormal(centre, LOGNORMAL_SIGMA, _SHAPES)
    return np.clip(drawn, 1, LOGNORMAL_MAX).astype(np.int64)


def _plan(rng: np.random.Generator) -> NDArray[np.int64]:
    """A block's rollouts in the order of sending, with copies at random places."""
    twice = np.flatnonzero(rng.random(BLOCK) < SENT_TWICE)
    order = rng.permutation(BLOCK)
    return np.insert(order, rng.integers(0, BLOCK, twice.size), twice)
