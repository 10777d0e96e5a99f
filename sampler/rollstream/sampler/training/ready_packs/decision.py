"""The decision of a step: its channel, its packs, and what is carried to the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler.batch.carried import CarriedGroup
from rollstream.sampler.training.packs.plan import ATTENTION_WEIGHT, PackPlan
from rollstream.sampler.training.ready_packs.offered import NO_VERSION, Offered
from rollstream.sampler.training.ready_packs.queue import Queue, Round, queue_of

METRICS = "stage2_ab/async/"
GROUPS_A_STEP = 64
"""New groups of a step with ``channel_b.mode = "step"`` and no ``num_groups``."""
PACKS_A_GROUP = 4
"""A group has so many before its size is known: too many rather than too few, since a step that
asks for too little goes on with the next one, and what is above ``queue_limit`` is dropped."""


class Expected(NamedTuple):
    """What the next step finds, if the trainer's weights are one step newer then.

    Attributes:
        ready: packs that are ready for each rank.
        waiting: tokens of trajectories that fill no pack yet.
        group_tokens: of a group on average; 0: not known.
        round_tokens: of a round (a pack for every rank) on average.
    """

    ready: int
    waiting: int
    group_tokens: Fraction
    round_tokens: Fraction


_NOTHING_KNOWN = Expected(0, 0, Fraction(0), Fraction(0))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackDecision:
    """What every rank does in a step.

    Attributes:
        plan: of the rows of the batch, by rank and micro-step; None: the step is on channel A.
        versions: the weight step that sampled each micro-step's packs.
        policy_epochs: of the weights that did.
        carried: to the next step.
        outcomes: trajectories of the batch that this step trains on, that are carried, and that are
            dropped as stale; the others are filtered.
        expected: by which the next step tells how many groups it needs.
        metrics: see ``decide``.
    """

    plan: PackPlan | None
    versions: tuple[int, ...]
    policy_epochs: tuple[int, ...]
    carried: tuple[CarriedGroup, ...]
    outcomes: Mapping[str, NDArray[np.int64]]
    expected: Expected
    metrics: Mapping[str, float]


def wants_b(step: int, b_ratio: Fraction) -> bool:
    """Whether a step is to run on channel B: Bresenham's schedule, a function of the step alone."""
    return floor((step + 1) * b_ratio) > floor(step * b_ratio)


def groups_asked(
    config: ReadyPacksConfig, step: int, ranks: int, before: PackDecision | None
) -> int:
    """Returns how many new groups ``step`` asks for at most.

    It asks for as many as bring each rank's queue to ``prefetch_target_packs`` after the step, and
    for none that would make more than ``queue_limit`` packs. Packs that this step drops as stale do
    not count, where the trainer's weights are one step newer than in the step before. A group and
    a pack are taken to have as many tokens as those in the step before had on average. After a step
    without groups a group is taken for ``PACKS_A_GROUP`` packs.

    Args:
        before: the decision of the step before; None: there was none, or it is not known.
    """
    b_ratio, most = config.schedule.exact_b_ratio, config.num_groups
    wanted = wants_b(step, b_ratio)
    if config.channel_b.mode == "step":
        return (most or GROUPS_A_STEP) if wanted else 0
    used = config.gradient_accumulation_steps if wanted else 0
    ready, waiting, a_group, a_round = before.expected if before else _NOTHING_KNOWN
    lacking = min(config.prefetch_target_packs + used, config.queue_limit) - ready
    if lacking <= 0 or not b_ratio:
        return 0
    if not a_group:
        asked = ceil(Fraction(lacking * ranks, PACKS_A_GROUP))
    else:
        space = (config.queue_limit - ready) * a_round - waiting
        # One token more: a pack is ready once something found no space in it.
        needed = lacking * a_round - waiting + 1
        asked = min(ceil(needed / a_group), floor(space / a_group))
        # A group that has more packs than a queue is asked for once a step could not go on.
        least = 1 if ready < config.gradient_accumulation_steps else 0
        asked = max(asked, least)
    return asked if most is None else min(asked, most)


def decide(
    config: ReadyPacksConfig,
    offered: Offered,
    *,
    step: int,
    current: int,
    ranks: int,
) -> PackDecision:
    """Returns the decision of ``step``; every rank makes the same one of the same batch.

    Packs of stale versions are dropped first, then the oldest beyond ``queue_limit``. The step is
    on channel B if the schedule wants it and each rank has ``gradient_accumulation_steps`` packs.
    With ``channel_b.mode = "step"`` it trains on all, and carries nothing. Metrics begin with
    ``stage2_ab/async/``: ``policy_wants_b``, ``step_kind_b``, ``b_step_skipped_due_to_queue``;
    ``queue_depth`` (packs a rank), ``ver_current``; ``drop_stale``, ``drop_oldest`` (packs a rank);
    ``drop_leftovers``, ``drop_unusable`` (trajectories); ``carried_stale``; ``rollouts/trained``,
    ``kept``, ``stale`` and ``filtered``; on channel B those of the plan.

    Args:
        current: the weight step that the trainer has.
    """
    alone = config.channel_b.mode == "step"
    queue = queue_of(
        offered,
        length=config.pack_length,
        ranks=ranks,
        leftovers=config.leftovers,
        ends=alone,
    )
    oldest = current - config.version_window
    rounds, waiting, stale = _fresh(offered, queue.rounds, queue.waiting, oldest)
    oldest_dropped = 0 if alone else max(len(rounds) - config.queue_limit, 0)
    rounds = rounds[oldest_dropped:]
    steps = max(len(rounds), 1) if alone else config.gradient_accumulation_steps
    wanted = wants_b(step, config.schedule.exact_b_ratio)
    used = rounds[:steps] if wanted and len(rounds) >= steps else []
    kept = rounds[len(used) :]
    plan = _plan(offered, used, config.pack_length, ranks) if used else None
    left = np.zeros(len(offered.version), np.bool_)
    left[_of([waiting, *[one.trajectories for one in kept]])] = True
    trained = _of([one.trajectories for one in used])
    outcomes = {"trained": trained, "kept": np.flatnonzero(left), "stale": _of(stale)}
    metrics: dict[str, float] = {
        "policy_wants_b": wanted,
        "step_kind_b": plan is not None,
        "b_step_skipped_due_to_queue": wanted and plan is None,
        "queue_depth": len(kept),
        "ver_current": current,
        "drop_stale": len(stale),
        "drop_oldest": oldest_dropped,
        "drop_leftovers": queue.leftovers,
        "drop_unusable": queue.unusable,
    }
    metrics |= _counts(offered, outcomes) | ({} if plan is None else plan.metrics())
    return PackDecision(
        plan=plan,
        versions=tuple([int(offered.steps[one.version]) for one in used]),
        policy_epochs=tuple([int(offered.epochs[one.version]) for one in used]),
        carried=offered.carried(left),
        outcomes=outcomes,
        expected=_expected(
            offered, queue, _fresh(offered, kept, waiting, oldest + 1)[:2], config, ranks
        ),
        metrics={f"{METRICS}{name}": float(value) for name, value in metrics.items()},
    )


def _fresh(
    offered: Offered, rounds: Sequence[Round], waiting: NDArray[np.int64], oldest: int
) -> tuple[list[Round], NDArray[np.int64], list[NDArray[np.int64]]]:
    """The rounds, and what waits, that ``oldest`` weights sampled or newer ones; the trajectories
    of each pack that older ones did."""
    fresh = [one for one in rounds if offered.steps[one.version] >= oldest]
    stale = [one.trajectories for one in rounds if offered.steps[one.version] < oldest]
    if len(waiting) and offered.steps[offered.version[waiting[0]]] < oldest:
        stale, waiting = [*stale, waiting], waiting[:0]
    return fresh, waiting, stale


def _of(trajectories: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *trajectories])


def _counts(offered: Offered, outcomes: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    """Rollouts by what became of them, as the ack of the step says it."""
    counts = {name: len(which) for name, which in outcomes.items()}
    counts["filtered"] = int(offered.wanted.sum()) - sum(counts.values())
    counts["stale"] += offered.carried_stale
    found = {f"rollouts/{name}": float(count) for name, count in counts.items()}
    return {**found, "carried_stale": float(offered.carried_stale)}


def _expected(
    offered: Offered,
    queue: Queue,
    left: tuple[Sequence[Round], NDArray[np.int64]],
    config: ReadyPacksConfig,
    ranks: int,
) -> Expected:
    """By the sizes in this step's batch of trajectories that packs may have; ``left`` are the
    rounds and what waits that the next step does not drop."""
    usable = offered.version[offered.trajectory] != NO_VERSION
    usable &= offered.lengths <= config.pack_length
    tokens = np.bincount(offered.trajectory, offered.lengths * usable, len(offered.version)).astype(
        np.int64
    )
    of_rounds = sum(int(tokens[one.trajectories].sum()) for one in queue.rounds)
    return Expected(
        ready=len(left[0]),
        waiting=int(tokens[left[1]].sum()),
        group_tokens=Fraction(int(tokens.sum()), max(len(offered.group_ids), 1)),
        round_tokens=Fraction(of_rounds, len(queue.rounds))
        if queue.rounds
        else Fraction(ranks * config.pack_length),
    )


def _plan(offered: Offered, rounds: Sequence[Round], length: int, ranks: int) -> PackPlan:
    """A micro-step for each round. The dearest pack of each goes to the rank that had the least."""
    rank, pack, start = (np.full(len(offered.lengths), -1, np.int32) for _ in range(3))
    lengths = np.zeros(len(offered.lengths), np.int64)
    totals = np.zeros(ranks)  # Exact, and so the same everywhere: multiples of a power of 2.
    for index, one in enumerate(rounds):
        of_rows = offered.lengths[one.rows]
        costs = np.bincount(one.ranks, of_rows + of_rows**2 * ATTENTION_WEIGHT, ranks)
        to = np.empty(ranks, np.int32)
        to[np.argsort(-costs, kind="stable")] = np.argsort(totals, kind="stable")
        totals[to] += costs
        rank[one.rows], pack[one.rows], start[one.rows] = to[one.ranks], index, one.starts
        lengths[one.rows] = of_rows
    nothing = np.empty(0, np.int64)
    return PackPlan(
        length=length,
        ranks=ranks,
        packs_per_rank=len(rounds),
        attention_weight=ATTENTION_WEIGHT,
        rank=rank,
        pack=pack,
        start=start,
        lengths=lengths,
        too_long=nothing,
        left_over=nothing,
    )
