"""Sealers that take over more than they have memory for, or make room as they must not."""

from __future__ import annotations

from unittest.mock import patch

from rollstream.consumers.sealing.budget import MemoryBudget
from rollstream.consumers.sealing.intake import ENTRY_BYTES, RECORD_BYTES, Intake
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.streams.broker import TopicPartition
from simulation.consumers.adopting import Adopting

# By this name: an exception within a world counts as a defect that was caught.
keep = Intake._keep


class BoundForEach(Adopting):
    """The bound is that of each partition."""

    def run(self) -> None:
        def hold(budget: MemoryBudget, source: TopicPartition, size: int) -> None:
            budget.used = size

        with patch.object(MemoryBudget, "hold", hold):
            super().run()


class ExpiringWithoutRoom(Adopting):
    """The oldest group expires where there is no room."""

    def run(self) -> None:
        def keep_or_expire(intake: Intake, record: IngestRecord) -> int:
            kept = keep(intake, record)
            is_whole = kept >= RECORD_BYTES + ENTRY_BYTES * record.count + record.size
            if not is_whole and intake.assembler.pending.by_key:
                intake.assembler.expire_oldest()
            return kept

        with patch.object(Intake, keep.__name__, keep_or_expire):
            super().run()
