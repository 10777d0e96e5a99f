"""The control events: what producers write besides rollouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """An env replica began to work on a group."""

    environment: str
    example_id: str
    group_uid: str
    group_size: int
    replica_id: str = "unknown"
    worker_id: str = ""
    created_ts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Members of a group that will never come; they count towards its size."""

    environment: str
    example_id: str
    group_uid: str
    group_size: int
    count: int = 1
    rollout_uid: str = ""
    reason: str
    replica_id: str = "unknown"
    worker_id: str = ""
    created_ts: int = 0
