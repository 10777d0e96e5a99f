"""Groups that a program has in hand become part of the deployment's data.

- ``write``    ``write_rollout_groups``: stages groups, asks the owners of their partitions
- ``entries``  a rollout as ``RolloutRecord`` has it, to an entry of the ingest log
- ``staged``   groups as bytes under ``staging/``, and from them what a flush seals
- ``owner``    the owner's part: which of the staged groups are new
"""

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
    "InvalidGroup",
    "NoDeployment",
    "write_rollout_groups",
]
