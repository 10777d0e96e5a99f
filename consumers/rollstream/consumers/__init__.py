"""Turns ingest logs into sealed groups, and proves that nothing was lost.

Map:

- ``assembling/``   pure: what becomes of every rollout of one partition
- ``sealing/``      the loop around it: reads, writes files, appends events (``Sealer``)
- ``beside/``       work that the loop does not wait for: threads, jobs, questions
- ``dead_letters/``  publishes again what dead letters hold
- ``sealed_groups``  hands out each sealed group, for verifiers (``SealedGroups``)
- ``positions``     how far each reader of sealed groups is, in a topic that is kept for ever
- ``deployment``    makes topics, and the id of the store's root (``create_deployment``)
- ``delivering``    appends records, and waits for what becomes of each
- ``asking``        asks the owners of seal logs for something, and reads their answers
- ``importing/``     makes groups that a program has in hand data (``write_rollout_groups``)
- ``audit/``        checks that every offset is accounted for and every file intact (``audit``)
- ``retention/``     retires and deletes files whose groups every sampler is done with
"""

import rollstream.runtime.config  # noqa: F401 - First: it says which extra is missing.
from rollstream.consumers.asking import UnknownEnvironment
from rollstream.consumers.audit import AuditReport, PartitionAudit, audit
from rollstream.consumers.beside.threads import InlineExecutor
from rollstream.consumers.deployment import Created, create_deployment
from rollstream.consumers.importing import (
    ImportReport,
    ImportUnfinished,
    InvalidBatch,
    InvalidGroup,
    NoDeployment,
    read_old_batches,
    write_rollout_groups,
)
from rollstream.consumers.sealed_groups import SealedGroups
from rollstream.consumers.sealing import EnvironmentStats, PartitionStats, Sealer, SealerStats

__all__ = [
    "AuditReport",
    "Created",
    "EnvironmentStats",
    "ImportReport",
    "ImportUnfinished",
    "InlineExecutor",
    "InvalidBatch",
    "InvalidGroup",
    "NoDeployment",
    "PartitionAudit",
    "PartitionStats",
    "SealedGroups",
    "Sealer",
    "SealerStats",
    "UnknownEnvironment",
    "audit",
    "create_deployment",
    "read_old_batches",
    "write_rollout_groups",
]
