"""Verifiers.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A verifier's word on one rollout, or on a whole group."""

    environment: str
    rollout_uid: str = ""
    group_id: str = ""
    group_uid: str = ""
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    version: int
    scorer: str
    created_ts: int = 0
