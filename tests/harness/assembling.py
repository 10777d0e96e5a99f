"""Drives an ``Assembler`` by hand: records in, what it decided out."""

from __future__ import annotations

from typing import Any

from harness.rollouts import make_segment
from rollstream.consumers.assembling import Assembler, Decision, DueGroup, Plan
from rollstream.consumers.assembling.decisions import segments_of
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.codec import Segment
from rollstream.schemas.events import Dispatched, Failed
from rollstream.schemas.ids import SegmentId
from rollstream.schemas.reasons import SettleReason

SECOND = 1_000_000
RECORD_BYTES = 100
NO_BOUND = 1 << 40


class Drive:
    """Feeds one assembler and commits what it decides, remembering every uid that was settled."""

    def __init__(self, *, watermark: int = 0, **config: Any) -> None:
        self.segments_seen: set[SegmentId] = set()
        self.decisions: list[Decision] = []
        self.now_us = 0
        self.assembler = Assembler(
            "math",
            EnvironmentConfig(**{"target_group_size": 2, "min_group_size": 2, **config}),
            self.segments_seen.__contains__,
            watermark=watermark,
        )

    def add(self, event: Segment | Dispatched | Failed) -> int:
        """One record, now; its offset."""
        offset = self.assembler.position
        self.assembler.add(offset, self.now_us, event, RECORD_BYTES)
        return offset

    def rollout(self, uid: str, **fields: Any) -> int:
        return self.add(make_segment(rollout_uid=uid, **fields))

    def dispatch(self, group_uid: str, size: int, example_id: str = "ex-1") -> int:
        return self.add(
            Dispatched(
                environment="math", example_id=example_id, group_uid=group_uid, group_size=size
            )
        )

    def fail(self, group_uid: str, size: int, count: int = 1, uid: str = "") -> int:
        return self.add(
            Failed(
                environment="math",
                example_id="ex-1",
                group_uid=group_uid,
                group_size=size,
                count=count,
                rollout_uid=uid,
                reason="tests say so",
            )
        )

    def wait(self, seconds: float) -> None:
        """Log time passes without a record."""
        self.now_us += round(seconds * SECOND)
        self.assembler.tick(self.now_us)

    def plan(self, records_max: int, size_max: int) -> Plan | None:
        return self.assembler.decided.plan(records_max, size_max, self.assembler.now_us)

    def commit(self, records_max: int = NO_BOUND, size_max: int = NO_BOUND) -> Plan | None:
        plan = self.plan(records_max, size_max)
        if plan is not None:
            for decision in plan.decisions:
                self.segments_seen.update(segments_of(decision))
            self.assembler.commit(plan)
            self.decisions += plan.decisions
        return plan

    def groups(self) -> list[DueGroup]:
        """Every group that was sealed so far; commits first."""
        self.commit()
        return [d.group for d in self.decisions if d.group is not None]

    def members(self) -> list[tuple[str, ...]]:
        """The uids of each sealed group's rows."""
        return [tuple(s.header.rollout_uid for s in group.segments) for group in self.groups()]

    def settled(self) -> dict[int, SettleReason]:
        """Offset to reason, of all that ended without a group; commits first."""
        self.commit()
        return {s.offset: s.reason for d in self.decisions for s in d.settled}
