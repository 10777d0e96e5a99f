"""What an audit found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """One partition: ``published = pending + sealed + settled``.

    Attributes:
        published: offsets of the ingest log, deleted ones included.
        pending: those that nothing settled yet.
        sealed: rollout segments that stand in groups.
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
    """Every partition, and everything that does not hold.

    Attributes:
        problems: in words, with the place of each; empty where the audit holds.
    """

    partitions: tuple[PartitionAudit, ...]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, nothing is twice, and every file is what its event says."""
        return not self.problems

    def environment(self, name: str) -> PartitionAudit:
        """The sums over the partitions of one environment; ``partition`` is -1, and ``watermark``
        the sum of theirs."""
        rows = [row for row in self.partitions if row.environment == name]
        settled: Counter[str] = Counter()
        for row in rows:
            settled.update(row.settled)
        return PartitionAudit(
            environment=name,
            partition=-1,
            published=sum(row.published for row in rows),
            pending=sum(row.pending for row in rows),
            sealed=sum(row.sealed for row in rows),
            settled=settled,
            groups=sum(row.groups for row in rows),
            files=sum(row.files for row in rows),
            flushes=sum(row.flushes for row in rows),
            watermark=sum(row.watermark for row in rows),
            manifests_missing=sum(row.manifests_missing for row in rows),
        )
