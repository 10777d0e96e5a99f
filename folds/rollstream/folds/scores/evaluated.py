"""What groups of split ``eval`` earned, by the policy that sampled them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.packed_refs import PackedRefs


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
    table of them outlives their files. Those that take late scores, always, are kept besides: about
    0.7 KB each with 8 trajectories, since scores of one group may be logged at any time.

    A copy shares with its original what neither of them changed since: of the policies that are
    evaluated now alone the examples are copied.

    Attributes:
        groups: how many there are.
        scored: those of them that take late scores.
    """

    def __init__(self, packed: PackedRefs) -> None:
        self.groups = 0
        self.scored = KnownGroups(packed)
        self._found: dict[Evaluated, dict[str, Returns]] = {}
        self._unshared: set[Evaluated] = set()

    def __copy__(self) -> EvaluatedGroups:
        copy = EvaluatedGroups(self.scored.packed)
        copy.groups, copy._found = self.groups, dict(self._found)
        copy.scored = self.scored.__copy__()
        self._unshared.clear()
        return copy

    def add(self, group: KnownGroup) -> None:
        """The group, which is of split ``eval``, was sealed."""
        self.groups += 1
        if group.targets:
            self.scored[group.ref] = group
        self._count(group)

    def replace(self, group: KnownGroup) -> None:
        """A late score changed the group, which takes them."""
        self._count(self.scored[group.ref], added=False)
        self.scored[group.ref] = group
        self._count(group)

    def _count(self, group: KnownGroup, *, added: bool = True) -> None:
        """What its trajectories earned is among what is found, or no longer."""
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
        returns, awaited = self._found[key].get(group.key.example_id, _NONE)
        if not group.has_rewards:
            count = int(rows.begins.sum())
            awaited += count if added else -count
        else:
            earned = array("d", rows.returns().tobytes())
            returns = returns + earned if added else returns[:]
            for one in () if added else earned:
                returns.remove(one)
        self._found[key][group.key.example_id] = Returns(returns, awaited)

    def items(self) -> Iterator[tuple[Evaluated, dict[str, Returns]]]:
        """By environment, then lineage, epoch, step and version; examples by their id. It is what
        was found now, whatever is added then."""
        self._unshared.clear()
        found = self._found.copy()
        return ((key, dict(sorted(found[key].items()))) for key in sorted(found))

    def sorted_items(self) -> list[Any]:
        """For a digest: in whatever order they came."""
        return [
            (key, example_id, sorted(returns), awaited)
            for key, examples in self.items()
            for example_id, (returns, awaited) in examples.items()
        ]


_NONE = Returns(array("d"), 0)
