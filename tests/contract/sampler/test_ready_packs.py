"""Ready packs over the twin, Kafka and Ray: ranks decide the same, and so does who comes after."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, memory_world
from rollstream.runtime.config.load import ConfigError
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ChannelA, ChannelB, InvalidRequest, ReadyPacks, SamplerApi
from rollstream.sampler.history import lineage_of_step, report_of

RANKS = 2
WAIT_S = 30.0


def specs(first: int, count: int, version: int) -> list[GroupSpec]:
    return [
        GroupSpec(example_id=f"ex-{first + n}", weight_steps=(version, version))
        for n in range(count)
    ]


def settings(mode: str = "async", b_ratio: float = 0.5, **changed: Any) -> ReadyPacksConfig:
    """Two examples of five tokens a pack; each group has two."""
    return ReadyPacksConfig.model_validate(
        {
            "schedule": {"b_ratio": b_ratio},
            "channel_b": {"mode": mode},
            "pack_length": 10,
            "num_groups": 3,
            "gradient_accumulation_steps": 1,
            "queue_limit": 8,
            "prefetch_target_packs": 2,
            "version_window": 8,
            **changed,
        }
    )


def of_rank(sampler: SamplerApi, rank: int) -> ReadyPacks:
    return ReadyPacks(sampler, settings(), dp_rank=rank, dp_size=RANKS)


def everything(decided: ChannelA | ChannelB) -> tuple[Any, ...]:
    """What a decision is, without the batch object."""
    common = type(decided), decided.step, decided.batch.digest, dict(decided.metrics)
    if isinstance(decided, ChannelA):
        return common
    arrays = {name: array.tobytes() for name, array in decided.packs.arrays().items()}
    return *common, decided.versions, arrays


@pytest.mark.proves("C1", "C3", "C4", "C5", "C8", "I9")
def test_ranks_and_a_successor_make_the_same_decisions(world: SamplerWorld) -> None:
    writer = world.writer()
    writer.flush(*specs(0, 3, version=0))
    sampler = resumed(world, 3)
    ranks = [of_rank(world.open(), rank) for rank in range(RANKS)]
    kinds = []
    for step in range(6):
        decided = [ready.next_step(step, timeout_s=WAIT_S) for ready in ranks]
        kinds.append({type(one).__name__ for one in decided})
        assert len({one.batch.digest for one in decided}) == 1
        assert decided[0].metrics == decided[1].metrics
        for one in decided:
            if isinstance(one, ChannelB):
                assert len(one.packs) == 1
                rows = one.packs.examples[0].tolist()
                assert {int(one.batch.weight_steps[row]) for row in rows} == set(one.versions)
        if isinstance(decided[0], ChannelB):
            both = [row for one in decided if isinstance(one, ChannelB) for row in _rows(one)]
            assert len(both) == len(set(both)) >= RANKS
        ranks[0].ack(decided[0])
        writer.flush(*specs(3 + 2 * step, 2, version=step))
    assert [len(kind) for kind in kinds] == [1] * 6
    assert kinds[:2] == [{"ChannelA"}, {"ChannelB"}]
    assert kinds[2::2] == [{"ChannelA"}] * 2
    sampler.checkpointed(4)
    world.restart()
    assert world.open().resume(4) == 5
    # From the record alone, in other processes than those that decided.
    again = [of_rank(world.open(), rank).next_step(5, timeout_s=WAIT_S) for rank in range(RANKS)]
    assert again[0].metrics == again[1].metrics
    assert len({type(one) for one in again}) == 1


def _rows(decided: ChannelB) -> list[int]:
    return [int(row) for row in decided.packs.examples[0]]


def resumed(world: SamplerWorld, groups: int) -> SamplerApi:
    """A client of a run that begins, once so many groups are ready."""
    sampler = world.open()
    sampler.resume(None)
    deadline = time.monotonic() + WAIT_S
    while sampler.stats().ready.get("math", 0) < groups:
        assert time.monotonic() < deadline
    return sampler


@pytest.mark.proves("C3", "I6")
def test_a_killed_sampler_gives_each_rank_the_same_packs_again(world: SamplerWorld) -> None:
    world.writer().flush(*specs(0, 6, version=0))
    sampler = resumed(world, 6)
    ready = of_rank(sampler, 1)
    ready.ack(ready.next_step(0, timeout_s=WAIT_S))
    before = ready.next_step(1, timeout_s=WAIT_S)
    assert isinstance(before, ChannelB)
    world.restart()
    after = of_rank(world.open(), 1).next_step(1, timeout_s=WAIT_S)
    assert everything(after) == everything(before)


def replayed(world: SamplerWorld, steps: int) -> list[ChannelA | ChannelB]:
    """The steps up to ``steps``, of which 0 and 1 are in a checkpoint, while groups come."""
    writer = world.writer()
    writer.flush(*specs(0, 6, version=0))
    sampler = resumed(world, 6)
    ready = of_rank(sampler, 0)
    found = []
    for step in range(steps):
        found.append(ready.next_step(step, timeout_s=WAIT_S))
        ready.ack(found[-1])
        writer.flush(*specs(6 + 2 * step, 2, version=0))
    sampler.checkpointed(1)
    world.restart()
    return found


@WITHOUT_RAY
@pytest.mark.proves("C1", "C3", "I6")
def test_after_a_resume_that_replays_who_comes_new_decides_as_was_decided(
    world: SamplerWorld,
) -> None:
    steps = 6
    before = replayed(world, steps)
    assert {type(one) for one in before[2:]} == {ChannelA, ChannelB}
    successor = world.open()
    assert successor.resume(1, later="replay") == 2
    world.writer().flush(*specs(100, 4, version=1))  # What came since changes none of it.
    for rank, sampler in enumerate((successor, world.open())):
        ready = of_rank(sampler, rank)
        for decided in before[2:]:
            again = ready.next_step(decided.step, timeout_s=WAIT_S)
            if rank == 0:
                assert everything(again) == everything(decided)
            assert again.metrics == decided.metrics
    one, other = (of_rank(world.open(), rank).next_step(steps) for rank in range(RANKS))
    assert (one.batch.digest, one.metrics) == (other.batch.digest, other.metrics)


@pytest.mark.proves("C1")
@pytest.mark.parametrize(("b_ratio", "b_steps"), [(0.0, []), (1.0, [*range(12)]), (0.1, [9])])
def test_the_schedule_goes_on_after_a_resume_where_it_was(
    b_ratio: float, b_steps: list[int]
) -> None:
    config = settings(b_ratio=b_ratio)
    wants = "stage2_ab/async/policy_wants_b"
    found = {}
    with closing(memory_world()) as world:
        sampler = world.open()
        sampler.resume(None)
        for first, last in ((0, 8), (6, 12)):  # Two steps behind the checkpoint are done again.
            ready = ReadyPacks(sampler, config, dp_rank=0, dp_size=1)
            for step in range(first, last):
                decided = ready.next_step(step)
                found[step] = decided.metrics[wants]
                ready.ack(decided)
                if step == 5:
                    sampler.checkpointed(5)
            world.restart()
            sampler = world.open()
            sampler.resume(5, later="release")
    assert [step for step, wanted in found.items() if wanted] == b_steps
    assert len(found) == 12


@WITHOUT_RAY
@pytest.mark.proves("C3", "C4")
def test_after_a_resume_that_releases_the_queue_is_what_the_checkpoint_left(
    world: SamplerWorld,
) -> None:
    before = replayed(world, 6)
    successor = world.open()
    assert successor.resume(1, later="release") == 2
    anew = of_rank(successor, 0).next_step(2, timeout_s=WAIT_S)
    carried = queue_of(anew)
    assert carried == queue_of(before[2]) != queue_of(before[5])
    assert any(True in wanted for wanted in carried.values())
    assert anew.batch.batch_id != before[2].batch.batch_id


def queue_of(decided: ChannelA | ChannelB) -> dict[str, list[bool]]:
    """By carried group, which of its trajectories were left in the queue."""
    batch = decided.batch
    if batch.used is None:
        return {}
    found: dict[str, list[bool]] = {}
    first = batch.num_groups - batch.carried_groups
    for group, of in zip(batch.group_index, batch.trajectory_index, strict=True):
        if group >= first:
            group_id = batch.sampled.group_ids[batch.slots[group]]
            found.setdefault(group_id, []).append(not batch.used[of])
    return found


@WITHOUT_RAY
@pytest.mark.proves("C7")
def test_without_enough_groups_a_step_of_b_is_skipped_without_waiting(world: SamplerWorld) -> None:
    world.writer().flush(*specs(0, 1, version=0))
    sampler = resumed(world, 1)
    ready = of_rank(sampler, 0)
    for step in range(2):
        decided = ready.next_step(step)
        assert isinstance(decided, ChannelA)
        ready.ack(decided)
    assert decided.metrics["stage2_ab/async/b_step_skipped_due_to_queue"] == 1
    assert decided.batch.carried_groups == 1


@WITHOUT_RAY
@pytest.mark.proves("C6", "A15")
def test_the_samplers_limit_on_lag_holds_in_the_queue(world: SamplerWorld) -> None:
    world.configure(max_policy_lag=1)
    world.writer().flush(*specs(0, 1, version=0))
    ready = of_rank(resumed(world, 1), 0)
    found = []
    for step in range(4):
        decided = ready.next_step(step, timeout_s=WAIT_S)
        ready.ack(decided)
        found.append(decided.batch)
    assert [batch.carried_groups for batch in found] == [0, 1, 1, 0]
    assert [batch.carried_stale for batch in found] == [0, 0, 2, 0]


@WITHOUT_RAY
@pytest.mark.proves("C2")
def test_settings_that_cannot_work_with_these_ranks_are_refused(world: SamplerWorld) -> None:
    sampler = world.open()
    with pytest.raises(ConfigError, match="set mode to 'async', or train on one rank"):
        ReadyPacks(sampler, settings("step"), dp_rank=0, dp_size=2)
    with pytest.raises(ConfigError, match=r"add \[samplers.NAME.ready_packs\]"):
        ReadyPacks(sampler, None, dp_rank=0, dp_size=1)
    with pytest.raises(InvalidRequest, match="dp_rank 2 is none of dp_size 2"):
        ReadyPacks(sampler, settings(), dp_rank=2, dp_size=2)


@pytest.mark.proves("C2", "F20")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": None}, "sampler is None; give a sampler"),
        ({"config": {"pack_length": 8}}, "config is {'pack_length': 8}; give load_config"),
        ({"advantages": "gae"}, "advantage 'gae' is unknown; use one of"),
        ({"columns": "metadata"}, "columns is 'metadata'; give a sequence of names"),
        ({"dp_rank": True}, "dp_rank is True; give a whole number"),
        ({"dp_size": 0}, "dp_rank 0 is none of dp_size 0"),
        ({"dp_size": 10**12}, "dp_size is 1000000000000; give at most 65536"),
        ({"pad_id": None}, "pad_id is None"),
    ],
)
def test_arguments_that_no_step_could_use_are_refused_before_the_first(
    arguments: dict[str, Any], message: str
) -> None:
    with closing(memory_world()) as world:
        right = {"sampler": world.open(), "config": settings(), "dp_rank": 0, "dp_size": 1}
        with pytest.raises((InvalidRequest, ConfigError), match=message):
            ReadyPacks(**{**right, **arguments})


@pytest.mark.proves("F20")
def test_what_is_no_decision_is_not_acked() -> None:
    wrong: Any = None
    with closing(memory_world()) as world:
        ready = of_rank(world.open(), 0)
        with pytest.raises(InvalidRequest, match="decided is None; give what next_step returned"):
            ready.ack(wrong)


@WITHOUT_RAY
def test_a_step_by_itself_waits_for_its_groups_and_trains_on_all(world: SamplerWorld) -> None:
    world.writer().flush(*specs(0, 3, version=0))
    sampler = resumed(world, 3)
    ready = ReadyPacks(sampler, settings("step"), dp_rank=0, dp_size=1)
    assert isinstance(ready.next_step(0, timeout_s=WAIT_S), ChannelA)
    decided = ready.next_step(1, timeout_s=WAIT_S)
    assert isinstance(decided, ChannelB)
    assert sum(map(len, decided.packs.examples)) == 6
    assert decided.versions == (0, 0, 0)


@pytest.mark.proves("C3", "D2")
@pytest.mark.parametrize(
    ("changed", "ranks", "differs"),
    [
        ({"b_ratio": 0.75}, 1, "ready_packs.schedule.b_ratio was 1.0 and is now 0.75"),
        (
            {"gradient_accumulation_steps": 1},
            1,
            "ready_packs.gradient_accumulation_steps was 2 and is now 1",
        ),
        ({}, 2, "dp_size was 1 and is now 2"),
    ],
)
def test_after_a_resume_with_other_settings_nothing_is_trained_on_twice(
    changed: dict[str, Any], ranks: int, differs: str, caplog: pytest.LogCaptureFixture
) -> None:
    was: dict[str, Any] = {
        "b_ratio": 1.0,
        "gradient_accumulation_steps": 2,
        "num_groups": 6,
        "queue_limit": 24,
        "prefetch_target_packs": 22,
    }
    with closing(memory_world()) as world:
        world.writer().flush(*specs(0, 12, version=0))
        sampler = resumed(world, 12)
        before = ReadyPacks(sampler, settings(**was), dp_rank=0, dp_size=1)
        first = before.next_step(0, timeout_s=WAIT_S)
        assert (first.batch.num_groups, len(_uids(first))) == (6, 4)
        before.ack(first)
        sampler.checkpointed(0)
        assert sampler.resume(0) == 1
        now = settings(**{**was, **changed})
        after = [ReadyPacks(sampler, now, dp_rank=r, dp_size=ranks) for r in range(ranks)]
        uids = _uids(first)
        for step in range(1, 3):
            for ready in after:
                uids += _uids(ready.next_step(step, timeout_s=WAIT_S))
    assert f"step 0 was shaped with other settings: {differs}" in caplog.text
    assert len(uids) == len(set(uids)) > 4


@WITHOUT_RAY
@pytest.mark.proves("C3", "C4")
@pytest.mark.parametrize(
    "changed", [{"num_groups": 1}, {"prefetch_target_packs": 7, "num_groups": 5}]
)
def test_a_resume_that_asks_for_more_or_fewer_groups_keeps_the_queue(
    world: SamplerWorld, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    was: dict[str, Any] = {"b_ratio": 1.0, "num_groups": 4, "prefetch_target_packs": 4}
    world.writer().flush(*specs(0, 10, version=0))
    sampler = resumed(world, 10)
    before = ReadyPacks(sampler, settings(**was), dp_rank=0, dp_size=1)
    first, second = (before.next_step(step, timeout_s=WAIT_S) for step in range(2))
    for decided in (first, second):
        before.ack(decided)
    sampler.checkpointed(0)
    world.restart()
    successor = world.open()
    assert successor.resume(0, later="replay") == 1
    after = ReadyPacks(successor, settings(**{**was, **changed}), dp_rank=0, dp_size=1)
    assert everything(after.next_step(1, timeout_s=WAIT_S)) == everything(second)
    assert successor.resume(0, later="release") == 1
    anew = after.next_step(1, timeout_s=WAIT_S)
    assert queue_of(anew) == queue_of(second) != {}
    new = anew.batch.num_groups - anew.batch.carried_groups
    assert new == changed["num_groups"], "of the six that are ready"
    assert "carries nothing" not in caplog.text
    uids = [*_uids(first), *_uids(anew)]
    assert len(uids) == len(set(uids)) == 4


@pytest.mark.proves("C4", "C5")
def test_workers_that_name_their_weights_themselves_fill_the_same_packs() -> None:
    """What is of one epoch and step is one version, whatever its name."""

    def decisions(name: Callable[[int, int], str]) -> list[tuple[Any, ...]]:
        with closing(memory_world()) as world:
            world.configure(max_policy_lag=-1)
            world.writer().flush(
                *[
                    GroupSpec(
                        example_id=f"ex-{step}-{worker}",
                        weight_step=step,
                        extras=({"policy_version": name(step, worker)},) * 2,
                    )
                    for step in range(3)
                    for worker in range(8)
                ]
            )
            sampler = resumed(world, 24)
            config = settings(b_ratio=1.0, num_groups=8, prefetch_target_packs=8)
            ready = ReadyPacks(sampler, config, dp_rank=0, dp_size=4)
            found = []
            for step in range(4):
                decided = ready.next_step(step, timeout_s=WAIT_S)
                ready.ack(decided)
                found.append((type(decided), dict(decided.metrics)))
            return found

    by_worker = decisions(lambda step, worker: f"w{worker}-step-{step}")
    assert by_worker == decisions(lambda step, _: f"step-{step}")
    assert [kind for kind, _ in by_worker] == [ChannelB] * 4


def _uids(decided: ChannelA | ChannelB) -> list[str]:
    """Of the trajectories that it trains on."""
    if isinstance(decided, ChannelA):
        return []
    return [decided.batch.uids[row] for rows in decided.packs.examples for row in rows.tolist()]


def _after_next_batch(world: SamplerWorld, sampler: SamplerApi) -> None:
    sampler.ack(sampler.next_batch(0, 1, timeout_s=WAIT_S))
    sampler.checkpointed(0)
    sampler.resume(0)


@pytest.mark.proves("C3")
@pytest.mark.parametrize(
    ("prepare", "step", "why"),
    [
        (lambda _, sampler: sampler.resume(1000), 1001, "no batch of step 1000 is held"),
        (_after_next_batch, 1, "step 0 was served by next_batch"),
    ],
)
def test_after_a_step_that_cannot_be_known_the_queue_begins_empty_and_it_is_said(
    prepare: Callable[[SamplerWorld, SamplerApi], object],
    step: int,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(memory_world()) as world:
        for n in range(6):
            world.writer().flush(*specs(n, 1, version=0))
        prepare(world, resumed(world, 6))
        sampler = world.open()
        with caplog.at_level(logging.WARNING, "rollstream.sampler"):
            decided = of_rank(sampler, 0).next_step(step, timeout_s=WAIT_S)
        assert f"step {step} carries nothing from the one before: " in caplog.text
        assert why in caplog.text
        assert decided.batch.carried_groups == 0
        other = of_rank(sampler, 1).next_step(step, timeout_s=WAIT_S)
        assert (other.batch.digest, other.metrics) == (decided.batch.digest, decided.metrics)


@pytest.mark.proves("C3")
def test_the_queue_lacks_a_group_whose_file_is_lost_and_no_other() -> None:
    with closing(memory_world()) as world:
        for n in range(6):
            world.writer().flush(*specs(n, 1, version=0))
        sampler = resumed(world, 6)
        decided = of_rank(sampler, 0).next_step(0, timeout_s=WAIT_S)
        ids = decided.batch.sampled.group_ids
        sampler.resume(0)
        origin = lineage_of_step(world.name, 0, config=world.config, broker=world.broker())
        world.store.delete(origin.groups[0].origin.path)
        world.restart()
        sampler = world.open()
        sampler.resume(0)
        after = of_rank(sampler, 0).next_step(1, timeout_s=WAIT_S)
        assert [*queue_of(after)] == [*ids[1:]]
        told = report_of(world.name, config=world.config, broker=world.broker())
        assert [*told.carry_lost] == [ids[0]]
        assert everything(of_rank(sampler, 0).next_step(1, timeout_s=WAIT_S)) == everything(after)


@WITHOUT_RAY
def test_a_step_that_was_replaced_leaves_what_it_leaves_now(world: SamplerWorld) -> None:
    world.writer().flush(*specs(0, 8, version=0))
    sampler = resumed(world, 8)
    ready = of_rank(sampler, 0)
    decided = ready.next_step(0, timeout_s=WAIT_S)
    assert isinstance(decided, ChannelA)
    replaced = sampler.replace(decided.batch, [0], "bad", timeout_s=WAIT_S)
    after = ready.next_step(1, timeout_s=WAIT_S)
    assert set(queue_of(after)) == {*replaced.sampled.group_ids}


@pytest.mark.proves("D2")
def test_groups_that_are_dropped_whole_count_as_filtered() -> None:
    with closing(memory_world()) as world:
        world.writer().flush(*specs(0, 3, version=0))
        sampler = resumed(world, 3)
        many: dict[str, Any] = {"queue_limit": 12, "prefetch_target_packs": 12}
        ready = ReadyPacks(sampler, settings(pack_length=4, **many), dp_rank=0, dp_size=1)
        decided = ready.next_step(0, timeout_s=WAIT_S)
        assert decided.metrics["stage2_ab/async/drop_unusable"] == 6
        ready.ack(decided)
        sampler.checkpointed(0)
        assert sampler.stats().outcomes == {"filtered": 3}
    with closing(memory_world()) as world:
        world.writer().flush(*specs(0, 3, version=0))
        sampler = resumed(world, 3)
        ready = ReadyPacks(sampler, settings(b_ratio=1.0, **many), dp_rank=0, dp_size=1)
        decided = ready.next_step(0, timeout_s=WAIT_S)
        assert isinstance(decided, ChannelB)
        ready.ack(decided)
        sampler.checkpointed(0)
        assert sampler.stats().outcomes == {"trained": 1, "kept": 2}
