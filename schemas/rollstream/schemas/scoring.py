"""How late scores count: their versions, and the bytes that stand for them in a digest. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter

from rollstream.schemas.events import RolloutScore, Scored, ServedScore
from rollstream.schemas.rules import FLOAT32_MAX

BY_TIME = attrgetter("logged_ts", "by_group", "scorer")  # Of ``ServedScore``; the last counts.
NO_VERSION = 0  # Of a rollout that a scorer has said nothing of; versions count from 1.


def version_of(newest: ServedScore | None) -> int:
    """That of the newest score."""
    return NO_VERSION if newest is None else newest.version


def repeats(before: ServedScore | None, event: Scored, score: RolloutScore) -> bool:
    """Whether all of the score is the same as before, or both name the same attempt. So a verifier
    that is killed and tries again, with another result, counts once."""
    if before is None:
        return False
    return says_same(before, score) or bool(event.attempt and event.attempt == before.attempt)


def says_same(before: ServedScore, score: RolloutScore) -> bool:
    """Whether reward, components and flags are the same."""
    return (score.reward, score.rewards, score.flags) == before[1:3] + before[-1:]


def next_version(
    before: ServedScore | None, row: int, event: Scored, score: RolloutScore, logged_ts: int
) -> ServedScore | None:
    """The score as the next version of a rollout and scorer, given with the group's id or without;
    None: it ``repeats`` what ``before``, the newest version, says, or expects another version than
    that, and changes nothing."""
    if repeats(before, event, score):
        return None
    if event.expect_version not in (None, version_of(before)):
        return None
    return ServedScore(
        row,
        score.reward,
        score.rewards,
        event.scorer,
        version_of(before) + 1,
        event.attempt,
        logged_ts,
        bool(event.group_id),
        score.flags,
    )


class NewestVersions:
    """The newest version of each rollout, by group and scorer, as the records of one log give them
    in their order. It does not know who is in a group: a score of the whole group is one of each
    rollout that was named before, and, under no uid, one of all others.

    Args:
        wanted: the only version that is kept; None: the newest one.
    """

    def __init__(self, wanted: int | None = None) -> None:
        self._wanted = wanted
        self._newest: dict[tuple[str, str], dict[str, ServedScore]] = {}
        self._scorers = set[str]()

    def of(self, group_id: str, scorer: str, uid: str) -> ServedScore | None:
        """That of a rollout, by the scorer and within the group; empty: by the rollout's uid
        alone."""
        known = self._newest.get((group_id, scorer), {})
        return known.get(uid, known.get(""))

    def in_effect(
        self, group_id: str, uid: str, scorer: str, *, is_late: bool
    ) -> ServedScore | None:
        """What a rollout of the group has instead of its published reward, as samplers have it
        that name this scorer; empty: none, so that where it is late the one logged last counts."""
        scorers = [scorer] if scorer else [*self._scorers] if is_late else []
        each = (self.of(of, name, uid) for name in scorers for of in (group_id, ""))
        found = [one for one in each if one and self._wanted in (None, one.version)]
        return max(found, key=BY_TIME, default=None)

    def add(self, event: Scored, score: RolloutScore, logged_ts: int = 0) -> int | None:
        """Counts a score of the next record. Returns the greatest version that it is of any
        rollout; None: it changes nothing."""
        known = self._newest.setdefault((event.group_id, event.scorer), {})
        whole = event.group_id and not score.rollout_uid
        found: dict[str, ServedScore] = {}
        for uid in {"", *known} if whole else (score.rollout_uid,):
            before = self.of(event.group_id, event.scorer, uid)
            version = next_version(before, 0, event, score, logged_ts)
            # A later version than the one that is wanted would only take its place.
            if version and version.version <= (self._wanted or version.version):
                found[uid] = version
        known.update(found)
        self._scorers.add(event.scorer)
        return max((version.version for version in found.values()), default=None)


def why_unusable(event: Scored) -> str:
    """What is wrong with a record that no ``ScoreProducer`` wrote; empty: nothing is."""
    if not (event.scorer and event.scores):
        return "it names no scorer, or nothing that was scored"
    if not event.group_id and not event.scores[0].rollout_uid:
        return "it names neither a group nor a rollout"
    rewards = (n for one in event.scores for n in (one.reward, *one.rewards.values()))
    if not all(abs(reward) <= FLOAT32_MAX for reward in rewards):
        return "a reward in it is not finite in float32"
    return ""


def digest_part(scores: Sequence[ServedScore]) -> bytes:
    """Canonical: equal scores are equal bytes, also when they were read from JSON."""
    return json.dumps(
        [one._asdict() for one in scores], sort_keys=True, separators=(",", ":")
    ).encode()
