"""The groups and rollouts that were sealed lately, so that their scores wait for no group. Pure."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import chain

from rollstream.folds.group.score_targets import group_target, rollout_target
from rollstream.schemas.events import Flushed

SEALED_MAX = 131_072  # Groups and rollouts: about 100 bytes each, 8 of them in a snapshot.
_LOADED_AT_ONCE = 1_024  # Of a snapshot, which are forgotten together.
_NO_TARGETS = array("Q")


class RecentlySealed:
    """A hint: of what was forgotten, scores wait as if it were not sealed yet, and then are
    forgotten too. What is known follows from the order in which seal logs were read, so no digest
    has it; a copy and a snapshot do, so that a start from one knows as much as before.
    """

    def __init__(self, targets: array[int] = _NO_TARGETS) -> None:
        self._size = len(targets)
        # Targets, oldest first; no array ever changes.
        self._flushes: deque[array[int]] = deque(
            targets[start : start + _LOADED_AT_ONCE]
            for start in range(0, len(targets), _LOADED_AT_ONCE)
        )
        self._targets: set[int] | None = None  # The same, once they are asked for.
        # Of most environments nobody scores anything: only a score that finds no group has the
        # names hashed.
        self._names: deque[tuple[str, tuple[str, ...], tuple[str, ...]]] = deque()

    def __copy__(self) -> RecentlySealed:
        copy = RecentlySealed()
        copy._size = self._size
        copy._flushes, copy._names = self._flushes.copy(), self._names.copy()
        return copy

    def __reduce__(self) -> tuple[type[RecentlySealed], tuple[array[int]]]:
        self._hash_names()
        return RecentlySealed, (array("Q", chain.from_iterable(self._flushes)),)

    def add(self, environment: str, event: Flushed) -> None:
        """A flush with groups was sealed."""
        names = environment, event.groups.group_ids, tuple(event.segments.uids)
        self._names.append(names)
        self._size += len(names[1]) + len(names[2])
        while self._size > SEALED_MAX and len(self._flushes) + len(self._names) > 1:
            if self._flushes:
                oldest = self._flushes.popleft()
                self._size -= len(oldest)
                if self._targets is not None:
                    self._targets.difference_update(oldest)
            else:
                _, ids, uids = self._names.popleft()
                self._size -= len(ids) + len(uids)

    def __contains__(self, target: int) -> bool:
        self._hash_names()
        if self._targets is None:
            self._targets = set(chain.from_iterable(self._flushes))
        return target in self._targets

    def _hash_names(self) -> None:
        while self._names:
            names = self._names.popleft()
            hashed = array("Q", targets_in(*names))
            self._size += len(hashed) - len(names[1]) - len(names[2])
            self._flushes.append(hashed)
            if self._targets is not None:
                self._targets.update(hashed)


def targets_in(
    environment: str, group_ids: tuple[str, ...], uids: tuple[str, ...]
) -> Iterator[int]:
    """The targets of these groups and rollouts, each once."""
    for group_id in group_ids:
        yield group_target(environment, group_id)
    for uid in dict.fromkeys(uids):
        yield rollout_target(environment, uid)
