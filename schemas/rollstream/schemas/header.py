"""The header of a rollout segment: all that a decision may read, never a token."""

from __future__ import annotations

from typing import NamedTuple


class RolloutHeader(NamedTuple):
    """The first fields of ``rollout.v1.avsc``, in its order; a test holds the two together.

    ``reward`` is None while a score is awaited. ``weight_step`` is the oldest of the weights that
    sampled the segment, -1 where it is not known. ``created_ts`` is microseconds UTC.
    """

    environment: str
    example_id: str
    group_uid: str
    group_size: int
    rollout_uid: str
    segment_idx: int
    is_last_segment: bool
    continuation_of: str
    prefix_hash: str
    lineage: str
    policy_version: str
    policy_epoch: int
    weight_step: int
    replica_id: str
    worker_id: str
    created_ts: int
    prompt_count: int
    token_count: int
    reward: float | None
    split: str
    stop_reason: str
