"""Groups that a program has in hand become part of the deployment's data.

- ``write``    ``write_rollout_groups``: stages groups, asks the owners of their partitions
- ``entries``  a rollout as ``RolloutRecord`` has it, to an entry of the ingest log
- ``staged``   groups as bytes under ``staging/``, and from them what a flush seals
- ``old_batches``  groups of files with the metadata once a batch (``read_old_batches``)
- ``old_fields``   pure: the fields of a rollout there, and their rules
- ``owner``    the owner's part: which of the staged groups are new
"""

from rollstream.consumers.importing.old_batches import InvalidBatch, read_old_batches
from rollstream.consumers.importing.staged import InvalidGroup
from rollstream.consumers.importing.write import (
    ImportReport,
    ImportUnfinished,
    NoDeployment,
    write_rollout_groups,
)

__all__ = [
    "ImportReport",
    "ImportUnfinished",
    "InvalidBatch",
    "InvalidGroup",
    "NoDeployment",
    "read_old_batches",
    "write_rollout_groups",
]
