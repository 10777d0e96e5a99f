"""What becomes of every rollout of one source partition: pure, headers in, decisions out.

- ``assembler``   ``Assembler``: the state machine; members, completion, time-outs, bounds
- ``decisions``   what it decides: ``Decision``, ``DueGroup``, ``Settlement``, ``Plan``
- ``pending``     a group that is not decided yet, and the trajectories that are not whole yet
- ``grouping``    which group a rollout, a dispatch or a failure belongs to
- ``segments``    whether a trajectory's segments form one unbroken chain
- ``expiry``      groups by age, oldest first, at constant cost
- ``watermark``   the oldest offset that is not settled
"""

from rollstream.consumers.assembling.assembler import Assembler
from rollstream.consumers.assembling.decisions import Decision, DueGroup, Plan, Settlement

__all__ = ["Assembler", "Decision", "DueGroup", "Plan", "Settlement"]
