"""Decisions from the moment they are made until they are committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rollstream.consumers.assembling.decisions import Decision, Plan, event_bytes, offsets_of

# Bytes of one flush event, well below RECORD_BYTES_MAX of a topic.
EVENT_BYTES_MAX = 8 * 1024 * 1024


class DecisionQueue:
    """Decisions in the order in which they were made, and the low watermark of those committed.

    Attributes:
        watermark: every offset below it is settled and committed.
        records: offsets that are decided and not committed.
        size: payload bytes that are decided and not committed.
    """

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.records = 0
        self.size = 0
        self._queue: deque[Decision] = deque()
        self._plans = 0
        self._settled: set[int] = set()  # Offsets above the watermark.

    def skip(self, offset: int) -> None:
        """The offset was settled before this queue began."""
        self._settle((offset,))

    def append(self, decision: Decision) -> None:
        """Adds the newest decision."""
        self._queue.append(decision)
        self.records += decision.records
        self.size += decision.size

    def plan(self, records_max: int, size_max: int, now_us: int) -> Plan | None:
        """The oldest decisions within these bounds (always one at least); None without any. The
        same come again until they are committed. ``now_us`` is log time."""
        decisions: list[Decision] = []
        records = size = event_size = 0
        for decision in self._queue:
            records += decision.records
            size += decision.size
            event_size += event_bytes(decision)
            over = records > records_max or size > size_max or event_size > EVENT_BYTES_MAX
            if decisions and over:
                records -= decision.records
                size -= decision.size
                break
            decisions.append(decision)
        if not decisions:
            return None
        planned, watermark = set(offsets_of(decisions)), self.watermark
        while watermark in planned or watermark in self._settled:
            watermark += 1
        return Plan(self._plans, tuple(decisions), watermark, now_us, records, size)

    def commit(self, plan: Plan) -> None:
        """Removes what a confirmed plan settled, and moves the watermark."""
        assert plan.number == self._plans, "a plan is committed once, the newest only"
        self._plans += 1
        for decision in plan.decisions:
            first = self._queue.popleft()
            assert first is decision, "decisions are committed in order"
        self.records -= plan.records
        self.size -= plan.size
        self._settle(offsets_of(plan.decisions))
        assert self.watermark == plan.watermark, (self.watermark, plan.watermark)

    def _settle(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            assert offset >= self.watermark, (offset, self.watermark)
            assert offset not in self._settled, f"offset {offset} is settled twice"
            self._settled.add(offset)
        while self.watermark in self._settled:
            self._settled.remove(self.watermark)
            self.watermark += 1
