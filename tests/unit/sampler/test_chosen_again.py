"""Every choice is made again from the decisions before it, also where it dropped groups."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.next_batch import BatchCommand, NextBatch, Replace
from rollstream.sampler.decide.command import Now
from rollstream.schemas.events import BatchServed, Dropped, Replaced
from rollstream.streams.folds.refs import position_of

SEEDS = 200
LONG_AGO_US = -10_000_000  # A decider's clock begins at 0.


@pytest.mark.proves("F2", "E2")
def test_recent_versions_with_a_limit_of_age_are_chosen_again_the_same() -> None:
    reached = Counter[type]()
    for seed in range(SEEDS):
        sampler = driven(seed)
        reached.update(map(type, sampler.events))
        for at, event in enumerate(sampler.events):
            if isinstance(event, BatchServed | Replaced):
                assert chosen_again(sampler, at, event) == [event.digest], (seed, at)
    assert {Dropped, BatchServed, Replaced} <= reached.keys()


def driven(seed: int) -> Decider:
    """Four batches, with two groups of each replaced; the newest policies' groups are often too
    old."""
    draw = random.Random(seed)
    sampler = Decider(
        seed=seed,
        recent_n_versions=draw.choice((1, 2)),
        max_rollout_timestamp_delay=5.0,
        max_rollout_step_delay=draw.choice((-1, 3)),
        max_samples=draw.choice((1, 2)),
    )
    for step in range(4):
        for log in LOGS:
            sampler.seal(*(group(draw, log.environment) for _ in range(3)), log=log)
        sampler.choose(NextBatch(step=step, num_groups=3))
        if step not in sampler.state.batches:
            break
        slots = tuple(draw.sample(range(3), 2))
        sampler.choose(Replace(step=step, digest=None, slots=slots, reason="why"))
    return sampler


def group(draw: random.Random, environment: str) -> GroupSpec:
    """The newest policies sampled code alone, long ago."""
    step = draw.randrange(4 if environment == "math" else 6)
    made = LONG_AGO_US if step > 3 else draw.choice((0, 0, LONG_AGO_US))
    return GroupSpec(
        example_id=f"e{draw.randrange(5)}",
        weight_steps=(step, step),
        extras=[{"created_ts": made}] * 2,
    )


def chosen_again(sampler: Decider, at: int, event: BatchServed | Replaced) -> list[bytes]:
    """The digest of the choice by the decisions before it, and the flushes that it knew."""
    state = sampler.fresh()
    known = position_of(event.cursor)
    for log, offset, flush in sampler.sealed:
        if offset < known[log]:
            state.apply_groups(log, offset, flush)
    for offset, before in enumerate(sampler.events[:at]):
        state.apply(offset, 0, before)
    now = Now(epoch=event.epoch, nonce=event.nonce, now_ts=event.now_ts)
    decided = command_of(event, state).decide(state, now)
    return [one.digest for one in decided if isinstance(one, BatchServed | Replaced)]


def command_of(event: BatchServed | Replaced, state: SamplerState) -> BatchCommand:
    if isinstance(event, BatchServed):
        return NextBatch(step=event.step, **json.loads(event.request))
    slots = tuple(event.slots.tolist())
    return Replace(step=event.step, digest=None, slots=slots, reason=event.reason)
