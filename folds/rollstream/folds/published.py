"""The policies that a trainer published. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from rollstream.schemas.events import Event, PolicyPublished, Resumed
from rollstream.schemas.order import UNKNOWN_STEP, Branch, Policy, PolicyRef, off_branch

KEPT_MAX = 512  # Policies whose weights are known; as many as final batches that are kept.


class Described(NamedTuple):
    """What the trainer said of weights; ``metadata`` is JSON."""

    weights: str = ""
    metadata: str = "{}"


class PublishedPolicies:
    """One version a policy, and one policy a version.

    Attributes:
        versions: (epoch, step) to version.
        policies: version to (epoch, step).
        kept: of the policies that were published last, where their weights are.
        offset: of the newest decision that published a policy, or began a branch; -1: none did.
        newest_ts: log time, microseconds, when one was published last; 0: none was.
        clock_behind_us: for older versions, which may go on from a snapshot of this state.
    """

    def __init__(self) -> None:
        self.versions: dict[tuple[int, int], str] = {}
        self.policies: dict[str, tuple[int, int]] = {}
        self.kept: dict[tuple[int, int], Described] = {}
        self.offset = -1
        self._newest: dict[int, int] = {}
        self.newest_ts = self.clock_behind_us = 0

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        """Applies an event of the decision log; most change nothing here."""
        if isinstance(event, PolicyPublished | Resumed):
            self.offset = offset
        if not isinstance(event, PolicyPublished):
            return
        self.newest_ts, self.clock_behind_us = timestamp_us, timestamp_us - event.now_ts
        policy = (event.policy_epoch, event.step)
        self.versions[policy] = event.policy_version
        self.policies[event.policy_version] = policy
        newest = self._newest.get(event.policy_epoch, event.step)
        self._newest[event.policy_epoch] = max(newest, event.step)
        self.kept[policy] = Described(event.weights, event.metadata)
        if len(self.kept) > KEPT_MAX:
            del self.kept[next(iter(self.kept))]

    def policy(self, lineage: str, epoch: int, step: int) -> Policy:
        """One that was published."""
        kept = self.kept.get((epoch, step), Described())
        metadata = json.loads(kept.metadata)
        return Policy(lineage, epoch, step, self.versions[epoch, step], kept.weights, metadata)

    def newest(self, lineage: str, epoch: int) -> Policy | None:
        """Of the epoch, as one of this lineage; None: none was published."""
        step = self._newest.get(epoch)
        return None if step is None else self.policy(lineage, epoch, step)

    def newest_step(self, epoch: int) -> int:
        """Of the epoch; ``UNKNOWN_STEP``: none was published."""
        return self._newest.get(epoch, UNKNOWN_STEP)

    def oldest_recent(self, count: int, branches: Sequence[Branch], newest_step: int) -> int:
        """Step of the oldest of so many versions that were published last and are on the branch; 0:
        fewer were. Before the first each step counts as a version, up to the newest."""
        if not self.versions:
            return max(0, newest_step - count + 1)
        steps = set[int]()
        for epoch, step in reversed(self.versions):
            if not off_branch(PolicyRef("", epoch, step), branches):
                steps.add(step)
            if len(steps) == count:
                return min(steps)
        return 0

    def newest_on(self, branches: Sequence[Branch]) -> tuple[int, int] | None:
        """Epoch and step of the newest of those kept, by epoch, then step: of those that are on the
        branch, unless there are none. None: none was published."""

        def rank(one: tuple[int, int]) -> tuple[bool, int, int]:
            return not off_branch(PolicyRef("", *one), branches), *one

        return max(self.kept, key=rank, default=None)
