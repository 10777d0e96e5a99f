"""A group that is not decided yet."""

from __future__ import annotations

from rollstream.consumers.assembling.decisions import Settlement
from rollstream.consumers.assembling.grouping import PendingKey
from rollstream.schemas.codec import Segment


class Chain:
    """A trajectory some of whose segments are here.

    Attributes:
        group: it waits in; another one once that is sealed.
        first_offset, first_ts: of the segment that came first, whatever its index.
        size: bytes held.
    """

    __slots__ = ("first_offset", "first_ts", "group", "offsets", "segments", "size")

    def __init__(self, group: PendingGroup, first_offset: int, first_ts: int) -> None:
        self.group = group
        self.first_offset = first_offset
        self.first_ts = first_ts
        self.offsets: dict[int, int] = {}
        self.segments: dict[int, Segment] = {}
        self.size = 0

    @property
    def replica_id(self) -> str:
        """The env replica whose member it is: that of the segment that came first."""
        return next(iter(self.segments.values())).header.replica_id

    def rows(self) -> list[tuple[int, Segment]]:
        """Offsets and segments, in the order of the trajectory."""
        return [(self.offsets[idx], self.segments[idx]) for idx in sorted(self.segments)]


class PendingGroup:
    """Members so far, and whatever else is settled together with them.

    Attributes:
        size: members, whole or failed, at which it is complete.
        offsets, segments: the rows of whole members.
        members: how many are whole.
        failed: how many will never come.
        failed_uids: those that said who they are.
        chains: trajectories that are not whole, by uid.
        settlements: dispatches, failures and the like, settled with the group.
        replicas: members by env replica; only where a cap is set.
        payload: bytes held, chains included.
        records: offsets held.
        overdue: the seal time-out has passed, but too few members were here.
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
