"""How many ready groups are kept, how often a group is served, and what purging drops."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Purge
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups
from rollstream.streams.folds.refs import ref_of


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


def ids(batch: ServedBatch) -> tuple[str, ...]:
    return tuple(group.group_id for group in batch.groups)


# Capacity.


@pytest.mark.proves("A13", "E4")
def test_an_environment_keeps_its_capacity_and_the_oldest_go() -> None:
    sampler = Decider(capacity=4)
    sampler.seal(*specs(3), log=LOGS[0])
    for _ in range(3):
        sampler.seal(*specs(2))
    oldest = [
        sampler.state.ready.packed.unpack(ref) for ref in sampler.state.ready.oldest(2, "math")
    ]
    sampler.evict()
    assert sampler.state.ready.counts() == {"code": 3, "math": 4}
    assert not any(ref in sampler.state.ready for ref in oldest)


def test_capacity_goes_to_the_environments_that_are_served_and_never_all_of_it() -> None:
    sampler = Decider(capacity=8)
    sampler.seal(*specs(8))
    sampler.serve(0, 4, mix={"math": 1.0})
    for log in LOGS[:2]:
        for _ in range(5):
            sampler.seal(*specs(4), log=log)
    sampler.evict()
    assert sampler.state.ready.counts() == {"code": 4, "math": 12}


def test_groups_of_an_open_batch_are_never_evicted() -> None:
    sampler = Decider(capacity=2)
    sampler.seal(*specs(2))
    batch = sampler.serve(0, 2)
    sampler.seal(*specs(6))
    sampler.evict()
    assert all(sampler.state.group(chosen) is not None for chosen in batch.groups)
    assert sampler.state.ready.counts() == {"math": 3}


def test_more_than_the_capacity_is_refused_rather_than_waited_for() -> None:
    sampler = Decider(capacity=8)
    sampler.seal(*specs(8))
    with pytest.raises(
        InvalidRequest, match="only 4 of each environment are kept for certain, 4 in all"
    ):
        sampler.serve(0, 5, mix={"math": 1.0})


# Uses.


@pytest.mark.proves("E4")
def test_a_group_is_served_so_often_and_in_no_two_batches_that_are_not_acked() -> None:
    sampler = Decider(max_samples=2)
    sampler.seal(*specs(2))
    first = sampler.serve(0, 2)
    assert isinstance(sampler.choose(NextBatch(step=1, num_groups=1)), NotEnoughGroups)
    sampler.do(Ack(step=0, batch_id=first.batch_id))
    second = sampler.serve(1, 2)
    assert set(ids(second)) == set(ids(first))
    sampler.do(Ack(step=1, batch_id=second.batch_id))
    assert isinstance(sampler.choose(NextBatch(step=2, num_groups=1)), NotEnoughGroups)
    sampler.do(MarkCheckpointed(step=1))
    assert sampler.progress().trained == {"math": {"ex-0": 2, "ex-1": 2}}
    assert all(sampler.state.is_done(ref_of(group)) for group in first.groups)


def test_without_a_limit_a_group_is_served_for_ever() -> None:
    sampler = Decider(max_samples=-1, max_policy_lag=-1, max_open_batches=4)
    sampler.seal(*specs(1))
    for step in range(20):
        sampler.serve(step, 1)
        sampler.do(MarkCheckpointed(step=step))
    (ref,) = sampler.state.ready.refs()
    assert not sampler.state.is_done(ref)


def test_a_used_group_that_is_dropped_stays_readable_in_the_batch_that_has_it() -> None:
    sampler = Decider(max_samples=-1)
    sampler.seal(*specs(1))
    batch = sampler.serve(0, 1)
    sampler.do(Ack(step=0, batch_id=batch.batch_id))
    sampler.do(Purge())
    assert sampler.state.group(batch.groups[0]) is not None
    assert len(sampler.state.ready) == 0


# Purging.


@pytest.mark.proves("A21")
def test_purging_drops_what_is_ready_and_nothing_of_an_open_batch() -> None:
    sampler = Decider()
    sampler.seal(*specs(5), GroupSpec(rewards=(None, 1.0)))
    batch = sampler.serve(0, 2)
    sampler.do(Purge())
    assert sampler.state.ready.counts() == {}
    assert len(sampler.state.waiting) == 1
    assert sampler.serve(0, 2) == batch
    assert sampler.state.outcomes.totals() == {"by_trainer": 3}
    events = len(sampler.events)
    sampler.do(Purge())
    assert len(sampler.events) == events
