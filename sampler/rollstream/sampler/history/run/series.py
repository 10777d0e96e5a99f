"""A run over its steps: what its columns say, as lines of at most ``POINTS_MAX`` points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.history.report_rows import Bounds, ReportCounters, bounds_of
from rollstream.sampler.history.run.columns import NO_STEP, RunColumns
from rollstream.schemas.order import UNKNOWN_STEP

POINTS_MAX = 1_000  # A screen has no more; steps beyond are merged evenly.
NAMED_MAX = 12  # Lines of one chart; the rest of the environments are one line.
OTHERS = "all others"  # No name of an environment has a space.
_TIMES_MAX = 120  # Points over time: shorter ones would show single flushes.
_US = 1e6


class Lines(NamedTuple):
    """Lines over one axis.

    Attributes:
        x: steps, the first one of those that are merged; or seconds since 1970.
        lines: by name, a value for each of ``x``; NaN: there is none.
    """

    x: NDArray[np.float64]
    lines: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """A run over its steps, by its files alone.

    Attributes:
        steps: how many steps have a batch. groups, rollouts: how many are sealed.
        steps_a_point: of the lines over steps.
        reward: mean of the rollouts of a step, by environment. Late scores count, as far as they
            are in files.
        policy_reward: the same of all sealed rollouts, by the step of the weights that sampled
            them. evaluation: of those of split ``eval``, which are in no other line of rewards.
        lag: steps from the oldest weights of a rollout to the newest when its batch was decided.
        ready: train groups that were sealed and in no batch yet, when one was decided. Groups that
            were dropped are among them: files do not tell.
        waits: seconds from a rollout to its seal, from there to its batch, and between two batches.
        throughput: rollouts a second, over time: ``made``, ``sealed``, ``served``.
        ended: members that were settled before they were sealed, by reason.
        by_length: by output tokens, in powers of two: rollouts in a batch, and in none.
        failures: why members never came: environment to reason to members, the most first, and
            bounded as those of a report.
        first_ts, sealed_ts, served_ts: of the first rollout, the newest flush and the newest batch,
            in microseconds; 0: there is none.
    """

    steps: int
    groups: int
    rollouts: int
    steps_a_point: int
    reward: Lines
    policy_reward: Lines
    evaluation: Lines
    lag: Lines
    ready: Lines
    waits: Lines
    throughput: Lines
    ended: Lines
    by_length: Sequence[tuple[Bounds, int, int]]
    failures: Mapping[str, Mapping[str, int]]
    first_ts: int
    sealed_ts: int
    served_ts: int


class _Axis(NamedTuple):
    """Numbers in bins of one size."""

    first: int
    size: int
    bins: int

    @classmethod
    def of(cls, values: NDArray[np.int64]) -> _Axis:
        if not len(values):
            return cls(0, 1, 0)
        low, high = int(values.min()), int(values.max())
        size = bin_of(high - low + 1)
        return cls(low, size, (high - low) // size + 1)

    @property
    def x(self) -> NDArray[np.float64]:
        return (self.first + self.size * np.arange(self.bins)).astype(np.float64)

    def at(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bin of each."""
        return (values - self.first) // self.size

    def counts(
        self, values: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        counted = np.bincount(self.at(values), weights, self.bins)
        return counted.astype(np.float64)

    def means(self, values: NDArray[np.int64], figures: NDArray[np.float64]) -> NDArray[np.float64]:
        """NaN where there is nothing."""
        known = ~np.isnan(figures)
        values, figures = values[known], figures[known]
        counts = self.counts(values)
        with np.errstate(invalid="ignore"):
            return self.counts(values, figures) / counts


def bin_of(steps: int, points_max: int = POINTS_MAX) -> int:
    """How many steps are merged in a point, of so many."""
    return max(1, -(-steps // points_max))


def series_of(run: RunColumns) -> RunSeries:
    """The lines of a run."""
    served = run.steps != NO_STEP
    is_eval = run.group_is_eval[run.group_of]
    axis = _Axis.of(run.batch_steps)
    steps = run.steps[served]
    at = np.searchsorted(run.batch_steps, steps)  # The batch of each.
    environment = run.group_environment[run.group_of]
    known = run.weight_steps != UNKNOWN_STEP
    return RunSeries(
        steps=len(run.batch_steps),
        groups=len(run.examples),
        rollouts=run.rollouts,
        steps_a_point=axis.size,
        reward=_by_environment(run, axis, steps, environment[served], run.rewards[served]),
        policy_reward=_by_policy(run, known & ~is_eval, environment),
        evaluation=_by_policy(run, known & is_eval, environment),
        lag=_lag(run, axis, served, at),
        ready=_ready(run, axis),
        waits=_waits(run, axis, served, at),
        throughput=_throughput(run, run.batch_ts[at]),
        ended=_ended(run, axis),
        by_length=_by_length(run, served, is_eval),
        failures=_failures(run),
        first_ts=int(run.made_ts.min()) if run.rollouts else 0,
        sealed_ts=int(run.group_sealed_ts.max()) if run.rollouts else 0,
        served_ts=int(run.batch_ts.max()) if len(run.batch_ts) else 0,
    )


def _by_environment(
    run: RunColumns,
    axis: _Axis,
    values: NDArray[np.int64],
    environment: NDArray[np.int32],
    rewards: NDArray[np.float64],
) -> Lines:
    counts = np.bincount(environment, minlength=len(run.environments))
    named = np.argsort(-counts, kind="stable")[:NAMED_MAX].tolist()
    lines = {
        run.environments[number]: axis.means(values[of], rewards[of])
        for number in sorted(named)
        if (of := environment == number).any()
    }
    others = ~np.isin(environment, named)
    if others.any():
        lines[OTHERS] = axis.means(values[others], rewards[others])
    return Lines(axis.x, lines)


def _by_policy(run: RunColumns, chosen: NDArray[np.bool_], environment: NDArray[np.int32]) -> Lines:
    steps = run.weight_steps[chosen]
    return _by_environment(run, _Axis.of(steps), steps, environment[chosen], run.rewards[chosen])


def _lag(run: RunColumns, axis: _Axis, served: NDArray[np.bool_], at: NDArray[np.int64]) -> Lines:
    weights, steps = run.weight_steps[served], run.steps[served]
    lags = (run.batch_clock[at] - weights).astype(np.float64)
    lags[weights == UNKNOWN_STEP] = np.nan
    largest = np.full(axis.bins, np.nan)
    np.fmax.at(largest, axis.at(steps), lags)
    return Lines(axis.x, {"mean": axis.means(steps, lags), "largest": largest})


def _ready(run: RunColumns, axis: _Axis) -> Lines:
    sealed = np.sort(run.group_sealed_ts[~run.group_is_eval])
    in_time = np.argsort(run.batch_ts, kind="stable")
    waiting = np.searchsorted(sealed, run.batch_ts[in_time], side="right")
    left = (waiting - np.cumsum(run.batch_groups[in_time])).astype(np.float64)
    return Lines(axis.x, {"no batch took them yet": axis.means(run.batch_steps[in_time], left)})


def _waits(run: RunColumns, axis: _Axis, served: NDArray[np.bool_], at: NDArray[np.int64]) -> Lines:
    steps = run.steps[served]
    sealed = run.group_sealed_ts[run.group_of[served]]
    decided = run.batch_ts[at]
    made = run.made_ts[served]
    between = np.diff(run.batch_ts, prepend=run.batch_ts[:1])
    between = np.where(between < 0, np.nan, between / _US)
    between[:1] = np.nan
    return Lines(
        axis.x,
        {
            "made to sealed": axis.means(steps, np.maximum(0, sealed - made) / _US),
            "sealed to batch": axis.means(steps, np.maximum(0, decided - sealed) / _US),
            "batch to batch": axis.means(run.batch_steps, between),
        },
    )


def _throughput(run: RunColumns, decided: NDArray[np.int64]) -> Lines:
    stages = {
        "made": run.made_ts,
        "sealed": run.group_sealed_ts[run.group_of],
        "served": decided,
    }
    # A rollout from a clock that is wrong would stretch the axis: what logs say bounds it.
    logged = np.concatenate([stages["sealed"], decided])
    if not len(logged):
        return Lines(np.zeros(0), {})
    span = max(1, int(logged.max() - logged.min()))
    early = max(int(run.made_ts.min()), int(logged.min()) - span)
    size = max(int(_US), -(-(int(logged.max()) - early + 1) // _TIMES_MAX))
    axis = _Axis(early, size, (int(logged.max()) - early) // size + 1)
    seconds = size / _US
    lines = {}
    for name, times in stages.items():
        within = times[(times >= early) & (times <= logged.max())]
        lines[name] = axis.counts(within) / seconds
    return Lines(axis.x / _US, lines)


def _ended(run: RunColumns, axis: _Axis) -> Lines:
    counted: dict[str, NDArray[np.float64]] = {}
    ended = [one for one in run.ended if not one.failed]
    if not axis.bins:
        return Lines(axis.x, {})
    in_time = np.argsort(run.batch_ts, kind="stable")
    at = np.searchsorted(run.batch_ts[in_time], np.array([one.ts for one in ended], np.int64))
    steps = run.batch_steps[in_time][np.minimum(at, len(in_time) - 1)]
    for one, bin_ in zip(ended, axis.at(steps).tolist(), strict=True):
        counted.setdefault(one.reason, np.zeros(axis.bins))[bin_] += one.members
    return Lines(axis.x, counted)


def _by_length(
    run: RunColumns, served: NDArray[np.bool_], is_eval: NDArray[np.bool_]
) -> list[tuple[Bounds, int, int]]:
    # As bit_length, exactly: up to 2**53 a float has all bits.
    buckets = np.frexp(run.tokens.astype(np.float64))[1]
    size = int(buckets.max(initial=0)) + 1
    taken = np.bincount(buckets[served], minlength=size)
    left = np.bincount(buckets[~(served | is_eval)], minlength=size)
    return [
        (bounds_of(bucket), int(taken[bucket]), int(left[bucket]))
        for bucket in np.flatnonzero(taken + left).tolist()
    ]


def _failures(run: RunColumns) -> dict[str, dict[str, int]]:
    counters = ReportCounters()
    for one in run.ended:
        if one.failed:
            counters.add_failures(one.environment, 0, one.reason, one.members)
    return counters.failures()
