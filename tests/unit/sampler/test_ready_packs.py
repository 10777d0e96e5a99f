"""Ready packs: the schedule, the queue, and the decision of a step."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler.training.examples.policy_order import policy_ages
from rollstream.sampler.training.packs.plan import PackPlan
from rollstream.sampler.training.ready_packs import queue
from rollstream.sampler.training.ready_packs.decision import (
    METRICS,
    PackDecision,
    decide,
    groups_asked,
    wants_b,
)
from rollstream.sampler.training.ready_packs.offered import NO_VERSION, Offered
from rollstream.schemas.order import UNKNOWN_STEP


class Row(NamedTuple):
    """A segment; those of one trajectory follow one another.

    Attributes:
        version: the weight step.
    """

    version: int
    length: int = 4
    trajectory: int | None = None
    group: int | None = None
    wanted: bool = True
    epoch: int = 0


def offered(*rows: Row) -> Offered:
    """As if the batch had these rows, every one carried: a trajectory and a group of its own each
    that names none."""
    trajectories = [n if row.trajectory is None else row.trajectory for n, row in enumerate(rows)]
    names, of_row = np.unique(np.array(trajectories, np.int64), return_inverse=True)
    epochs = np.array([row.epoch for row in rows], np.int64)
    steps = np.array([row.version for row in rows], np.int64)
    ages = policy_ages(epochs, steps)
    of_version = {int(age): row for age, row in zip(ages, rows, strict=True)}
    version, group, wanted = [], [], []
    for name in names:
        mine = [index for index, t in enumerate(trajectories) if t == name]
        own = [rows[index] for index in mine]
        versions = {int(ages[index]) for index in mine}
        known = len(versions) == 1 and own[0].version != UNKNOWN_STEP
        version.append(versions.pop() if known else NO_VERSION)
        group.append(int(name) if own[0].group is None else own[0].group)
        wanted.append(own[0].wanted)
    of_group = np.array(group, np.int32)
    marks = np.array(wanted, np.bool_)
    queue = np.argsort(of_group, kind="stable")
    return Offered(
        lengths=np.array([row.length for row in rows], np.int64),
        trajectory=of_row.astype(np.int32),
        epochs=np.array([of_version[age].epoch for age in sorted(of_version)], np.int64),
        steps=np.array([of_version[age].version for age in sorted(of_version)], np.int64),
        version=np.array(version, np.int64),
        group=of_group,
        wanted=marks,
        queue=queue[marks[queue]],
        group_ids=tuple(f"group-{n}" for n in range(max(group, default=-1) + 1)),
    )


def settings(**changed: Any) -> ReadyPacksConfig:
    nested = {
        "schedule": {"b_ratio": changed.pop("b_ratio", 1.0)},
        "channel_b": {"mode": changed.pop("mode", "async")},
    }
    return ReadyPacksConfig.model_validate({"pack_length": 8, **nested, **changed})


def decided(
    rows: Sequence[Row], *, step: int = 5, current: int = 5, ranks: int = 2, **changed: Any
) -> PackDecision:
    return decide(settings(**changed), offered(*rows), step=step, current=current, ranks=ranks)


def metric(decision: PackDecision, name: str) -> float:
    return decision.metrics[METRICS + name]


def trained(decision: PackDecision) -> dict[tuple[int, int], list[int]]:
    """By rank and micro-step, the rows."""
    found: dict[tuple[int, int], list[int]] = {}
    if decision.plan is not None:
        for row, (rank, pack) in enumerate(
            zip(decision.plan.rank, decision.plan.pack, strict=True)
        ):
            if rank >= 0:
                found.setdefault((int(rank), int(pack)), []).append(row)
    return found


def carried(decision: PackDecision) -> dict[str, list[bool]]:
    return {one.group_id: one.wanted.tolist() for one in decision.carried}


@pytest.mark.proves("C1")
@pytest.mark.parametrize(("b_ratio", "b_steps"), [(0.0, 0), (1.0, 10_000), (0.1, 1_000)])
def test_the_schedule_has_its_share_of_steps_exactly(b_ratio: float, b_steps: int) -> None:
    exact = settings(b_ratio=b_ratio).schedule.exact_b_ratio
    on_b = [step for step in range(10_000) if wants_b(step, exact)]
    assert len(on_b) == b_steps
    if b_ratio == 0.1:
        # A float's product is below 1 at step 29: 3 * 0.1 times ten.
        assert on_b == list(range(9, 10_000, 10))


@pytest.mark.proves("C1")
@given(thousandths=st.integers(0, 1000), first=st.integers(0, 10**9))
def test_the_schedule_never_drifts_wherever_it_goes_on(thousandths: int, first: int) -> None:
    exact = settings(b_ratio=thousandths / 1000).schedule.exact_b_ratio
    assert exact == Fraction(thousandths, 1000)
    # Any 1,000 steps in a row have as many on B, also those after a resume.
    assert sum(wants_b(step, exact) for step in range(first, first + 1000)) == thousandths


@pytest.mark.proves("C3", "C4", "C8")
def test_a_step_on_b_has_as_many_packs_on_every_rank_oldest_first() -> None:
    decision = decided([Row(5)] * 9, gradient_accumulation_steps=1)
    assert decision.versions == (5,)
    assert trained(decision) == {(0, 0): [0, 2], (1, 0): [1, 3]}
    assert carried(decision) == {f"group-{n}": [True] for n in range(4, 9)}
    assert metric(decision, "queue_depth") == 1
    assert decision.expected.ready == 1
    both = decided([Row(5)] * 9, gradient_accumulation_steps=2)
    assert set(trained(both)) == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert carried(both) == {"group-8": [True]}


@pytest.mark.proves("C7")
def test_a_rank_that_is_one_pack_short_puts_the_step_on_a_and_everything_waits() -> None:
    # Three packs are full, and two ranks need two each.
    rows = [Row(5)] * 7
    decision = decided(rows, gradient_accumulation_steps=2)
    assert decision.plan is None
    assert metric(decision, "policy_wants_b") == 1
    assert metric(decision, "step_kind_b") == 0
    assert metric(decision, "b_step_skipped_due_to_queue") == 1
    assert list(carried(decision)) == [f"group-{n}" for n in range(7)]
    enough = decided([*rows, Row(5), Row(5)], gradient_accumulation_steps=2)
    assert metric(enough, "b_step_skipped_due_to_queue") == 0
    assert metric(enough, "step_kind_b") == 1


def test_a_step_that_the_schedule_gives_to_a_is_not_skipped() -> None:
    decision = decided([Row(5)] * 9, b_ratio=0.5, step=4)
    assert decision.plan is None
    assert metric(decision, "b_step_skipped_due_to_queue") == 0
    assert metric(decision, "queue_depth") == 2


@pytest.mark.proves("C5", "I9")
@pytest.mark.parametrize("leftovers", ["flush", "drop"])
def test_leftovers_at_a_version_switch_are_flushed_or_dropped_and_never_mixed(
    leftovers: str,
) -> None:
    rows = [Row(4)] * 6 + [Row(5)] * 5
    decision = decided(
        rows,
        leftovers=leftovers,
        gradient_accumulation_steps=3,
        queue_limit=3,
        prefetch_target_packs=3,
    )
    if leftovers == "drop":
        # Only one full pack of each version is left for each rank.
        assert decision.plan is None
        assert metric(decision, "drop_leftovers") == 2
        assert "group-4" not in carried(decision)
        assert metric(decision, "queue_depth") == 2
        return
    assert decision.versions == (4, 4, 5)
    assert trained(decision)[0, 1] + trained(decision)[1, 1] in ([4, 5], [5, 4])
    assert metric(decision, "drop_leftovers") == 0
    assert carried(decision) == {"group-10": [True]}


@pytest.mark.proves("C5")
def test_leftovers_too_few_for_every_rank_are_dropped() -> None:
    decision = decided([Row(4)] * 5 + [Row(5)])
    assert decision.versions == (4,)
    assert metric(decision, "drop_leftovers") == 1
    assert carried(decision) == {"group-5": [True]}


@pytest.mark.proves("C5", "I9")
def test_of_a_newer_epoch_a_lower_step_is_newer_and_the_same_step_another_version() -> None:
    rows = [Row(3)] * 5 + [Row(5)] * 5 + [Row(3, epoch=1)] * 5
    decision = decided(rows, gradient_accumulation_steps=4, prefetch_target_packs=4, ranks=1)
    assert decision.versions == (3, 3, 3, 5)
    assert decision.policy_epochs == (0, 0, 0, 0)
    # Of epoch 0 nothing waits: its steps are over, whatever their numbers.
    assert metric(decision, "queue_depth") == 4
    waits = {*carried(decision)} - {f"group-{n}" for n in range(7, 14)}
    assert waits == {"group-14"}


@pytest.mark.proves("C6")
def test_packs_below_the_version_window_are_dropped_and_counted() -> None:
    rows = [Row(3)] * 9 + [Row(4)] * 5
    decision = decided(rows, version_window=1, current=5)
    assert metric(decision, "drop_stale") == 2
    assert metric(decision, "drop_leftovers") == 1
    assert decision.versions == (4,)
    assert min(row for rows in trained(decision).values() for row in rows) == 9
    assert carried(decision) == {"group-13": [True]}
    # The newest version may be too old as well; it does not wait for more.
    old = decided([Row(3)] * 3, version_window=1, current=5)
    assert metric(old, "drop_stale") == 1
    assert old.carried == ()


@pytest.mark.proves("C4")
def test_above_the_limit_the_oldest_packs_are_dropped_and_counted() -> None:
    decision = decided([Row(5)] * 17, queue_limit=2, prefetch_target_packs=1)
    assert metric(decision, "drop_oldest") == 2
    assert sorted(chain(*trained(decision).values())) == [8, 9, 10, 11]
    assert carried(decision) == {f"group-{n}": [True] for n in range(12, 17)}


@pytest.mark.proves("C4")
def test_as_many_groups_are_asked_for_as_bring_the_queues_to_their_target() -> None:
    # A group has one trajectory, and two of them fill a pack. The last pack waits for one more.
    left = {ready: decided([Row(5)] * (2 * ready + 1), ranks=1, b_ratio=0.0) for ready in range(7)}
    assert {ready: one.expected.ready for ready, one in left.items()} == {n: n for n in range(7)}
    config = settings(prefetch_target_packs=4, queue_limit=6, b_ratio=0.5)
    on_a = [groups_asked(config, 4, 1, left[ready]) for ready in range(1, 7)]
    assert on_a == [6, 4, 2, 0, 0, 0]
    on_b = [groups_asked(config, 5, 1, left[ready]) for ready in range(1, 7)]
    assert on_b == [8, 6, 4, 2, 0, 0], "one more pack, which the step trains on"
    assert groups_asked(settings(num_groups=3), 5, 1, left[1]) == 3
    assert groups_asked(settings(b_ratio=0.0), 1, 1, None) == 0
    # Nothing is known of groups: the target of eight packs a rank, four packs a group.
    assert [groups_asked(settings(b_ratio=0.5), 0, ranks, None) for ranks in (1, 4)] == [2, 8]
    in_step = settings(b_ratio=0.5, mode="step", num_groups=7)
    assert [groups_asked(in_step, step, 1, None) for step in range(4)] == [0, 7, 0, 7]
    assert groups_asked(settings(mode="step"), 0, 1, None) == 64


@pytest.mark.proves("C4")
def test_no_group_is_asked_for_that_makes_more_packs_than_a_queue_keeps() -> None:
    # Each group has eight trajectories, which fill four packs.
    rows = [Row(5, trajectory=n, group=n // 8) for n in range(16)]
    left = decided(rows, ranks=1, b_ratio=0.0)
    assert left.expected.ready == 7
    within = settings(prefetch_target_packs=8, queue_limit=12, b_ratio=0.5)
    above = settings(prefetch_target_packs=8, queue_limit=11, b_ratio=0.5)
    assert [groups_asked(one, 4, 1, left) for one in (within, above)] == [1, 0]
    alone = decided(rows[:3], ranks=1, b_ratio=0.0)
    tiny = settings(prefetch_target_packs=1, queue_limit=1, gradient_accumulation_steps=1)
    assert groups_asked(tiny, 4, 1, alone) == 0, "a pack is ready"
    assert groups_asked(tiny, 4, 1, decided(rows[:1], ranks=1)) == 1, "else no step could go on"


def test_what_has_no_one_version_or_is_longer_than_a_pack_is_left_out_and_counted() -> None:
    rows = [
        Row(NO_VERSION),
        Row(5, length=9),
        Row(4, trajectory=2),
        Row(5, trajectory=2),
        *[Row(5, trajectory=n) for n in range(3, 8)],
    ]
    decision = decided(rows)
    assert metric(decision, "drop_unusable") == 3
    assert sorted(chain(*trained(decision).values())) == [4, 5, 6, 7]
    assert carried(decision) == {"group-7": [True]}


def test_a_trajectory_of_several_segments_is_trained_in_one_step() -> None:
    rows = [Row(5), *[Row(5, trajectory=n) for n in (1, 1, 1, 2, 2, 2, 3)]]
    decision = decided(rows)
    assert sorted(chain(*trained(decision).values())) == [0, 1, 2, 3]
    assert list(carried(decision)) == ["group-2", "group-3"]
    # One that no step could hold is left out, and the others go on.
    alone = decided([Row(5, trajectory=0)] * 5 + [Row(5, trajectory=n) for n in range(1, 6)])
    assert metric(alone, "drop_unusable") == 1
    assert sorted(chain(*trained(alone).values())) == [5, 6, 7, 8]


def test_only_what_is_wanted_of_a_group_is_trained_and_carried() -> None:
    rows = [Row(5, group=0, wanted=n % 2 > 0) for n in range(12)]
    decision = decided(rows)
    assert sorted(chain(*trained(decision).values())) == [1, 3, 5, 7]
    assert carried(decision) == {"group-0": [n in (9, 11) for n in range(12)]}


@pytest.mark.proves("C2")
def test_a_step_by_itself_trains_on_all_its_groups_and_carries_nothing() -> None:
    decision = decided([Row(4)] * 3 + [Row(5)] * 4, mode="step", ranks=1)
    assert decision.versions == (4, 4, 5, 5)
    assert sorted(chain(*trained(decision).values())) == list(range(7))
    assert decision.carried == ()


@pytest.mark.proves("C3", "C5", "C8", "I9")
@given(
    rows=st.lists(
        st.tuples(st.integers(-1, 4), st.integers(1, 10)).map(lambda one: Row(*one)), max_size=16
    ),
    ranks=st.integers(1, 3),
    steps=st.integers(1, 3),
    leftovers=st.sampled_from(["flush", "drop"]),
    window=st.integers(0, 3),
)
def test_packs_are_pure_whole_and_equal_in_number_and_nothing_is_lost(
    rows: list[Row], ranks: int, steps: int, leftovers: str, window: int
) -> None:
    decision = decided(
        rows,
        current=4,
        ranks=ranks,
        gradient_accumulation_steps=steps,
        leftovers=leftovers,
        version_window=window,
        queue_limit=100,
    )
    packs = trained(decision)
    if isinstance(decision.plan, PackPlan):
        assert set(packs) == {(rank, step) for rank in range(ranks) for step in range(steps)}
    for (_, micro_step), in_pack in packs.items():
        assert {rows[row].version for row in in_pack} == {decision.versions[micro_step]}
        assert decision.versions[micro_step] >= 4 - window
        assert sum(rows[row].length for row in in_pack) <= 8
    used = {row for in_pack in packs.values() for row in in_pack}
    kept = {int(name.removeprefix("group-")) for name in carried(decision)}
    assert not used & kept
    usable = {n for n, row in enumerate(rows) if row.version >= 4 - window and row.length <= 8}
    assert used | kept <= usable
    newest = max((rows[row].version for row in usable), default=None)
    lost = usable - used - kept
    assert len(lost) <= metric(decision, "drop_leftovers")
    assert not [row for row in lost if rows[row].version == newest]
    # The oldest first: nothing that was kept was before something of its version that was used.
    for version in {rows[row].version for row in used}:
        of_used = [row for row in used if rows[row].version == version]
        assert max(of_used) < min(
            (row for row in kept if rows[row].version == version), default=len(rows)
        )


@pytest.mark.proves("C3", "C4", "I9")
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), max_size=16),
    more=st.integers(0, 16),
    ranks=st.integers(1, 3),
)
def test_who_has_built_packs_before_decides_as_who_has_not(
    lengths: list[list[int]], more: int, ranks: int
) -> None:
    """``lengths``: of the segments of each trajectory; the last ``more`` come with the step."""
    rows = [Row(5, length, trajectory=n) for n, of in enumerate(lengths) for length in of]
    first = [
        row for row in rows if row.trajectory is not None and row.trajectory < len(lengths) - more
    ]

    def decision(rows: Sequence[Row]) -> PackDecision:
        return decide(settings(), offered(*rows), step=5, current=5, ranks=ranks)

    def told(one: PackDecision) -> tuple[Any, ...]:
        marks = [(of.group_id, of.wanted.tolist()) for of in one.carried]
        return trained(one), one.versions, dict(one.metrics), marks, one.expected

    queue._built.cache_clear()
    alone = told(decision(rows))
    assert told(decision(rows)) == alone
    queue._built.cache_clear()
    decision(first)
    assert told(decision(rows)) == alone
