"""The decision of a step: its channel, its packs, and what is carried to the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler.shaping.carried import CarriedGroup
from rollstream.sampler.shaping.packs.plan import ATTENTION_WEIGHT, PackPlan
from rollstream.sampler.shaping.ready_packs.offered import Offered
from rollstream.sampler.shaping.ready_packs.queue import Round, queue_of

METRICS = "stage2_ab/async/"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Decision:
    """What every rank does in a step.

    Attributes:
        plan: of the rows of the batch, by rank and micro-step; None: the step is on channel A.
        versions: the weight step that sampled each micro-step's packs.
        policy_epochs: of the weights that did.
        carried: to the next step.
        ready: packs that are ready for each rank after this step.
        metrics: see ``decide``.
    """

    plan: PackPlan | None
    versions: tuple[int, ...]
    policy_epochs: tuple[int, ...]
    carried: tuple[CarriedGroup, ...]
    ready: int
    metrics: Mapping[str, float]


def wants_b(step: int, b_ratio: Fraction) -> bool:
    """Whether a step is to run on channel B: Bresenham's schedule, a function of the step alone."""
    return floor((step + 1) * b_ratio) > floor(step * b_ratio)


def groups_asked(config: ReadyPacksConfig, step: int, ready: int) -> int:
    """New groups that ``step`` asks for at most, with so many packs ready for each rank."""
    b_ratio = config.schedule.exact_b_ratio
    if config.channel_b.mode == "step":
        return config.num_groups if wants_b(step, b_ratio) else 0
    return config.num_groups if b_ratio and ready < config.prefetch_target_packs else 0


def decide(
    config: ReadyPacksConfig, offered: Offered, *, step: int, current: int, ranks: int
) -> Decision:
    """The decision of ``step``; every rank makes the same one of the same batch.

    Packs of stale versions are dropped first, then the oldest beyond ``queue_limit``. The step is
    on channel B where the schedule wants it and each rank has ``gradient_accumulation_steps``
    packs; with ``channel_b.mode = "step"`` it trains on all there are, and carries nothing. The
    metrics, all beginning with ``stage2_ab/async/``: ``policy_wants_b``,
    ``step_kind_b`` and ``b_step_skipped_due_to_queue`` (0 or 1); ``queue_depth`` (packs ready for
    each rank after the step) and ``ver_current``; ``drop_stale`` and ``drop_oldest`` (packs of each
    rank); ``drop_leftovers`` and ``drop_unusable`` (trajectories); on channel B those of the plan.

    Args:
        current: the weight step that the trainer has.
    """
    alone = config.channel_b.mode == "step"
    queue = queue_of(
        offered, length=config.pack_length, ranks=ranks, leftovers=config.leftovers, ends=alone
    )
    oldest = current - config.version_window
    rounds = [one for one in queue.rounds if offered.steps[one.version] >= oldest]
    stale = len(queue.rounds) - len(rounds)
    waiting = queue.waiting
    if len(waiting) and offered.steps[offered.version[waiting[0]]] < oldest:
        stale, waiting = stale + 1, waiting[:0]
    oldest_dropped = 0 if alone else max(len(rounds) - config.queue_limit, 0)
    rounds = rounds[oldest_dropped:]
    steps = max(len(rounds), 1) if alone else config.gradient_accumulation_steps
    wanted = wants_b(step, config.schedule.exact_b_ratio)
    used = rounds[:steps] if wanted and len(rounds) >= steps else []
    kept = rounds[len(used) :]
    plan = _plan(offered, used, config.pack_length, ranks) if used else None
    left = np.zeros(len(offered.version), np.bool_)
    for one in (waiting, *[one.trajectories for one in kept]):
        left[one] = True
    metrics = {
        "policy_wants_b": wanted,
        "step_kind_b": plan is not None,
        "b_step_skipped_due_to_queue": wanted and plan is None,
        "queue_depth": len(kept),
        "ver_current": current,
        "drop_stale": stale,
        "drop_oldest": oldest_dropped,
        "drop_leftovers": queue.leftovers,
        "drop_unusable": queue.unusable,
    } | ({} if plan is None else plan.metrics())
    return Decision(
        plan=plan,
        versions=tuple([int(offered.steps[one.version]) for one in used]),
        policy_epochs=tuple([int(offered.epochs[one.version]) for one in used]),
        carried=offered.carried(left),
        ready=len(kept),
        metrics={f"{METRICS}{name}": float(value) for name, value in metrics.items()},
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
