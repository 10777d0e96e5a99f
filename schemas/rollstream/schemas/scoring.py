"""How late scores count: their versions, and the bytes that stand for them in a digest. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite

from rollstream.schemas.events import RolloutScore, Scored, ServedScore

FIRST_VERSION = 1


def next_version(
    before: ServedScore | None, row: int, event: Scored, score: RolloutScore, logged_ts: int
) -> ServedScore | None:
    """The score as the next version of a rollout and scorer, given with the group's id or without;
    None: it says again what ``before``, the newest version, says, and changes nothing.

    It says so again where all of it is the same, or where both name the same attempt. So a verifier
    that is killed and tries again, with another result, counts once.
    """
    if before is not None:
        same = (score.reward, score.rewards, score.flags) == before[1:3] + before[-1:]
        if same or (event.attempt and event.attempt == before.attempt):
            return None
    return ServedScore(
        row,
        score.reward,
        score.rewards,
        event.scorer,
        FIRST_VERSION if before is None else before.version + 1,
        event.attempt,
        logged_ts,
        bool(event.group_id),
        score.flags,
    )


def why_unusable(event: Scored) -> str:
    """What is wrong with a record that no ``ScoreProducer`` wrote; empty: nothing is."""
    if not (event.scorer and event.scores):
        return "it names no scorer, or nothing that was scored"
    if not event.group_id and not event.scores[0].rollout_uid:
        return "it names neither a group nor a rollout"
    if not all(isfinite(n) for one in event.scores for n in (one.reward, *one.rewards.values())):
        return "a reward in it is not finite"
    return ""


def digest_part(scores: Sequence[ServedScore]) -> bytes:
    """Canonical: equal scores are equal bytes, also when they were read from JSON."""
    return json.dumps(
        [one._asdict() for one in scores], sort_keys=True, separators=(",", ":")
    ).encode()
