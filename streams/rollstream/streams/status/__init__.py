"""How far each stage is, and which one is stuck, read from the logs alone.

- ``figures``   the figures of each stage
- ``measure``   reads the figures
- ``sampling``  pure: one sampler's figures, over the fold that the sampler itself has
- ``verdict``   pure: the first stage that is stuck, and the likely reason
"""

from rollstream.streams.status.figures import Figures, PartitionFigures, SamplerFigures
from rollstream.streams.status.measure import measure
from rollstream.streams.status.verdict import Verdict, first_stuck

__all__ = ["Figures", "PartitionFigures", "SamplerFigures", "Verdict", "first_stuck", "measure"]
