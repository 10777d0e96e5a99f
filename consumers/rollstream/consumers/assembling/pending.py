"""A group that is not decided yet, and its trajectories that are not complete yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollstream.consumers.assembling.decisions import Settlement
from rollstream.consumers.assembling.grouping import PendingKey
from rollstream.consumers.assembling.segments import ChainState, chain_state
from rollstream.schemas.codec import Segment


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
    _offsets: dict[int, int] = field(default_factory=dict)
    _segments: dict[int, Segment] = field(default_factory=dict)

    def add(self, offset: int, segment: Segment, size: int) -> ChainState:
        """Adds a segment; returns what the trajectory is now."""
        idx = segment.header.segment_idx
        self._offsets[idx] = offset
        self._segments[idx] = segment
        self.size += size
        return chain_state(self._segments)

    @property
    def replica_id(self) -> str:
        """The env replica that it counts for: that of the segment that came first."""
        return next(iter(self._segments.values())).header.replica_id

    def rows(self) -> list[tuple[int, Segment]]:
        """Offsets and segments, in the order of the trajectory."""
        return [(self._offsets[idx], self._segments[idx]) for idx in sorted(self._segments)]


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
