"""Sealed groups that cannot be served as they are. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice

from rollstream.folds.group.eligible import Waits
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.packed_refs import PackedRefs
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.streams.folds.refs import GroupRef


class WaitingGroups(Mapping[GroupRef, Waits]):
    """Why each waits. Which ones were sealed longest ago, and how many an environment has, is told
    without a look at the others: a pool full of them drops some with each flush."""

    def __init__(self, packed: PackedRefs) -> None:
        self._packed = packed
        self._why: dict[GroupRef, Waits] = {}
        self._ages: dict[str, SortedRows] = {}  # (When it was sealed, ref), by environment.

    def __getitem__(self, ref: GroupRef) -> Waits:
        return self._why[ref]

    def __iter__(self) -> Iterator[GroupRef]:
        return iter(self._why)

    def __len__(self) -> int:
        return len(self._why)

    def add(self, group: KnownGroup, why: Waits) -> None:
        """The group, which does not wait yet, waits for this."""
        self._why[group.ref] = why
        ages = self._ages.setdefault(group.ref.environment, SortedRows(2))
        ages.add(group.sealed_ts, self._packed.pack(group.ref))

    def remove(self, group: KnownGroup) -> Waits:
        """The group waits no more; returns for what it did."""
        self._ages[group.ref.environment].remove(group.sealed_ts, self._packed.pack(group.ref))
        return self._why.pop(group.ref)

    def count(self, environment: str) -> int:
        """Those of the environment."""
        ages = self._ages.get(environment)
        return 0 if ages is None else len(ages)

    def oldest(self, count: int, environment: str | None = None) -> list[GroupRef]:
        """Those sealed longest ago, of the environment or of all; of one time by ref."""
        found = self._ages.items()
        among = [ages for name, ages in found if environment in (None, name)]
        return [self._packed.unpack(ref) for _, ref in islice(heapq.merge(*among), count)]
