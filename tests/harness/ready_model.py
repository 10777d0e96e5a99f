"""A slow, obvious model of ``ReadyIndex``: every question sorts all that is ready."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import xxhash

from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import Key, KnownGroup


class ReadyModel:
    """The ready groups, and in which turn a group of each key was served last."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.groups: dict[GroupRef, KnownGroup] = {}
        self._turns: dict[Key, int] = {}

    def mark_served(self, key: Key, turn: int) -> None:
        self._turns[key] = max(turn, self._turns.get(key, 0))

    def keys_in_turn(
        self,
        environments: Collection[str],
        policies: Collection[tuple[PolicyRef, ...]] | None = None,
    ) -> list[tuple[Key, list[GroupRef]]]:
        """Keys that were served longest ago first, ties by a seeded hash; groups by ref."""
        among = [
            group
            for group in self.groups.values()
            if group.key.environment in environments
            and (policies is None or group.policies in policies)
        ]
        among.sort(key=lambda group: (self._place(group.key), group.ref))
        return [
            (key, [group.ref for group in groups])
            for key, groups in groupby(among, key=lambda group: group.key)
        ]

    def oldest(self, count: int, environment: str | None = None) -> list[GroupRef]:
        ages = sorted(
            (group.sealed_ts, ref)
            for ref, group in self.groups.items()
            if environment in (None, ref.environment)
        )
        return [ref for _, ref in ages[:count]]

    def _place(self, key: Key) -> tuple[int, int]:
        text = f"{self._seed}\x1f{key.environment}\x1f{key.example_id}"
        return self._turns.get(key, 0), xxhash.xxh3_64_intdigest(text.encode())
