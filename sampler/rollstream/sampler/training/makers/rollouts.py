"""Between batches and makers: what a maker knows of a batch, and what it made of one. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import at_least, indices
from rollstream.sampler.batch.batch import Batch, a_batch
from rollstream.sampler.batch.beyond_float32 import BEYOND_FLOAT32, groups_beyond_float32
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.examples.policy_order import telling_epochs
from rollstream.sampler.training.makers.interface import (
    BatchMaker,
    MadeBatch,
    NotAskedFor,
    Rollout,
)
from rollstream.sampler.training.makers.made import check_made
from rollstream.schemas.events import ServedScore

_NOT_ASKED_FOR = NotAskedFor()


def rollouts_of(batch: Batch) -> list[Rollout]:
    """Returns the trajectories of a batch as makers see them, in the batch's order."""
    a_batch(batch)
    count, rows = batch.num_trajectories, len(batch)
    last = np.zeros(count, np.int64)  # Row of the newest segment: the last one of the trajectory.
    last[batch.trajectory_index] = np.arange(rows)
    tokens = np.bincount(batch.trajectory_index, np.diff(batch.offsets), count).astype(np.int64)
    used = np.zeros(count, np.bool_) if batch.used is None else batch.used
    newest, groups = last.tolist(), batch.group_index[last] if rows else last
    columns = (
        range(count),
        groups.tolist(),
        [batch.environments[row] for row in newest],
        [batch.example_ids[row] for row in newest],
        [int(batch.weight_steps[row]) for row in newest],
        [batch.policy_versions[row] for row in newest],
        batch.trajectory_returns.tolist(),
        tokens.tolist(),
        used.tolist(),
        (groups >= batch.num_groups - batch.carried_groups).tolist(),
        telling_epochs(batch)[last].tolist(),
        _output_tokens(batch).tolist(),
        [batch.stop_reasons[row] for row in newest],
        _components(batch),
        _scores(batch),
        [_NOT_ASKED_FOR if batch.metadata is None else batch.metadata[row] for row in newest],
    )
    return list(map(Rollout._make, zip(*columns, strict=True)))


def _output_tokens(batch: Batch) -> NDArray[np.int64]:
    """int64 [m], of each trajectory."""
    outputs = np.diff(batch.offsets) - batch.prompt_lengths
    return np.bincount(batch.trajectory_index, outputs, batch.num_trajectories).astype(np.int64)


def _components(batch: Batch) -> list[dict[str, float]]:
    """Of each trajectory those that it has, summed over its segments."""
    found: list[dict[str, float]] = [{} for _ in range(batch.num_trajectories)]
    for name, of_rows in batch.reward_components.items():
        there = ~np.isnan(of_rows)
        owners = batch.trajectory_index[there]
        sums = np.bincount(owners, of_rows[there], batch.num_trajectories).tolist()
        for index in np.unique(owners).tolist():
            found[index][name] = sums[index]
    return found


def _scores(batch: Batch) -> list[tuple[ServedScore, ...]]:
    found: list[tuple[ServedScore, ...]] = [()] * batch.num_trajectories
    for row, score in batch.scores.items():
        found[batch.trajectory_index[row]] += (score,)
    return found


def a_maker(name: str, value: Any) -> BatchMaker:
    """The value, which is a batch maker; ``InvalidRequest`` where it is none."""
    if not isinstance(value, BatchMaker):
        call = f"; {value.__name__}(…) makes one" if isinstance(value, type) else ""
        raise InvalidRequest(f"{name} is {value!r:.200}; give a BatchMaker's object{call}")
    return value


def make_batch(maker: BatchMaker, batch: Batch, batch_size: SupportsIndex) -> MadeBatch:
    """Returns what the maker makes of this batch alone: at most ``batch_size`` trajectories.

    Groups whose returns, or their differences, are too large for float32 are filtered as
    ``beyond_float32``.

    Raises:
        InvalidRequest: it is no maker, ``batch_size`` is below 1, or the result breaks a rule of
            ``MadeBatch``. Errors of the maker itself pass through.
    """
    a_maker("maker", maker)
    size = at_least("batch_size", batch_size, 1)
    every = rollouts_of(batch)
    beyond = groups_beyond_float32(batch)
    left_out = set(beyond.tolist())
    rollouts = [one for one in every if one.group not in left_out] if left_out else every
    maker.begin(batch.step)
    for rollout in rollouts:
        maker.add_rollout(rollout)
    made = check_made(maker, rollouts, maker.create_batch(size), size)
    if not left_out:
        return made
    filtered = sum(one.group in left_out and not one.used for one in every)
    return replace(
        made,
        filtered={**made.filtered, **({BEYOND_FLOAT32: filtered} if filtered else {})},
        filtered_groups=np.union1d(made.filtered_groups, beyond).astype(np.int32),
    )


def examples_of(batch: Batch, made: MadeBatch, *, merge_turns: bool = False) -> Examples:
    """Returns the examples of a made batch, in the order of ``made.trajectories``.

    Segments of one trajectory follow one another, as in the batch, or are merged as in
    ``Examples.of``.
    """
    count = a_batch(batch).num_trajectories
    if not isinstance(made, MadeBatch):
        raise InvalidRequest(f"made is {made!r:.200}; give what make_batch returned")
    position = np.full(count, -1, np.int64)
    position[indices("made.trajectories", made.trajectories, count)] = np.arange(
        len(made.trajectories)
    )
    of_rows = position[batch.trajectory_index]
    rows = np.argsort(of_rows, kind="stable")[np.count_nonzero(of_rows < 0) :]
    advantages = np.zeros(count, np.float32)
    advantages[made.trajectories] = made.advantages
    return Examples.of(batch, advantages, rows=rows, merge_turns=merge_turns)
