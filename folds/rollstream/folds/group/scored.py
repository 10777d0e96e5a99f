"""What late scores make of a sealed group. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rollstream.folds.group.earned import returns_of
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.packed_rows import pack_rows
from rollstream.folds.group.score_targets import rollout_target, unpack_targets
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import Scored, ServedScore
from rollstream.schemas.scoring import next_version


class Given(NamedTuple):
    """A record of scores, and its log time."""

    event: Scored
    logged_ts: int


def with_scores(group: KnownGroup, given: Iterable[Given], choosing: Choosing) -> KnownGroup:
    """The group with what these records, in the order of their logs, say of its rollouts; the very
    same where they say nothing new, or are of a scorer that the settings do not name."""
    newest = {(one.row, one.scorer, one.by_group): one for one in group.scores}
    hashes, _ = unpack_targets(group.targets)
    lasts = _last_rows(group)
    rows_of = dict(zip(hashes.tolist(), lasts, strict=True))
    changed = False
    for event, logged_ts in given:
        if choosing.scorer not in ("", event.scorer):
            continue
        for score in event.scores[: None if event.group_id else 1]:
            rows = lasts
            if score.rollout_uid or not event.group_id:
                target = rollout_target(group.key.environment, score.rollout_uid)
                rows = [rows_of[target]] if target in rows_of else []
            for row in rows:
                key = row, event.scorer, bool(event.group_id)
                version = next_version(newest.get(key), row, event, score, logged_ts)
                # A later version than the one that is wanted would only take its place.
                if version and version.version <= (choosing.score_version or version.version):
                    newest[key], changed = version, True
    if not changed:
        return group
    scores = tuple(newest[key] for key in sorted(newest))
    return _earning(group._replace(scores=scores), choosing)


def served_scores(group: KnownGroup, choosing: Choosing) -> tuple[ServedScore, ...]:
    """The scores that a batch has instead of what was published, one a rollout at most: where a
    scorer is named its own, else, where no reward was published, the one that was logged last."""
    if not group.scores:
        return ()
    _, awaited = unpack_targets(group.targets)
    late = {row for row, is_late in zip(_last_rows(group), awaited, strict=True) if is_late}
    served: dict[int, ServedScore] = {}
    for one in sorted(group.scores, key=lambda one: (one.logged_ts, one.by_group, one.scorer)):
        wanted = choosing.score_version in (None, one.version)
        if wanted and (choosing.scorer or one.row in late):
            served[one.row] = one
    return tuple(served[row] for row in sorted(served))


def _earning(group: KnownGroup, choosing: Choosing) -> KnownGroup:
    """The group with what its rollouts earned by these scores."""
    rows = group.rows.unpack()
    earned, scored = rows.earned.copy(), np.zeros(group.rows.rows, np.bool_)
    for one in served_scores(group, choosing):
        earned[one.row], scored[one.row] = one.reward, True
    _, awaited = unpack_targets(group.targets)
    returns = returns_of(earned, rows.begins)
    columns = (rows.weight_steps, rows.created_ts, earned, rows.begins)
    return group._replace(
        has_rewards=not (awaited & ~scored[_last_rows(group)]).any(),
        all_equal=bool(returns.min() == returns.max()),
        rows=pack_rows(np.zeros(1, np.int64), *columns, [0])[0],
    )


def _last_rows(group: KnownGroup) -> list[int]:
    """Of each rollout the row that a score is of."""
    begins = group.rows.unpack().begins
    rows: list[int] = np.flatnonzero(np.append(begins[1:], True)).tolist()
    return rows
