"""Sealed groups are the same when they come out of the bytes that keep them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from harness.decider import LOGS
from harness.examples import examples
from harness.groups import GroupSpec, flush_of
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.packed_refs import PackedRefs
from rollstream.folds.group.packed_rows import pack_rows
from rollstream.streams.folds.refs import GroupRef

numbers = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**33) | st.integers(0, 2**62)
rewards = st.sampled_from([0.0, 1.0, 0.5]) | st.floats(allow_nan=False)
row = st.tuples(st.sampled_from([-1, 3, 4]) | numbers, times, rewards, st.booleans())


@given(
    groups=st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=5),
    every=st.integers(1, 3),
)
@settings(max_examples=examples(300))
def test_rows_are_unpacked_as_they_were(
    groups: list[list[tuple[int, int, float, bool]]], every: int
) -> None:
    rows = [row for group in groups for row in group]
    steps, created, earned, begins = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.cumsum([0, *map(len, groups[:-1])])
    begins[starts] = True
    wanted = range(0, len(groups), every)
    packed = pack_rows(starts, steps, created, earned, begins, wanted)
    for index, found in zip(wanted, packed, strict=True):
        start, group = starts.tolist()[index], groups[index]
        span = slice(start, start + len(group))
        columns = found.unpack()
        assert_array_equal(columns.weight_steps, steps[span])
        assert_array_equal(columns.created_ts, created[span])
        assert columns.earned.tobytes() == earned[span].tobytes()
        assert_array_equal(columns.begins, begins[span])
        assert {*found.steps()} == {*steps[span].tolist()}
        assert found.oldest_ts() == created[span].min()
        assert found.rollouts() == begins[span].sum()


def test_rows_of_a_step_made_together_with_plain_rewards_take_eight_bytes_each() -> None:
    same = np.full(8, 7)
    (packed,) = pack_rows(
        np.array([0]), same, 10**15 + np.arange(8), np.arange(8) / 4, np.ones(8, np.bool_), [0]
    )
    assert len(packed.data) == 1 + 16 + 8 * 8


specs = st.builds(
    GroupSpec,
    example_id=st.text(max_size=12).filter(str.strip),
    rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0), (None, 1.0)]),
    weight_steps=st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
    lineage=st.sampled_from(["", "main"]),
    policy_epoch=st.integers(0, 2),
)


def groups_of(flushes: list[list[GroupSpec]]) -> list[KnownGroup]:
    return [
        group
        for offset, of_flush in enumerate(flushes)
        for group in known_groups(LOGS[1], offset, flush_of(of_flush, name=str(offset)))
    ]


@given(
    flushes=st.lists(st.lists(specs, min_size=1, max_size=5), min_size=1, max_size=4),
    names=st.sampled_from(["id", "0" * 32, "A" * 32, "ä" * 40, ""]),
    data=st.data(),
)
def test_known_groups_are_a_mapping(
    flushes: list[list[GroupSpec]], names: str, data: st.DataObject
) -> None:
    groups = groups_of(flushes)
    groups[0] = groups[0]._replace(group=groups[0].group._replace(group_id=names))
    known, expected = KnownGroups(PackedRefs(LOGS)), dict[GroupRef, KnownGroup]()
    for group in data.draw(st.permutations(groups)):
        known[group.ref] = expected[group.ref] = group
    for ref in data.draw(st.sets(st.sampled_from(sorted(expected)))):
        assert known.pop(ref) == expected.pop(ref)
        assert known.pop(ref, None) is None
    assert dict(known) == expected
    assert len(known) == len(expected)
    for group in groups:
        assert known.get(group.ref) == expected.get(group.ref)
        assert known.with_ids([group.group.group_id]) == [
            one for one in groups if one == group and one.ref in expected
        ]
    for offset in range(len(flushes) + 1):
        alive = [expected[ref] for ref in sorted(expected) if ref.offset == offset]
        assert known.of_flush(LOGS[1], offset) == alive
    assert known.get(GroupRef("elsewhere", 1, 0, 0, 0)) is None


@given(flushes=st.lists(st.lists(specs, min_size=1, max_size=5), min_size=1, max_size=4))
def test_parts_of_a_group_are_those_of_the_whole(flushes: list[list[GroupSpec]]) -> None:
    known = KnownGroups(PackedRefs(LOGS))
    groups = groups_of(flushes)
    for group in groups:
        known[group.ref] = group
    for _ in ("newest", "packed"):
        for group in groups:
            packed = known.packed.find(group.ref)
            assert known.version_of(packed) == group.group.policy_version
            assert known.aged(packed) == (group.group.lineage, group.sealed_ts, group.rows)
            assert known.key_of(group.ref) == group.key
        known.__getstate__()
