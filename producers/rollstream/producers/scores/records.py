"""From what a verifier says to a record of ``scores.<env>``, or ``InvalidRollout``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollstream.producers.rollouts.fields import (
    checked,
    checked_flag,
    checked_name,
    checked_reward,
)
from rollstream.schemas import codec
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.rules import check_key

Flags = Sequence[str] | Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Score:
    """Holds the score of one rollout.

    Attributes:
        reward: finite in float32. It replaces the reward of the rollout's last segment.
        rewards: named components, finite in float32.
        flags: texts that stay with the score, or a mapping of texts to booleans, of which the true
            ones stay. Batches have them, and samplers filter by them.
    """

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    flags: Flags = ()


class ScoreRecord(NamedTuple):
    """A record and its key, which decides on the partition.

    Attributes:
        rollout_uid: as the caller gave it; empty where a group is named.
        event: with the uids as the caller gave them.
        given: these by the uids of rollouts that the record has, where they differ.
    """

    key: bytes
    value: bytes
    rollout_uid: str
    event: Scored
    given: Mapping[str, str]


def score_record(
    scores: Mapping[str, Score],
    *,
    group_id: Any,
    scorer: Any,
    attempt: Any,
    now_us: int,
    prompt_uid: Any = "",
    expect_version: Any = None,
) -> ScoreRecord:
    """One record of these scores, by rollout uid; an empty uid: of each rollout of the group. With
    ``prompt_uid`` they are by the uids of trajectories of its steps."""
    if not scorer:
        remedy = "name it here or for the whole ScoreProducer, for example 'tests': versions count "
        raise InvalidRollout("scorer", scorer, f"{remedy}within one", "is empty")
    if not scores:
        remedy = "give a score for each rollout that was scored"
        raise InvalidRollout("scores", scores, remedy, "is empty")
    given = [checked("rollout_uid", uid) for uid in scores]
    uids = _rollout_uids(given, checked_name("prompt_uid", prompt_uid))
    group = checked("group_id", group_id)
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
    key, value = (group or uids[0]).encode(), codec.encode(event)
    if given != uids:
        named = zip(event.scores, given, strict=True)
        as_given = tuple(score._replace(rollout_uid=uid) for score, uid in named)
        event = replace(event, scores=as_given)
    return ScoreRecord(
        key, value, "" if group else given[0], event, dict(zip(uids, given, strict=True))
    )


def _rollout_uids(uids: list[str], prompt_uid: str) -> list[str]:
    if not prompt_uid:
        return uids
    if "" in uids:
        raise InvalidRollout(
            "prompt_uid",
            prompt_uid,
            "give rollout_uid, the trajectory's uid, or leave prompt_uid out to score the whole "
            "group",
            f"is {prompt_uid!r}, and no trajectory is named",
        )
    return [step_rollout_uid(prompt_uid, uid) for uid in uids]


def as_score(value: Any, flags: Flags = ()) -> Score:
    """A ``Score``, or a number as one; these flags are added."""
    score = value if isinstance(value, Score) else Score(value)
    return Score(score.reward, score.rewards, (*_flags(score.flags), *_flags(flags)))


def _rollout_score(uid: str, score: Score) -> RolloutScore:
    reward, rewards = checked_reward("reward", score.reward), checked("rewards", score.rewards)
    return RolloutScore(uid, reward, rewards, _flags(score.flags))


def _flags(flags: Any) -> tuple[str, ...]:
    if isinstance(flags, Mapping):
        named = [name for name in flags if _is_set(name, flags[name])]
        return tuple(check_key("flags", name, checked_name) for name in named)
    if isinstance(flags, str) or not isinstance(flags, Sequence):
        remedy = "give a list of strings, for example ['cheats'], or a mapping of these to booleans"
        raise InvalidRollout("flags", flags, remedy)
    return tuple(checked_name(f"flags[{at}]", flag) for at, flag in enumerate(flags))


def _is_set(name: Any, value: Any) -> bool:
    return checked_flag(f"flags[{name!r:.80}]", value)
