"""The loop around the assembler: it reads, flushes, claims and relinquishes.

- ``sealer``        ``Sealer``: environments, the loop, draining
- ``owned_chores``  the jobs of a partition that nobody waits for
- ``offsets``       the consumer group's offset, and what hinders the partition
- ``context``       ``SealerContext``: what everything that seals one environment shares
- ``ends``          where logs end: one question for all that are asked about meanwhile
- ``environment``   one environment: its consumer group, adoption, losses
- ``partition``     one partition: its states from the claim to its revocation, flushes, doubt
- ``state``         what a partition does next
- ``claiming``    the jobs of a claim
- ``intake``        what it reads: records, those that cannot be sealed, log time, losses, the pause
- ``budget``        ``MemoryBudget``: one bound in bytes for all partitions, and who may read
- ``scratch``       payloads that have no room in memory, in temporary files
- ``newer``         a record of a newer producer, which stops its partition
- ``cadence``       when flushes begin
- ``reports``       which groups were dispatched, as the seal log says between flushes
- ``reports_of_now``, ``reports_log``  how producers stand, and what waits for what it continues
- ``flush_requests``  what is pending is sealed on request, and the request is answered
- ``retrying``      a partition that was put aside is tried again on request
- ``flush``         the steps of a flush, in order; manifests that a killed owner left out
- ``lost_logs``     whether the seal log is the one that the manifests follow from
- ``rows``          from a plan to files and the event that names them
- ``dead_letters``  keeps the rejected records for people
- ``stats``         ``SealerStats``
- ``metrics``       the same for Prometheus, and whether the sealer is alive
- ``announced``       the newest policy of the sampler whose stale groups are settled
- ``score_files``     writes late scores as files
"""

from rollstream.consumers.sealing.flush import STEPS, Flush, FlushStep
from rollstream.consumers.sealing.sealer import Sealer
from rollstream.consumers.sealing.stats import EnvironmentStats, PartitionStats, SealerStats

__all__ = [
    "STEPS",
    "EnvironmentStats",
    "Flush",
    "FlushStep",
    "PartitionStats",
    "Sealer",
    "SealerStats",
]
