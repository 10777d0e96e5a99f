"""Proves from logs and files that nothing was lost and nothing was sealed twice.

- ``audit``    ``audit``: reads a deployment's logs and files; ``AuditReport``: what does not hold
- ``ledger``   pure: what one partition's seal log settles, entry by entry
- ``records``  reads what is kept of an ingest log, beside the events that settle it
- ``repeats``  finds segments and groups that come twice, in bounded memory
- ``files``    compares files and manifests with the events that name them
"""

from rollstream.consumers.audit.audit import AuditReport, PartitionAudit, audit

__all__ = ["AuditReport", "PartitionAudit", "audit"]
