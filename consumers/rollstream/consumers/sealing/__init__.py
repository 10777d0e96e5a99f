"""The thin loop around the assembler: it reads, flushes, claims, and lets go.

- ``sealer``        ``Sealer``: environments, the loop, draining, statistics
- ``environment``   one environment: the consumer group, who is assigned, what was lost
- ``partition``     one partition's life: claim, flush, doubt, let go
- ``intake``        what it reads: records, log time, losses, the pause
- ``flush``         the steps of a flush, in order
- ``rows``          from a plan to files and the event that names them
- ``projecting``    manifests that a killed predecessor left out
- ``readable``      which records can be sealed
- ``dead_letters``  those that cannot
- ``patience``      how long to wait before the next attempt, and saying what for
- ``workers``       threads beside the loop; none in simulations
- ``stats``         ``SealerStats``
"""

from rollstream.consumers.sealing.flush import STEPS, Flush, Step
from rollstream.consumers.sealing.sealer import Sealer
from rollstream.consumers.sealing.stats import PartitionStats, SealerStats

__all__ = ["STEPS", "Flush", "PartitionStats", "Sealer", "SealerStats", "Step"]
