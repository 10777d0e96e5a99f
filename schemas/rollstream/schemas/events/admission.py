"""What samplers want.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a sampler wants: newest policy, and how much more may be generated.

    Attributes:
        open_groups: how many more groups may be begun; -1: no limit.
    """

    sampler: str
    epoch: int
    environment: str
    policy_version: str
    policy_step: int
    policy_epoch: int
    lineage: str
    open_groups: int
    expires_ts: int
