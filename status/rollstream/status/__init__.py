"""How far each stage is, and which are stuck, read from the logs and the sealers' groups.

- ``figures``   the figures of each stage
- ``measure``   reads the figures
- ``partitions``  their seal logs, and a few records of their ingest logs
- ``admission``  who waits to begin groups, and whether a sampler tells them
- ``decided``   what a sampler decided, from a hint on
- ``sampling``  pure: one sampler's figures, over the fold that the sampler itself has
- ``verdict``   pure: every stage that is stuck, with the likely reason
- ``alarms``    what is stuck, as programs read it
- ``metrics``   figures and stuck stages for Prometheus (pure)
- ``letters``    counts the dead letters that nobody published again
"""

from rollstream.status.alarms import Alarm
from rollstream.status.figures import (
    AdmissionFigures,
    ContinuationFigures,
    DeadLetterFigures,
    Figures,
    PartitionFigures,
    SamplerFigures,
)
from rollstream.status.measure import measure
from rollstream.status.metrics import samples
from rollstream.status.verdict import ERROR, WARNING, Verdict, stuck_stages

__all__ = [
    "ERROR",
    "WARNING",
    "AdmissionFigures",
    "Alarm",
    "ContinuationFigures",
    "DeadLetterFigures",
    "Figures",
    "PartitionFigures",
    "SamplerFigures",
    "Verdict",
    "measure",
    "samples",
    "stuck_stages",
]
