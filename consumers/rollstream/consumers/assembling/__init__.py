"""What becomes of every entry of one source partition: pure, records in, decisions out.

- ``assembler``   ``Assembler``: the state machine; reads records, finds the group of each entry
- ``outcomes``    ``Outcomes``: when groups and trajectories are decided, and as what
- ``decisions``   what it decides, as values: ``SealDecision``, ``DueGroup``, ``Settlement``,
                  ``Plan``; ``DecisionQueue``: decisions until they are committed, flush by flush
- ``fitting``     splits what is too large for the event of one flush
- ``pending``     a group that is not decided yet and which entries are its; its open trajectories
- ``held``        the records that these entries stand in, and how many bytes that keeps in memory
- ``in_flight``   ``ProducersInFlight``: how many groups each producer has open, and what it said
- ``groups``      all pending groups and trajectories, found by key and by age
- ``freshness``   groups that a sampler would drop: settled instead of sealed
"""

from rollstream.consumers.assembling.assembler import Assembler
from rollstream.consumers.assembling.decisions import DueGroup, Plan, SealDecision, Settlement

__all__ = ["Assembler", "DueGroup", "Plan", "SealDecision", "Settlement"]
