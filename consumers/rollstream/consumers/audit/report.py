"""The result of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """One partition: ``published = pending + sealed + settled``.

    Attributes:
        published: offsets of the ingest log, deleted ones included.
        pending: those that nothing has settled yet.
        sealed: those of segments that are in groups.
        settled: by reason, the offsets that ended without a group.
        watermark: every offset below it is settled.
        manifests_missing: flushes without a manifest; the newest may lack its own.
    """

    environment: str
    partition: int
    published: int
    pending: int
    sealed: int
    settled: Mapping[str, int]
    groups: int
    files: int
    flushes: int
    watermark: int
    manifests_missing: int

    @property
    def balanced(self) -> bool:
        """Whether the equation holds."""
        return self.published == self.pending + self.sealed + sum(self.settled.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The figures of every partition, and every problem.

    Attributes:
        problems: in words, each with its log or file; empty where the audit holds.
    """

    partitions: tuple[PartitionAudit, ...]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, nothing is sealed twice, and every file is as its event says."""
        return not self.problems

    def environment(self, name: str) -> PartitionAudit:
        """The sums over the partitions of one environment; ``partition`` is -1, and ``watermark``
        the sum of theirs."""
        rows = [row for row in self.partitions if row.environment == name]
        settled: Counter[str] = Counter()
        for row in rows:
            settled.update(row.settled)
        counts = {f.name for f in fields(PartitionAudit)} - {"environment", "partition", "settled"}
        sums: dict[str, Any] = {key: sum(getattr(row, key) for row in rows) for key in counts}
        return PartitionAudit(environment=name, partition=-1, settled=settled, **sums)
