"""A group that is not decided yet, and its trajectories that are not complete yet."""

from __future__ import annotations

from rollstream.consumers.assembling.decisions import Settlement
from rollstream.consumers.assembling.grouping import PendingKey
from rollstream.consumers.assembling.segments import ChainState, chain_state
from rollstream.schemas.codec import Segment


class Chain:
    """A trajectory of which some segments were read.

    Attributes:
        group: it waits in; another one once that is sealed.
        first_offset, first_ts: of the segment that came first, whatever its index.
        size: payload bytes held.
    """

    __slots__ = ("_offsets", "_segments", "first_offset", "first_ts", "group", "size")

    def __init__(self, group: PendingGroup, first_offset: int, first_ts: int) -> None:
        self.group = group
        self.first_offset = first_offset
        self.first_ts = first_ts
        self.size = 0
        self._offsets: dict[int, int] = {}
        self._segments: dict[int, Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

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


class PendingGroup:
    """Members so far, and whatever else is settled together with them.

    Attributes:
        size: members, complete or failed, at which the group is full.
        offsets, segments: the rows of complete members.
        members: how many members are complete.
        failed: how many members will never come.
        failed_uids: the failed members whose uid is known.
        chains: trajectories that are not complete, by uid.
        settlements: dispatches, failures and the like, settled with the group.
        replicas: members by env replica; only where a cap is set.
        payload: bytes held, chains included.
        records: offsets held.
        split: ``train`` while every member is; else the other word.
        overdue: the seal time-out has passed, but the group had too few members.
    """

    __slots__ = (
        "chains",
        "failed",
        "failed_uids",
        "first_offset",
        "first_ts",
        "key",
        "members",
        "offsets",
        "overdue",
        "payload",
        "records",
        "replicas",
        "segments",
        "settlements",
        "size",
        "split",
    )

    def __init__(self, key: PendingKey, size: int, first_offset: int, first_ts: int) -> None:
        self.key = key
        self.size = size
        self.first_offset = first_offset
        self.first_ts = first_ts
        self.offsets: list[int] = []
        self.segments: list[Segment] = []
        self.members = 0
        self.failed = 0
        self.failed_uids: set[str] = set()
        self.chains: dict[str, Chain] = {}
        self.settlements: list[Settlement] = []
        self.replicas: dict[str, int] = {}
        self.payload = 0
        self.records = 0
        self.split = "train"
        self.overdue = False
