"""Late scores: ``scores.<env>``, a log without an owner, which is kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class RolloutScore(NamedTuple):
    """What one rollout is given; without a uid, each rollout of the group."""

    rollout_uid: str
    reward: float
    rewards: Mapping[str, float]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What a scorer says of one rollout, or of several of one group at once.

    Without ``group_id`` it is of the rollout that the first of ``scores`` names. Every reader
    counts versions in the same way (``rollstream.schemas.scoring``), so that none stands here, but
    the newest one that there is to be for the score to count, where its writer named any.
    """

    scorer: str
    attempt: str
    group_id: str
    scored_ts: int
    scores: tuple[RolloutScore, ...]
    expect_version: int | None = None
