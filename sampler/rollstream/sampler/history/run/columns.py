"""The rollouts, groups and steps of a run, as columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollstream.store.rollups import VisibleFile

NO_STEP = -1
_SEPARATOR = b"\n"


def joined(uids: Sequence[str]) -> bytes:
    """The uids as one text that is searched at once, a line each."""
    text = "\n".join(uids)
    if text.count("\n") != len(uids) - 1:  # A uid may be any text.
        text = "\n".join(uid.replace("\n", " ") for uid in uids)
    return text.encode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Members that came to no row: how many, when, and why. ``failed`` never came; the others were
    settled before they were sealed."""

    environment: str
    ts: int
    reason: str
    members: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumns:
    """A run as its files have it. Groups, and in them rollouts, are in the order of their flushes'
    log times.

    Attributes:
        environments, policies: names, by the numbers below.
        uids: of the rollouts of each flush, one a line.
        flush_starts: int64 [flushes], the first rollout of each.
        files: the file of each group. examples: of each group.
        group_environment, group_policy: int32 [groups].
        group_is_eval: bool [groups]. group_sealed_ts: int64 [groups], microseconds.
        group_of: int32 [rollouts].
        rewards: float64 [rollouts] the sum of the segments, by the score in effect; NaN: awaited.
        tokens, weight_steps, made_ts: int64 [rollouts].
        steps: int64 [rollouts], of the newest batch that has each; ``NO_STEP``: none has.
        batch_steps: int64 [batches], rising. batch_ts: when each was decided. batch_clock: the
            newest weights then. batch_groups: how many groups it took.
        taken: int64 [taken, 2], a group's number and the step of a batch that had it, whole or in
            part.
        ended: members without a row.
        unread: how many manifests and batches are still to be read, the oldest ones.
        unreadable: files that were passed over, and why.
    """

    environments: Sequence[str]
    policies: Sequence[str]
    uids: Sequence[bytes]
    flush_starts: NDArray[np.int64]
    files: Sequence[VisibleFile]
    examples: Sequence[str]
    group_environment: NDArray[np.int32]
    group_policy: NDArray[np.int32]
    group_is_eval: NDArray[np.bool_]
    group_sealed_ts: NDArray[np.int64]
    group_of: NDArray[np.int32]
    rewards: NDArray[np.float64]
    tokens: NDArray[np.int64]
    weight_steps: NDArray[np.int64]
    made_ts: NDArray[np.int64]
    steps: NDArray[np.int64]
    batch_steps: NDArray[np.int64]
    batch_ts: NDArray[np.int64]
    batch_clock: NDArray[np.int64]
    batch_groups: NDArray[np.int64]
    taken: NDArray[np.int64]
    ended: Sequence[Ended] = ()
    unread: int = 0
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def rollouts(self) -> int:
        """How many there are."""
        return len(self.group_of)

    def uid(self, rollout: int) -> str:
        """The uid of one."""
        flush = int(np.searchsorted(self.flush_starts, rollout, side="right")) - 1
        lines = self.uids[flush].split(_SEPARATOR)
        return lines[rollout - int(self.flush_starts[flush])].decode(errors="replace")

    def at(self, file: VisibleFile, uid: str) -> int | None:
        """The rollout of this uid in a file; None: the file is not known, or has none."""
        groups = [group for group, one in enumerate(self.files) if one == file]
        if not groups:
            return None
        first, stop = np.searchsorted(self.group_of, [groups[0], groups[-1] + 1]).tolist()
        flush = int(np.searchsorted(self.flush_starts, first, side="right")) - 1
        begin, wanted = int(self.flush_starts[flush]), uid.encode(errors="replace")
        lines = self.uids[flush].split(_SEPARATOR)[first - begin : stop - begin]
        return first + lines.index(wanted) if wanted in lines else None

    def steps_of(self, rollout: int) -> list[int]:
        """The steps whose batches had its group."""
        group = int(self.group_of[rollout])
        return [int(step) for step in self.taken[self.taken[:, 0] == group, 1]]

    def with_uid(self, part: str, most: int) -> list[int]:
        """The newest rollouts whose uid has this part, at most so many."""
        wanted = part.encode(errors="replace")
        found: list[int] = []
        for flush in range(len(self.uids) - 1, -1, -1):
            text, first = self.uids[flush], int(self.flush_starts[flush])
            at, line, counted = text.find(wanted), 0, 0
            while at >= 0 and len(found) < most:
                line += text.count(_SEPARATOR, counted, at)
                counted = at
                found.append(first + line)
                end = text.find(_SEPARATOR, at)
                at = -1 if end < 0 else text.find(wanted, end)
            if len(found) >= most:
                break
        return found
