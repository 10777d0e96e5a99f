"""How far each stage is, and which one is stuck: from the logs alone.

- ``figures``   what is known of each stage
- ``groups``    pure: which sealed groups are ready for a sampler, and which wait
- ``progress``  pure: a sampler's decisions as counts
- ``measure``   reads the figures
- ``verdict``   pure: the first stage that is stuck, and the likely reason
"""

from rollstream.streams.status.figures import Figures, PartitionFigures, SamplerFigures
from rollstream.streams.status.groups import SamplerSources
from rollstream.streams.status.measure import measure
from rollstream.streams.status.verdict import WAITING, Limits, Verdict, first_stuck

__all__ = [
    "WAITING",
    "Figures",
    "Limits",
    "PartitionFigures",
    "SamplerFigures",
    "SamplerSources",
    "Verdict",
    "first_stuck",
    "measure",
]
