"""The groups and rollouts that were sealed lately, so that their scores wait for no group. Pure."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

from rollstream.schemas.events import Flushed
from rollstream.streams.folds.sampler.score_targets import group_target, rollout_target

SEALED_MAX = 131_072  # Groups and rollouts: about 100 bytes each.


class RecentlySealed:
    """A hint, and no part of the state: of what was forgotten, scores wait as if it were not sealed
    yet, and then are forgotten too. A copy and a snapshot have none of it.
    """

    def __init__(self) -> None:
        self._size = 0
        self._flushes: deque[array[int]] = deque()  # Targets, oldest first.
        self._targets: set[int] = set()
        # Of most environments nobody scores anything: only a score that finds no group has the
        # names hashed.
        self._names: deque[tuple[str, tuple[str, ...], tuple[str, ...]]] = deque()

    def __copy__(self) -> RecentlySealed:
        return RecentlySealed()

    def __reduce__(self) -> tuple[type[RecentlySealed], tuple[()]]:
        return RecentlySealed, ()

    def add(self, environment: str, event: Flushed) -> None:
        """A flush with groups was sealed."""
        group_ids = tuple(group.group_id for group in event.groups)
        names = environment, group_ids, tuple(event.segments.uids)
        self._names.append(names)
        self._size += len(names[1]) + len(names[2])
        while self._size > SEALED_MAX and len(self._flushes) + len(self._names) > 1:
            if self._flushes:
                oldest = self._flushes.popleft()
                self._size -= len(oldest)
                self._targets.difference_update(oldest)
            else:
                _, ids, uids = self._names.popleft()
                self._size -= len(ids) + len(uids)

    def __contains__(self, target: int) -> bool:
        while self._names:
            names = self._names.popleft()
            hashed = array("Q", targets_in(*names))
            self._size += len(hashed) - len(names[1]) - len(names[2])
            self._flushes.append(hashed)
            self._targets.update(hashed)
        return target in self._targets


def targets_in(
    environment: str, group_ids: tuple[str, ...], uids: tuple[str, ...]
) -> Iterator[int]:
    """The targets of these groups and rollouts, each once."""
    for group_id in group_ids:
        yield group_target(environment, group_id)
    for uid in dict.fromkeys(uids):
        yield rollout_target(environment, uid)
