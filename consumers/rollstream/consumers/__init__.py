"""From ingest logs to sealed groups, and the proof that nothing was lost.

Map:

- ``assembling/``   pure: what becomes of every rollout of one partition
- ``sealing/``      the thin loop around it: reads, writes files, appends events (``Sealer``)
- ``audit/``        every offset accounted for, every file as its event says (``audit``)
"""

from rollstream.consumers.audit import AuditReport, PartitionAudit, audit
from rollstream.consumers.sealing import InlineExecutor, PartitionStats, Sealer, SealerStats

__all__ = [
    "AuditReport",
    "InlineExecutor",
    "PartitionAudit",
    "PartitionStats",
    "Sealer",
    "SealerStats",
    "audit",
]
