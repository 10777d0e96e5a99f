"""What a step kept, and was made too long ago when a later step carries it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.limited_worker import StillClock
from harness.rollouts import CREATED_TS
from harness.sampler_worlds import LocalWorld, memory_world
from harness.training_batches import everything, made_by, run, trained_uids
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ReadyPacks, RlooBatchMaker, Sampler

LIMIT_S = 60.0


def member(uid: str, ago_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    """Made so long before the clock begins."""
    return {"rollout_uid": uid, "created_ts": CREATED_TS - round(ago_s * 1e6), **fields}


def turns(uid: str, *ago_s: float) -> list[dict[str, Any]]:
    last = len(ago_s) - 1
    return [
        member(uid, ago, segment_idx=index, is_last_segment=index == last)
        for index, ago in enumerate(ago_s)
    ]


def opened(world: LocalWorld, clock: StillClock) -> Sampler:
    return Sampler(
        world.name,
        config=world.config,
        broker=world.broker(),
        store=world.store,
        clock=clock,
    )


@pytest.mark.proves("E2", "A15")
def test_it_is_not_trained_on_and_whoever_asks_later_has_the_same() -> None:
    clock = StillClock(CREATED_TS)
    with closing(memory_world(clock)) as world:
        world.configure(max_policy_lag=-1, max_rollout_timestamp_delay=LIMIT_S)
        first = [
            member("late", 70),  # In no batch: the others' rows stand elsewhere.
            member("a"),
            *turns("two-turns", 50, 0),
            member("b", 30),
            member("c", 30),
        ]
        world.writer().flush(
            GroupSpec(rewards=(0.0, 1.0, 0.0, 1.0, 0.5, 0.25), extras=first),
            *(GroupSpec(example_id=f"e-{n}") for n in range(2)),
        )
        with closing(opened(world, clock)) as sampler:
            sampler.resume(None)
            batches = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
            found = run(batches, 0, 1)
            clock.advance(20)  # The first of two turns is 70 s old, and the others 50.
            found += run(batches, 1, 2)
            clock.advance(20)
            found += run(batches, 2, 3)
            assert [one.metadata["carried_stale"] for one in found] == [0, 1, 1]
            assert [trained_uids(one) for one in found[:2]] == [["a"], ["b"]]
            assert not {"c", "two-turns"}.intersection(trained_uids(found[2]))
            clock.advance(1000)
            again = made_by(sampler, RlooBatchMaker(), num_groups=1, batch_size=1)
            assert [everything(again.next(n)) for n in range(3)] == [*map(everything, found)]


@pytest.mark.proves("E2", "C6")
def test_it_leaves_the_queue_of_ready_packs() -> None:
    clock = StillClock(CREATED_TS)
    with closing(memory_world(clock)) as world:
        world.configure(max_policy_lag=-1, max_rollout_timestamp_delay=LIMIT_S)
        made = [member("a", 50), member("b"), member("c")]
        world.writer().flush(GroupSpec(rewards=(0.0, 1.0, 0.5), extras=made))
        with closing(opened(world, clock)) as sampler:
            sampler.resume(None)
            config = ReadyPacksConfig.model_validate(
                {"schedule": {"b_ratio": 1.0}, "pack_length": 100, "version_window": 8}
            )
            ready = ReadyPacks(sampler, config, dp_rank=0, dp_size=1)
            stale = []
            for step in range(3):
                decided = ready.next_step(step)
                ready.ack(decided)
                stale.append((decided.batch.carried_groups, decided.batch.carried_stale))
                clock.advance(30)
            assert stale == [(0, 0), (1, 1), (1, 0)]
            clock.advance(30)
            left = ready.next_step(3)
            assert (left.batch.carried_groups, left.batch.carried_stale) == (1, 2)
            ready.ack(left)
            assert ready.next_step(4).batch.carried_groups == 0
