"""What the trainer saw, step by step; from it the curve is drawn and the run judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from examples.demo.settings import REWARD_WINDOW, STEPS_MIN


@dataclass(frozen=True)
class StepSeen:
    """One trained batch.

    Attributes:
        step: the trainer's.
        elapsed_s: since the first batch was asked for.
        rewards: mean reward by environment.
        lag_mean, lag_max: optimizer steps between the weights that sampled and the newest ones.
        groups_ready: at the time the batch was chosen.
        rollouts: in the batch.
    """

    step: int
    elapsed_s: float
    rewards: Mapping[str, float]
    lag_mean: float
    lag_max: int
    groups_ready: int
    rollouts: int


class History:
    """The steps in order, and the marks of what was killed meanwhile."""

    def __init__(self) -> None:
        self.steps: list[StepSeen] = []
        self.marks: list[tuple[int, str]] = []

    def recent_reward(self, environment: str) -> float:
        """Mean over the last batches that had the environment; NaN before there is one."""
        seen = [s.rewards[environment] for s in self.steps if environment in s.rewards]
        return float(np.mean(seen[-REWARD_WINDOW:])) if seen else float("nan")

    def first_reward(self, environment: str) -> float:
        """Mean over the first batches, when the policy knew nothing."""
        seen = [s.rewards[environment] for s in self.steps if environment in s.rewards]
        return float(np.mean(seen[:3])) if seen else float("nan")

    def reached(self, environments: Sequence[str], goal: float) -> bool:
        """Whether the last batches are at the goal in each environment."""
        return len(self.steps) >= STEPS_MIN and all(
            self.recent_reward(environment) >= goal for environment in environments
        )

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps({"steps": [asdict(s) for s in self.steps], "marks": self.marks}, indent=1)
        )
