"""Trainers whose samplers start from snapshots, written after every decision, of which some are
damaged, too old, or another sampler's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rollstream.sampler import Sampler
from rollstream.sampler.engine import snapshots
from rollstream.store.layout import SNAPSHOTS
from rollstream.streams.broker import Broker
from rollstream.streams.owned.fold import FoldedLog
from simulation.sampler.trainers import Trainers

DAMAGE = ("none", "none", "flip", "cut", "delete", "older", "foreign", "empty")
TWIN_ACTIONS = 20


class Snapshots(Trainers):
    """Before a start the newest snapshot is damaged, or something else is found in its place.

    Args:
        foreign: snapshots of a sampler of this name and root, whose logs hold something else; None:
            those of another world are made.
    """

    def __init__(
        self, seed: int, *, foreign: Sequence[bytes] | None = None, trouble: float | None = None
    ) -> None:
        self._damaging = random.Random(seed)
        self._foreign = self._of_a_twin(seed) if foreign is None else foreign
        self._damaged = Counter[str]()
        super().__init__(seed, trouble=trouble)

    def run(self) -> None:
        with written_at_once() as starts:
            super().run()
        self.reached["starts from a snapshot"] += starts["starts"]
        self.reached += self._damaged

    def paths(self) -> list[str]:
        """Of the snapshots, the newest last."""
        return [blob.path for blob in self._store.list(SNAPSHOTS)]

    def contents(self) -> list[bytes]:
        """Of the same."""
        return list(map(self._store.read, self.paths()))

    @staticmethod
    def _of_a_twin(seed: int) -> list[bytes]:
        twin = Snapshots(seed, foreign=[], trouble=0.3)
        with written_at_once():
            for _ in range(TWIN_ACTIONS):
                twin.act()
        twin.close()
        return twin.contents()

    def _start(self, broker: Broker) -> Sampler:
        if self.paths():
            self._damage(self.paths())
        return super()._start(broker)

    def _damage(self, paths: list[str]) -> None:
        kind = self._damaging.choice(DAMAGE)
        data = self._store.read(paths[-1])
        at = self._damaging.randrange(len(data) + 1)
        match kind:
            case "flip":
                self._store.replace(paths[-1], data[:at] + b"?" + data[at + 1 :])
            case "cut":
                self._store.replace(paths[-1], data[:at])
            case "delete":
                self._store.delete(paths[-1])
            case "older":  # As where a zombie writes late what it knew.
                self._store.replace(paths[-1], self._store.read(paths[0]))
            case "foreign" if self._foreign:
                self._store.replace(paths[-1], self._damaging.choice(self._foreign))
            case "empty":
                self._store.replace(paths[-1], b"")
        if kind != "none":
            self._damaged[f"snapshots: {kind}"] += 1


class AtOnce:
    """A thread that runs before whoever starts it goes on, so that a seed repeats."""

    def __init__(self, target: Any, args: tuple[Any, ...], **_: Any) -> None:
        self.start = lambda: target(*args)

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float) -> None:
        pass


@contextmanager
def written_at_once() -> Iterator[Counter[str]]:
    """Snapshots at every decision; yields how many folds went on from one, as ``starts``."""
    counts = Counter[str]()
    plain = FoldedLog.going_on.__func__  # type: ignore[attr-defined]

    def counted(cls, saved, fence):  # type: ignore[no-untyped-def]
        counts["starts"] += 1
        return plain(cls, saved, fence)

    with (
        patch.object(FoldedLog, "going_on", classmethod(counted)),
        patch.object(snapshots, "EVENTS_BETWEEN", 1),
        patch.object(snapshots, "SECONDS_BETWEEN", 0.0),
        patch.object(snapshots, "Thread", AtOnce),
    ):
        yield counts
