"""What groups of split ``eval`` earned, by the policy that sampled them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollstream.streams.folds.sampler.known import KnownGroup


class Evaluated(NamedTuple):
    """Whose rollouts they are: of one policy, or ``mixed``; steps are -1 where unknown."""

    environment: str
    lineage: str
    policy_epoch: int
    weight_step: int
    policy_version: str


class Returns(NamedTuple):
    """Of an example: float64 [trajectories], each the sum of what its segments earned, and how many
    more there are in groups of which a member's reward is awaited. Neither ever changes."""

    returns: array[float]
    awaited: int


class EvaluatedGroups:
    """Eight bytes a trajectory, for as long as the logs are folded: evaluations are few, and a
    table of them outlives their files.

    A copy shares with its original what neither of them changed since: of the policies that are
    evaluated now alone the examples are copied.

    Attributes:
        groups: how many there are.
    """

    def __init__(self) -> None:
        self.groups = 0
        self._found: dict[Evaluated, dict[str, Returns]] = {}
        self._unshared: set[Evaluated] = set()

    def __copy__(self) -> EvaluatedGroups:
        copy = EvaluatedGroups()
        copy.groups, copy._found = self.groups, dict(self._found)
        self._unshared.clear()
        return copy

    def add(self, group: KnownGroup) -> None:
        """The group, which is of split ``eval``, was sealed."""
        self.groups += 1
        head, rows = group.group, group.rows.unpack()
        key = Evaluated(
            group.key.environment,
            head.lineage,
            head.policy_epoch,
            head.weight_step,
            head.policy_version,
        )
        if key not in self._unshared:
            self._unshared.add(key)
            self._found[key] = dict(self._found.get(key, {}))
        starts = np.flatnonzero(rows.begins)
        returns, awaited = self._found[key].get(group.key.example_id, _NONE)
        if group.has_rewards:
            returns = returns + array("d", np.add.reduceat(rows.earned, starts).tobytes())
        else:
            awaited += len(starts)
        self._found[key][group.key.example_id] = Returns(returns, awaited)

    def items(self) -> Iterator[tuple[Evaluated, dict[str, Returns]]]:
        """By environment, then lineage, epoch, step and version; examples by their id."""
        for key, examples in sorted(self._found.items()):
            yield key, dict(sorted(examples.items()))

    def sorted_items(self) -> list[Any]:
        """For a digest: in whatever order they came."""
        return [
            (key, example_id, sorted(returns), awaited)
            for key, examples in self.items()
            for example_id, (returns, awaited) in examples.items()
        ]


_NONE = Returns(array("d"), 0)
