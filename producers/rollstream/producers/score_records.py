"""From what a verifier says to a record of ``scores.<env>``, or ``InvalidRollout``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollstream.producers.validate import checked, checked_flag, checked_name, checked_reward
from rollstream.schemas import codec
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.events import RolloutScore, Scored

Flags = Sequence[str] | Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Score:
    """What one rollout is given.

    Attributes:
        reward: finite in float32; it takes the place of the reward of the rollout's last segment.
        rewards: named components, finite in float32.
        flags: texts that stay with the score; of a mapping to booleans those that are true. Batches
            have them, and samplers may filter by them.
    """

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    flags: Flags = ()


class ScoreRecord(NamedTuple):
    """A record and its key, which decides on the partition."""

    key: bytes
    value: bytes
    rollout_uid: str
    event: Scored


def score_record(
    scores: Mapping[str, Score],
    *,
    group_id: Any,
    scorer: Any,
    attempt: Any,
    now_us: int,
    expect_version: Any = None,
) -> ScoreRecord:
    """One record of these scores, by rollout uid; an empty uid: of each rollout of the group."""
    if not scorer:
        raise InvalidRollout(
            "scorer is empty; name it here or for the whole ScoreProducer, for example 'tests': "
            "versions count within one"
        )
    if not scores:
        raise InvalidRollout("scores is empty; give a score for each rollout that was scored")
    uids = [checked("rollout_uid", uid) for uid in scores]
    group = checked_name("group_id", group_id)
    event = Scored(
        scorer=checked_name("scorer", scorer),
        attempt=checked_name("attempt", attempt),
        group_id=group,
        scored_ts=now_us,
        scores=tuple(map(_rollout_score, uids, scores.values())),
        expect_version=(
            None if expect_version is None else checked("expect_version", expect_version)
        ),
    )
    key = (group or uids[0]).encode()
    return ScoreRecord(key, codec.encode(event), "" if group else uids[0], event)


def as_score(value: Any, flags: Flags = ()) -> Score:
    """A ``Score``, or a number as one; these flags are added."""
    score = value if isinstance(value, Score) else Score(value)
    return Score(score.reward, score.rewards, (*_flags(score.flags), *_flags(flags)))


def _rollout_score(uid: str, score: Score) -> RolloutScore:
    reward, rewards = checked_reward("reward", score.reward), checked("rewards", score.rewards)
    return RolloutScore(uid, reward, rewards, _flags(score.flags))


def _flags(flags: Any) -> tuple[str, ...]:
    if isinstance(flags, Mapping):
        return tuple(checked_name("a flag", name) for name in flags if _is_set(name, flags[name]))
    if isinstance(flags, str) or not isinstance(flags, Sequence):
        raise InvalidRollout(
            f"flags is {flags!r}; give a list of strings, for example ['cheats'], or a "
            "mapping of these to booleans"
        )
    return tuple(checked_name("a flag", flag) for flag in flags)


def _is_set(name: Any, value: Any) -> bool:
    return checked_flag(f"flags[{name!r:.80}]", value)
