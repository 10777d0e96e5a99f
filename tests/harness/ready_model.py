"""A slow, obvious model of ``ReadyIndex``: every question sorts all that is ready."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby

from rollstream.folds.group.known import Key, KnownGroup
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef

Policies = tuple[PolicyRef, ...]
Age = tuple[tuple[int, int], int, GroupRef]


class ReadyModel:
    """The ready groups, and in which turn a group of each key was served last."""

    def __init__(self) -> None:
        self.groups: dict[GroupRef, KnownGroup] = {}
        self._turns: dict[Key, int] = {}
        self._newest = [(0, -1)]  # Epoch and step by turn.

    def begin_turn(self, newest: PolicyRef) -> int:
        self._newest.append(newest[1:])
        return len(self._newest) - 1

    def mark_served(self, key: Key, turn: int) -> None:
        self._turns[key] = max(turn, self._turns.get(key, 0))

    def keys_in_turn(
        self,
        environments: Collection[str],
        policies: Collection[Policies] | None = None,
        without: Collection[GroupRef] = (),
    ) -> list[tuple[Key, list[GroupRef]]]:
        """Keys that waited longest first; groups by age."""
        left = [group for ref, group in self.groups.items() if ref not in without]

        def place(key: Key) -> tuple[tuple[int, int], Age]:
            oldest = min(_age(group) for group in left if group.key == key)
            return max(oldest[0], self._newest[self._turns.get(key, 0)]), oldest

        among = [group for group in left if _matches(group, environments, policies)]
        return _by_key(sorted(among, key=lambda group: (place(group.key), _age(group))))

    def by_age(
        self,
        environments: Collection[str],
        policies: Collection[Policies] | None = None,
        without: Collection[GroupRef] = (),
    ) -> list[list[GroupRef]]:
        """Groups of each age, the oldest first."""
        left = [group for ref, group in self.groups.items() if ref not in without]
        among = [group for group in left if _matches(group, environments, policies)]
        ages = sorted({group.policies[0][1:] for group in among})
        return [sorted(one.ref for one in among if one.policies[0][1:] == age) for age in ages]

    def made_before(self, oldest_made_us: int) -> dict[GroupRef, int]:
        """Groups that fall below two rollouts, in code one, by when theirs were made; with each its
        rollouts, if all were made before."""
        found = {}
        for ref, group in self.groups.items():
            made = group.rows.unpack().made_ts(group.sealed_ts)
            left = int((made >= oldest_made_us).sum())
            if left < (1 if ref.environment == "code" else 2):
                found[ref] = 0 if left else len(made)
        return found

    def short_from(self, oldest_step: int, least: Mapping[str, int]) -> set[GroupRef]:
        """Groups of several policies that have too few rollouts of that step or later ones, and an
        earlier one."""
        found = set()
        for ref, group in self.groups.items():
            steps = group.rows.unpack().weight_steps
            left = int((steps >= oldest_step).sum())
            if len(group.policies) > 1 and left < min(least[ref.environment], len(steps)):
                found.add(ref)
        return found

    def oldest(self, count: int, environment: str | None = None) -> list[GroupRef]:
        ages = sorted(
            (group.sealed_ts, ref)
            for ref, group in self.groups.items()
            if environment in (None, ref.environment)
        )
        return [ref for _, ref in ages[:count]]


def _matches(
    group: KnownGroup, environments: Collection[str], policies: Collection[Policies] | None
) -> bool:
    known = policies is None or group.policies in policies
    return known and group.key.environment in environments


def _by_key(groups: list[KnownGroup]) -> list[tuple[Key, list[GroupRef]]]:
    found = groupby(groups, key=lambda group: group.key)
    return [(key, [group.ref for group in of_key]) for key, of_key in found]


def _age(group: KnownGroup) -> Age:
    return group.policies[0][1:], group.sealed_ts, group.ref
