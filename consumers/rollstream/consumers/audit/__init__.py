"""Proves from logs and files that nothing was lost and nothing was sealed twice.

- ``audit``    ``audit``: reads a deployment's logs and files; ``AuditReport``: what does not hold
- ``ledger``   pure: what one partition's seal log settles, entry by entry
- ``records``  reads what is kept of an ingest log, beside the events that settle it
- ``repeats``  finds segments, groups and files that come twice, in bounded memory
- ``retired``  which files of which flush were retired, in bounded memory
- ``spilled``  rows of numbers, in temporary files where they are many
- ``files``    compares files with the events that name them
- ``manifests`` compares manifests and roll-ups with the seal log, in its order
"""

from rollstream.consumers.audit.audit import AuditReport, PartitionAudit, audit

__all__ = ["AuditReport", "PartitionAudit", "audit"]
