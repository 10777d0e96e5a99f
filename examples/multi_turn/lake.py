"""FrozenLake of gymnasium as an agent sees it: tokens of observations, answered by one of an
action."""

from __future__ import annotations

import gymnasium

ENVIRONMENT = "frozen-lake"
MAP = "4x4"
# Tokens: one for each field of the map, then one for each action.
FIELDS = 16
ACTIONS = 4
FIRST_ACTION = FIELDS
# The shortest way to the goal has 6 steps; who walks in circles is stopped.
MAX_TURNS = 20


class Walk:
    """One trajectory after the other over the ice. Reaching the goal earns 1, all else 0.

    Attributes:
        context: tokens of all that was seen and done since ``reset``, in order.
        ended: whether the walk is over: at the goal, in a hole, or after ``MAX_TURNS``.
    """

    def __init__(self) -> None:
        self._world = gymnasium.make(
            "FrozenLake-v1", map_name=MAP, is_slippery=False, max_episode_steps=MAX_TURNS
        )
        self.reset()

    def reset(self) -> None:
        field, _ = self._world.reset()
        self.context = [int(field)]
        self.ended = False

    def act(self, token: int) -> float:
        """Does what the token says; the reward of this step."""
        field, reward, terminated, truncated, _ = self._world.step(token - FIRST_ACTION)
        self.context += [token, int(field)]
        self.ended = terminated or truncated
        return float(reward)
