"""A group that is not decided yet, and its trajectories that are not complete yet.

Which group a record belongs to: with ``group_uid`` the producer said so, and the example is part of
the key only so that one uid used twice by mistake never joins rollouts of two problems. Without it
the key is inferred: strict (example, policy version) or mixed (example); split and lineage always
separate, since a group has one of each. Groups hold whole trajectories, so the key's segment is
that of the first, 0.

Whether a trajectory's segments form one unbroken chain: segment k > 0 may say what it continues.
``continuation_of`` is then the trajectory's own ``rollout_uid``, and ``prefix_hash`` names all
tokens of segments 0 to k - 1 (``rollstream.schemas.ids.prefix_hash``). Empty means that the
producer does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

from rollstream.schemas.header import RolloutHeader

from rollstream.consumers.assembling.decisions import Settlement
from rollstream.schemas.codec import Segment
from rollstream.schemas.ids import GroupKey, prefix_hash

PendingKey = tuple[str, ...]


def pending_key(header: RolloutHeader, strict: bool) -> PendingKey:
    """The key of the pending group that the rollout belongs to."""
    if header.group_uid:
        return (header.group_uid, header.example_id)
    policy = header.policy_version if strict else ""
    return ("", header.example_id, policy, header.split, header.lineage)


def group_key(environment: str, header: RolloutHeader, strict: bool) -> GroupKey:
    """The key of the sealed group that has this header in its first row."""
    policy = header.policy_version if strict and not header.group_uid else ""
    return GroupKey(environment, header.example_id, 0, policy, header.group_uid)


class ChainState(Enum):
    """What some segments of one trajectory amount to."""

    OPEN = auto()  # Segments are missing.
    COMPLETE = auto()  # The last segment and every one before it, each continuing those before it.
    BROKEN = auto()  # No later segment can complete it.


@dataclass(slots=True, eq=False)
class Chain:
    """A trajectory of which some segments were read.

    Attributes:
        group: it waits in; another one once that is sealed.
        first_offset, first_ts: of the segment that came first, whatever its index.
        size: payload bytes held.
    """

    group: PendingGroup
    first_offset: int
    first_ts: int
    size: int = 0
    _rows: dict[int, tuple[int, Segment]] = field(default_factory=dict)

    def add(self, offset: int, segment: Segment, size: int) -> ChainState:
        """Adds a segment; returns what the trajectory is now."""
        self._rows[segment.header.segment_idx] = (offset, segment)
        self.size += size
        ends = [idx for idx, (_, held) in self._rows.items() if held.header.is_last_segment]
        if ends and max(self._rows) > min(ends):
            return ChainState.BROKEN
        if not ends or len(self._rows) <= min(ends):
            return ChainState.OPEN
        return ChainState.COMPLETE if self._unbroken() else ChainState.BROKEN

    @property
    def replica_id(self) -> str:
        """The env replica that it counts for: that of the segment that came first."""
        return next(iter(self._rows.values()))[1].header.replica_id

    def rows(self) -> list[tuple[int, Segment]]:
        """Offsets and segments, in the order of the trajectory."""
        return [self._rows[idx] for idx in sorted(self._rows)]

    def _unbroken(self) -> bool:
        prefix = ""
        for (_, before), (_, segment) in pairwise(self.rows()):
            prefix = prefix_hash(prefix, before.body["prompt_tokens"], before.body["output_tokens"])
            header = segment.header
            if header.continuation_of not in ("", header.rollout_uid):
                return False
            if header.prefix_hash not in ("", prefix):
                return False
        return True


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Members so far, and whatever else is settled together with them.

    Attributes:
        size: members, complete or failed, at which the group is full.
        first_offset, first_ts: of the record that it began with.
        offsets, segments: the rows of complete members.
        members: how many members are complete.
        failed: how many members will never come.
        failed_uids: the failed members whose uid is known.
        chains: trajectories that are not complete, by uid.
        settlements: dispatches, failures and the like, settled with the group.
        replicas: members by env replica; only where a cap is set.
        payload: bytes held, chains included.
        records: offsets held.
        split: ``train`` while every member is; else that of one that is not.
        overdue: the seal time-out has passed, but the group had too few members.
    """

    key: PendingKey
    size: int
    first_offset: int
    first_ts: int
    offsets: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    members: int = 0
    failed: int = 0
    failed_uids: set[str] = field(default_factory=set)
    chains: dict[str, Chain] = field(default_factory=dict)
    settlements: list[Settlement] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)
    payload: int = 0
    records: int = 0
    split: str = "train"
    overdue: bool = False
