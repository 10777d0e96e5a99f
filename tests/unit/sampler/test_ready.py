"""The index of ready groups against a model that sorts all of them for each question."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS
from harness.groups import GroupSpec, flush_of
from harness.ready_model import ReadyModel
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.sampler.known import KnownGroup, known_groups
from rollstream.streams.folds.sampler.known_groups import KnownGroups
from rollstream.streams.folds.sampler.packed_refs import PackedRefs
from rollstream.streams.folds.sampler.ready import ReadyIndex
from rollstream.streams.folds.sampler.sorted_pairs import BLOCK_MAX, SortedPairs

GREATEST = 2**64 - 1
small = st.integers(0, 40)
pairs = st.tuples(small | st.just(GREATEST), small | st.just(GREATEST))


@given(begin=st.sets(pairs), changes=st.lists(pairs, max_size=200))
def test_sorted_pairs_are_a_sorted_set(
    begin: set[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    found, expected = SortedPairs(begin), set(begin)
    for pair in changes:
        if pair in expected:
            expected.remove(pair)
            found.remove(*pair)
        else:
            expected.add(pair)
            found.add(*pair)
        assert len(found) == len(expected)
    assert list(found) == sorted(expected)
    for first in {first for first, _ in [*begin, *changes]}:
        seconds = sorted(second for one, second in expected if one == first)
        assert found.seconds(first).tolist() == seconds
        any_second = found.any_second(first)
        assert any_second in seconds if seconds else any_second is None


@pytest.mark.parametrize("firsts", [1, 3, 10**9])
def test_sorted_pairs_stay_sorted_over_many_blocks(firsts: int) -> None:
    order = random.Random(firsts)
    every = [(number * 7919 % firsts, number) for number in range(5 * BLOCK_MAX)]
    order.shuffle(every)
    found = SortedPairs()
    for pair in every:
        found.add(*pair)
    assert list(found) == sorted(every)
    kept, gone = every[: BLOCK_MAX // 3], every[BLOCK_MAX // 3 :]
    for pair in gone:
        found.remove(*pair)
    assert list(found) == sorted(kept)
    assert all(
        found.seconds(first).tolist() == [s for f, s in sorted(kept) if f == first]
        for first, _ in kept
    )
    for pair in gone:
        found.add(*pair)
    assert list(found) == sorted(every)


specs = st.builds(
    GroupSpec,
    example_id=st.sampled_from("abcdef"),
    rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0)]),
    weight_steps=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)


@st.composite
def ready_groups(draw: st.DrawFn) -> list[KnownGroup]:
    """Of all logs, in some order of arrival."""
    groups: list[KnownGroup] = []
    flushes = st.tuples(st.sampled_from(LOGS), st.lists(specs, min_size=1, max_size=4), small)
    offsets = Counter[PartitionAddress]()
    for log, of_flush, now_ts in draw(st.lists(flushes, max_size=12)):
        event = flush_of(of_flush, name="a", environment=log.environment, now_ts=now_ts)
        groups += known_groups(log, offsets[log], event)
        offsets[log] += 1
    return draw(st.permutations(groups))


def empty(seed: int) -> ReadyIndex:
    return ReadyIndex(seed, KnownGroups(PackedRefs(LOGS)))


def add(index: ReadyIndex, group: KnownGroup) -> None:
    index._known[group.ref] = group
    index.add(group)


@given(groups=ready_groups(), data=st.data(), seed=st.integers(0, 3))
@settings(max_examples=150)
def test_the_index_answers_as_its_model(
    groups: list[KnownGroup], data: st.DataObject, seed: int
) -> None:
    index, model = empty(seed), ReadyModel(seed)
    turn = 0
    for group in groups:
        add(index, group)
        model.groups[group.ref] = group
        match data.draw(st.sampled_from(["add", "add", "serve", "late", "remove"])):
            case "serve":
                turn += 1
                index.mark_served(group.key.environment, [(group.key.example_id, turn)])
                model.mark_served(group.key, turn)
            case "late" if turn:  # Turns may become known in any order.
                index.mark_served(group.key.environment, [(group.key.example_id, 1)])
                model.mark_served(group.key, 1)
            case "remove":
                gone = data.draw(st.sampled_from(sorted(model.groups)))
                index.discard(gone)
                index.discard(gone)
                del model.groups[gone]
    held = model.groups.values()
    assert index.refs() == sorted(model.groups)
    assert [group.ref in index for group in groups] == [g.ref in model.groups for g in groups]
    assert index.counts() == Counter(group.key.environment for group in held)
    assert set(index.all_equal()) == {group.ref for group in held if group.all_equal}
    for environment in (None, "math", "code", "none"):
        assert index.oldest(5, environment) == model.oldest(5, environment)
    assert index.policies() == sorted({one for group in held for one in group.policies})
    for policies in {group.policies for group in groups}:
        alike = sorted(group.ref for group in held if group.policies == policies)
        assert index.by_policies(policies) == alike
    for policy in index.policies():
        assert set(index.having(policy)) == {g.policies for g in held if policy in g.policies}
    distinct = [None, {g.policies for g in groups}, {(PolicyRef("", 0, 1),)}, set()]
    for environments in (["math"], ["code", "math", "prose"]):
        for among in distinct:
            turns = index.keys_in_turn(environments, among)
            listed = [(key, [group.ref for group in bucket]) for key, bucket in turns]
            assert listed == model.keys_in_turn(environments, among)


def test_a_bucket_is_a_sequence_and_its_groups_are_made_as_they_are_looked_at() -> None:
    index = empty(0)
    groups = known_groups(LOGS[1], 0, flush_of([GroupSpec()] * 5, name="a"))
    for group in groups:
        add(index, group)
    _, bucket = next(islice(index.keys_in_turn(["math"]), 1))
    assert (len(bucket), bucket[1], bucket[-1]) == (5, groups[1], groups[-1])
    assert list(bucket[1:4]) == groups[1:4]
    assert [*bucket[:2], *bucket[3:]] == groups[:2] + groups[3:]


def test_few_groups_of_a_policy_among_many_are_found_in_turn() -> None:
    """Looked up or met on the way: the same keys in the same order."""
    index, model = empty(1), ReadyModel(1)
    of_step = [GroupSpec(example_id=f"ex-{n}", weight_step=n % 100 == 0) for n in range(1_000)]
    for group in known_groups(LOGS[1], 0, flush_of(of_step, name="a")):
        add(index, group)
        model.groups[group.ref] = group
    for turn, name in enumerate(("ex-300", "ex-7", "ex-0"), start=1):
        key = next(group.key for group in model.groups.values() if group.key.example_id == name)
        index.mark_served(key.environment, [(key.example_id, turn)])
        model.mark_served(key, turn)
    for step, count in ((0, 990), (1, 10)):
        policies = {(PolicyRef("", 0, step),)}
        found = [
            (key, [group.ref for group in bucket])
            for key, bucket in index.keys_in_turn(["math"], policies)
        ]
        assert len(found) == count
        assert found == model.keys_in_turn(["math"], policies)
