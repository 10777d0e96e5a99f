"""Which group a record belongs to.

With ``group_uid`` the producer said so, and the example is part of the key only so that one uid
used twice by mistake never joins rollouts of two problems. Without it the key is inferred: strict
(example, policy version) or mixed (example); split and lineage always separate, since a group has
one of each. Groups hold whole trajectories, so the key's segment is that of the first, 0.
"""

from __future__ import annotations

from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.ids import GroupKey

PendingKey = tuple[str, ...]


def pending_key(header: RolloutHeader, strict: bool) -> PendingKey:
    """The key of the pending group that the rollout belongs to."""
    if header.group_uid:
        return (header.group_uid, header.example_id)
    policy = header.policy_version if strict else ""
    return ("", header.example_id, policy, header.split, header.lineage)


def group_key(environment: str, header: RolloutHeader, strict: bool) -> GroupKey:
    """The key of the sealed group that has this header in its first row."""
    inferred = strict and not header.group_uid
    policy = header.policy_version if inferred else ""
    return GroupKey(environment, header.example_id, 0, policy, header.group_uid)
