"""What became of rollouts that shaped batches had: trained, filtered, kept, and how kept ones end.

Everything that tells of it agrees: ``progress``, ``stats``, the report, lineages and ``show``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from harness.training_batches import WAIT_S, made_by, seal, trained_uids
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import (
    Batch,
    BatchMaker,
    ChannelA,
    GrpoBatchMaker,
    MadeBatch,
    ReadyPacks,
    RequestDiffers,
    RlooBatchMaker,
    SamplerApi,
)
from rollstream.sampler.history import (
    ReportRow,
    lineage_of_rollout,
    lineage_of_step,
    report_of,
)

pytestmark = pytest.mark.proves("F12")
A_GROUP = 4  # Rollouts, of those that ``seal`` makes.


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with closing(memory_world()) as found:
        yield found


def begun(world: LocalWorld, groups: int, **fields: Any) -> SamplerApi:
    seal(world, groups, **fields)
    sampler = world.open()
    sampler.resume(None)
    return sampler


def totals(world: LocalWorld) -> ReportRow:
    return report_of(world.name, config=world.config, broker=world.broker()).totals


def ended(world: LocalWorld) -> dict[str, int]:
    """What the report says of rollouts, but for those that wait."""
    row = totals(world)
    found = {"trained": row.trained, "kept": row.kept, "unknown": row.unknown, "served": row.served}
    return {name: count for name, count in {**found, **row.dropped}.items() if count}


def becoming(world: LocalWorld, uid: str) -> list[str]:
    """The states of a rollout in the batches that had it, by its lineage."""
    (lineage,) = lineage_of_rollout(uid, config=world.config, broker=world.broker())
    (states,) = [[use.state for use in one.uses] for one in lineage.samplers]
    return states


class OnlyTheFirst(BatchMaker):
    """As a user writes one: trains on the first rollout of each group, and filters the others."""

    @property
    def settings(self) -> Mapping[str, object]:
        return {"maker": "only-the-first"}

    def create_batch(self, batch_size: int) -> MadeBatch:
        groups: dict[int, int] = {}
        for index, rollout in enumerate(self.rollouts):
            groups.setdefault(rollout.group, index)
        trained = [*groups.values()][:batch_size]
        return MadeBatch.of(self.rollouts, np.ones(len(self.rollouts)), trained=trained)


def packs(sampler: SamplerApi, **changed: Any) -> ReadyPacks:
    """Two rollouts of five tokens fill a pack."""
    config: dict[str, Any] = {
        "schedule": {"b_ratio": 0.5},
        "pack_length": 10,
        "num_groups": 3,
        "gradient_accumulation_steps": 1,
        "queue_limit": 12,
        "prefetch_target_packs": 12,
        "version_window": 8,
        **changed,
    }
    return ReadyPacks(sampler, ReadyPacksConfig.model_validate(config), dp_rank=0, dp_size=1)


@pytest.mark.proves("C6")
def test_packs_that_are_dropped_as_stale_on_a_channel_that_never_ran_are_not_trained(
    world: LocalWorld,
) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(3)))
    sampler = world.open()
    sampler.resume(None)
    ready = packs(sampler, version_window=0, schedule={"b_ratio": 0.25})
    first = ready.next_step(0, timeout_s=WAIT_S)
    assert isinstance(first, ChannelA)
    ready.ack(first)
    sampler.checkpointed(0)
    assert sampler.stats().outcomes == {"kept": 3}
    second = ready.next_step(1, timeout_s=WAIT_S)
    assert isinstance(second, ChannelA)
    assert second.metrics["stage2_ab/async/drop_stale"] == 3
    assert second.metrics["stage2_ab/async/rollouts/stale"] == 6
    ready.ack(second)
    sampler.checkpointed(1)
    assert sampler.stats().outcomes == {"stale": 3}
    assert ended(world) == {"stale": 6}
    assert {becoming(world, uid)[-1] for uid in first.batch.uids} == {"stale"}
    states = [
        {one.use.state for one in lineage.groups}
        for lineage in (
            lineage_of_step(world.name, step, config=world.config, broker=world.broker())
            for step in (0, 1)
        )
    ]
    assert states == [{"kept"}, {"stale"}]


def test_what_becomes_too_old_for_the_sampler_is_in_the_metrics_of_packs(
    world: LocalWorld,
) -> None:
    world.configure(max_policy_lag=0)
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(3)))
    sampler = world.open()
    sampler.resume(None)
    ready = packs(sampler, schedule={"b_ratio": 0.25})
    for step in (0, 1):
        decided = ready.next_step(step, timeout_s=WAIT_S)
        ready.ack(decided)
    assert decided.batch.carried_stale == 6
    assert decided.metrics["stage2_ab/async/rollouts/stale"] == 6
    sampler.checkpointed(1)
    assert ended(world) == {"stale": 6}
    assert sampler.stats().outcomes == {"stale": 3}


def test_a_maker_that_trains_on_a_third_has_trained_on_a_third(world: LocalWorld) -> None:
    sampler = begun(world, 3)
    batches = made_by(sampler, GrpoBatchMaker(seed=1), num_groups=3, batch_size=4)
    training = batches.next(0, timeout_s=WAIT_S)
    batches.ack(training)
    sampler.checkpointed(0)
    assert len(trained_uids(training)) == 4
    assert totals(world).trained == 4
    assert ended(world) == {"trained": 4, "kept": 8}


def test_what_a_maker_of_a_users_own_leaves_out_is_filtered(world: LocalWorld) -> None:
    sampler = begun(world, 3)
    batches = made_by(sampler, OnlyTheFirst(), num_groups=3, batch_size=2)
    training = batches.next(0, timeout_s=WAIT_S)
    batches.ack(training)
    sampler.checkpointed(0)
    assert ended(world) == {"trained": 2, "filtered": 10}
    progress = sampler.progress()
    assert sum(progress.trained["math"].values()) == 2
    assert sum(progress.filtered["math"].values()) == 1
    uids = set(trained_uids(training))
    assert {becoming(world, uid)[0] for uid in uids} == {"trained"}
    assert {becoming(world, uid)[0] for uid in {*training.batch.uids} - uids} == {"filtered"}


def outcomes(batch: Batch, trained: slice, kept: slice) -> dict[Any, Any]:
    indexes = np.arange(batch.num_trajectories)
    return {"trained": indexes[trained], "kept": indexes[kept]}


def test_an_ack_that_contradicts_what_the_next_step_carries_is_refused(world: LocalWorld) -> None:
    sampler = begun(world, 4)
    batches = made_by(sampler)
    first = batches.next(0, timeout_s=WAIT_S)
    second = batches.next(1, timeout_s=WAIT_S)
    assert second.batch.carried_groups
    everything = slice(None)
    with pytest.raises(RequestDiffers, match=r"0 rows of group .* are kept, and step 1"):
        sampler.ack(first.batch, outcomes=outcomes(first.batch, everything, slice(0)))
    with pytest.raises(RequestDiffers, match="ack what made the step that follows"):
        sampler.ack(first.batch, outcomes=outcomes(first.batch, slice(0), everything))
    batches.ack(first)
    batches.ack(second)
    assert ended(world)["trained"] == 6


def test_a_step_that_would_carry_what_the_ack_did_not_keep_is_refused(world: LocalWorld) -> None:
    sampler = begun(world, 4)
    batches = made_by(sampler)
    first = batches.next(0, timeout_s=WAIT_S)
    sampler.ack(first.batch, outcomes=outcomes(first.batch, slice(None), slice(0)))
    with pytest.raises(RequestDiffers, match=r"step 1 cannot carry group .* were not kept"):
        batches.next(1, timeout_s=WAIT_S)


def test_a_shaped_batch_that_is_final_without_such_an_ack_is_unknown(world: LocalWorld) -> None:
    sampler = begun(world, 6)
    batches = made_by(sampler)
    first = batches.next(0, timeout_s=WAIT_S)
    sampler.ack(first.batch)  # Not by the object that shaped it.
    sampler.checkpointed(0)
    assert ended(world) == {"unknown": 8}
    assert sampler.stats().outcomes == {"unknown": 2}
    assert becoming(world, first.batch.uids[0]) == ["unknown"]
    second = batches.next(1, timeout_s=WAIT_S)  # The record of it says what was kept.
    kept = len(first.made.kept)
    batches.ack(second)
    sampler.checkpointed(1)
    found = ended(world)
    assert found["unknown"] == 8 - kept
    assert found["trained"] == len(second.made.trajectories)
    unsaid = batches.next(2, timeout_s=WAIT_S)
    assert sampler.resume(2) == 3
    assert ended(world)["unknown"] >= 8 - kept + len(unsaid.made.trajectories)


def test_a_release_takes_outcomes_back(world: LocalWorld) -> None:
    sampler = begun(world, 4)
    batches = made_by(sampler)
    for step in (0, 1):
        training = batches.next(step, timeout_s=WAIT_S)
        batches.ack(training)
    sampler.checkpointed(0)
    kept = ended(world)
    assert kept["trained"] == 6
    sampler.resume(0, later="release")
    assert ended(world) == {"trained": 3, "kept": 5}
    assert totals(world).waiting == 8
    assert becoming(world, training.batch.uids[0]) == ["released"]
    again = batches.next(1, timeout_s=WAIT_S)
    batches.ack(again)
    sampler.checkpointed(1)
    assert ended(world)["trained"] == 6


def test_what_was_kept_ends_as_a_later_step_says(world: LocalWorld) -> None:
    sampler = begun(world, 5)
    batches = made_by(sampler, RlooBatchMaker())
    uids = set[str]()
    for step in range(2):
        training = batches.next(step, timeout_s=WAIT_S)
        batches.ack(training)
        uids |= set(training.batch.uids)
    sampler.checkpointed(1)
    kept = {training.batch.uids[row] for row in _rows(training.batch, training.made.kept)}
    assert kept
    # Another maker knows nothing of what this one kept.
    other = made_by(sampler, OnlyTheFirst(), num_groups=1)
    after = other.next(2, timeout_s=WAIT_S)
    other.ack(after)
    assert {becoming(world, uid)[-1] for uid in kept} == {"kept"}
    sampler.checkpointed(2)
    assert {becoming(world, uid)[-1] for uid in kept} == {"not_carried"}
    assert ended(world)["not_carried"] == len(kept)


def _rows(batch: Batch, trajectories: Any) -> list[int]:
    rows: list[int] = np.flatnonzero(np.isin(batch.trajectory_index, trajectories)).tolist()
    return rows


def test_what_is_kept_when_the_run_is_over_is_unused_and_never_folded(world: LocalWorld) -> None:
    sampler = begun(world, 6)
    batches = made_by(sampler)
    training = batches.next(0, timeout_s=WAIT_S)
    batches.ack(training)
    sampler.checkpointed(0)
    sampler.finish()
    assert ended(world) == {"trained": 3, "unused": 5}
    uid = training.batch.uids[_rows(training.batch, training.made.kept)[0]]
    assert becoming(world, uid) == ["unused"]
    assert sampler.stats().outcomes.get("unused", 0) == sum(
        count
        for reasons in sampler.progress().dropped.get("math", {}).values()
        for count in reasons.values()
    )
    batches.next(1, timeout_s=WAIT_S)  # The run goes on.
    assert "unused" not in ended(world)
    assert "unused" not in sampler.stats().outcomes


@pytest.mark.parametrize("restarted", [False, True])
def test_all_that_tells_of_a_run_agrees(world: LocalWorld, restarted: bool) -> None:
    sampler = begun(world, 10)
    batches = made_by(sampler, GrpoBatchMaker(seed=5))
    told = Counter[str]()
    last = set[str]()
    for step in range(4):
        training = batches.next(step, timeout_s=WAIT_S)
        told["trained"] += len(training.made.trajectories)
        told["filtered"] += sum(training.made.filtered.values())
        told["stale"] += training.batch.carried_stale
        last |= set(trained_uids(training))
        batches.ack(training)
    told["kept"] = len(training.made.kept)
    sampler.checkpointed(3)
    if restarted:
        world.restart()
        sampler = world.open()
    assert ended(world) == {name: count for name, count in told.items() if count}
    assert sum(told.values()) == 8 * A_GROUP
    assert {uid for uid in last if becoming(world, uid)[-1] == "trained"} == last
    progress, stats = sampler.progress(), sampler.stats()
    of_groups = {
        "trained": sum(progress.trained.get("math", {}).values()),
        "kept": sum(progress.kept.get("math", {}).values()),
        "filtered": sum(progress.filtered.get("math", {}).values()),
    }
    assert stats.outcomes == {name: count for name, count in of_groups.items() if count}
    assert sum(of_groups.values()) == 8
    by_step = Counter(
        outcome
        for step in range(4)
        for one in lineage_of_step(
            world.name, step, config=world.config, broker=world.broker()
        ).groups
        for outcome in one.use.outcomes or ("trained",) * A_GROUP
        if outcome in ("trained", "filtered")
    )
    assert by_step["trained"] == told["trained"]
    assert by_step["filtered"] == told["filtered"]
