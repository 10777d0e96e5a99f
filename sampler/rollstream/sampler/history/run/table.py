"""The rollouts of a run that a search finds, a page at a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.history.ranking import first_by
from rollstream.sampler.history.run.columns import NO_STEP, RunColumns
from rollstream.store.rollups import VisibleFile

TableOrder = Literal["newest", "lowest_reward", "highest_reward", "longest"]
ORDERS: tuple[TableOrder, ...] = get_args(TableOrder)
ROWS_MAX = 200  # Of a page.
UIDS_MAX = 10_000  # That a part of a uid finds: the newest.


class TableQuery(NamedTuple):
    """Which rollouts.

    Attributes:
        text: a part of their uid, their example's id or their policy version; empty: any.
        environment: empty: any. first, most: of those that are found; at most ``ROWS_MAX``.
    """

    text: str = ""
    environment: str = ""
    order: TableOrder = "newest"
    first: int = 0
    most: int = 50


class RolloutRow(NamedTuple):
    """A rollout of the table. ``reward``: None: it is awaited. ``step``: None: no batch has it."""

    uid: str
    environment: str
    example_id: str
    policy_version: str
    reward: float | None
    tokens: int
    step: int | None
    is_eval: bool
    sealed_ts: int
    file: VisibleFile


class FoundRows(NamedTuple):
    """``found``: how many there are in all."""

    found: int
    rows: Sequence[RolloutRow]


def find_rows(run: RunColumns, query: TableQuery) -> FoundRows:
    """The rollouts; the work of a call grows with the run by some array passes alone."""
    chosen = np.flatnonzero(_matching(run, query))
    count = min(max(query.most, 0), ROWS_MAX)
    first = max(query.first, 0)
    if query.order == "newest":
        page = chosen[::-1][first : first + count]
    else:
        keys = {
            "lowest_reward": run.rewards,
            "highest_reward": -run.rewards,
            "longest": -run.tokens.astype(np.float64),
        }[query.order]
        chosen = chosen[~np.isnan(keys[chosen])]
        # Of equal ones the newest comes first, so that each is on one page.
        page = first_by((-np.arange(run.rollouts), keys), chosen, first + count)[first:]
    return FoundRows(len(chosen), [_row(run, rollout) for rollout in page.tolist()])


def _matching(run: RunColumns, query: TableQuery) -> NDArray[np.bool_]:
    """bool [rollouts]."""
    groups = np.ones(len(run.examples), np.bool_)
    if query.environment:
        numbers = [n for n, name in enumerate(run.environments) if name == query.environment]
        groups &= np.isin(run.group_environment, numbers)
    if not query.text:
        return groups[run.group_of]
    text = query.text
    named = np.fromiter((text in one for one in run.examples), np.bool_, len(run.examples))
    policies = [number for number, name in enumerate(run.policies) if text in name]
    named |= np.isin(run.group_policy, policies)
    found = np.zeros(run.rollouts, np.bool_)
    found[run.with_uid(text, UIDS_MAX)] = True
    return (named[run.group_of] | found) & groups[run.group_of]


def _row(run: RunColumns, rollout: int) -> RolloutRow:
    group, reward = int(run.group_of[rollout]), float(run.rewards[rollout])
    step = int(run.steps[rollout])
    return RolloutRow(
        uid=run.uid(rollout),
        environment=run.environments[int(run.group_environment[group])],
        example_id=run.examples[group],
        policy_version=run.policies[int(run.group_policy[group])],
        reward=None if np.isnan(reward) else reward,
        tokens=int(run.tokens[rollout]),
        step=None if step == NO_STEP else step,
        is_eval=bool(run.group_is_eval[group]),
        sealed_ts=int(run.group_sealed_ts[group]),
        file=run.files[group],
    )
