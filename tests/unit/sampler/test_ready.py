"""The index of ready groups against a model that sorts all of them for each question."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS
from harness.examples import examples
from harness.groups import GroupSpec, flush_of
from harness.ready_model import ReadyModel
from rollstream.folds.group.known import Key, KnownGroup, known_groups
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.packed_refs import PackedRefs
from rollstream.folds.group.sorted_rows import BLOCK_MAX, SortedRows
from rollstream.folds.ready.index import ReadyIndex
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef

GREATEST = 2**64 - 1
small = st.integers(0, 40)
rows = st.tuples(*[small | st.just(GREATEST)] * 3)
Row = tuple[int, int, int]


@given(begin=st.sets(rows), changes=st.lists(rows, max_size=200))
def test_sorted_rows_are_a_sorted_set(begin: set[Row], changes: list[Row]) -> None:
    found, expected = SortedRows(3), set(begin)
    for row in begin:
        found.add(*row)
    for row in changes:
        if row in expected:
            expected.remove(row)
            found.remove(*row)
        else:
            expected.add(row)
            found.add(*row)
        assert len(found) == len(expected)
    check_firsts(found, expected, {row[0] for row in [*begin, *changes]})
    assert list(found) == sorted(expected)


def check_firsts(found: SortedRows, expected: set[Row], firsts: Collection[int]) -> None:
    for first in firsts:
        alike = sorted(row for row in expected if row[0] == first)
        assert found.least(first) == (alike[0] if alike else None)
        assert found.count(first) == len(alike)
        assert found.lasts(first).tolist() == [last for *_, last in alike]
        without = {row[1] for row in alike[: len(alike) // 2]}
        left = [row for row in alike if row[1] not in without]
        assert found.least_but(first, 1, without) == (left[0] if left else None)
    counts = Counter(row[0] for row in expected)
    for more_than in (0, 1):
        of = {first for first in counts if counts[first] > more_than}
        assert {*firsts} & of <= {*found.beginning(firsts, more_than)} <= {*firsts}
        assert {*found.beginning({*counts, GREATEST}, more_than)} in (of, {*counts, GREATEST})
    lasts = {row[-1] for row in [*expected][::2]}
    assert list(found.ending_in(lasts)) == sorted(row for row in expected if row[-1] in lasts)


@pytest.mark.parametrize("firsts", [1, 3, 10**9])
def test_sorted_rows_stay_sorted_over_many_blocks(firsts: int) -> None:
    order = random.Random(firsts)
    every = [(number * 7919 % firsts, number % 7, number) for number in range(5 * BLOCK_MAX)]
    order.shuffle(every)
    found = SortedRows(3)
    for row in every:
        found.add(*row)
    assert list(found) == sorted(every)
    kept, gone = every[: BLOCK_MAX // 3], every[BLOCK_MAX // 3 :]
    for row in gone[BLOCK_MAX:]:
        found.remove(*row)
    found.remove_all(gone[:BLOCK_MAX])
    assert list(found) == sorted(kept)
    for row in gone[: BLOCK_MAX // 3]:  # Beside the blocks.
        found.add(*row)
    check_firsts(found, {*kept, *gone[: BLOCK_MAX // 3]}, {row[0] for row in kept[:50]})
    for row in gone[BLOCK_MAX // 3 :]:
        found.add(*row)
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


PACKED = PackedRefs(LOGS)


def test_rows_that_lie_together_are_removed_at_once_wherever_they_lie() -> None:
    found = SortedRows(2)
    for number in range(5 * BLOCK_MAX):
        found.add(number, number)
    gone = range(BLOCK_MAX // 3, 5 * BLOCK_MAX)  # Whole blocks, parts, and some beside them.
    found.remove_all([(number, number) for number in gone])
    assert list(found) == [(number, number) for number in range(gone.start)]
    assert len(found) == gone.start
    found.remove_all([])


LEAST = {"code": 1, "math": 2}


def empty(seed: int) -> ReadyIndex:
    return ReadyIndex(seed, KnownGroups(PACKED), least=LEAST)


def add(index: ReadyIndex, group: KnownGroup) -> None:
    index._known[group.ref] = group
    index.add(group)


@given(groups=ready_groups(), data=st.data(), seed=st.integers(0, 3))
@settings(max_examples=examples(150))
def test_the_index_answers_as_its_model(
    groups: list[KnownGroup], data: st.DataObject, seed: int
) -> None:
    index, model = empty(seed), ReadyModel()
    turn = 0
    asked_early = data.draw(st.booleans())
    for group in groups:
        if asked_early:  # What is short of rollouts is then kept up with each change.
            index.short_from(0, "", LEAST)
        add(index, group)
        model.groups[group.ref] = group
        match data.draw(st.sampled_from(["add", "add", "serve", "late", "remove"])):
            case "serve":
                newest = PolicyRef("", *data.draw(st.tuples(st.integers(0, 1), st.integers(0, 3))))
                turn = index.begin_turn(newest)
                assert model.begin_turn(newest) == turn
                index.mark_served(group.key.environment, [(group.key.example_id, turn)])
                model.mark_served(group.key, turn)
            case "late" if turn:  # Turns may become known in any order.
                index.mark_served(group.key.environment, [(group.key.example_id, 1)])
                model.mark_served(group.key, 1)
            case "remove":
                gone = data.draw(st.lists(st.sampled_from(sorted(model.groups)), min_size=1))
                index.discard(gone)
                index.discard(gone)
                for ref in {*gone}:
                    del model.groups[ref]
    held = model.groups.values()
    assert index.refs() == sorted(model.groups)
    assert [group.ref in index for group in groups] == [g.ref in model.groups for g in groups]
    assert index.counts() == Counter(group.key.environment for group in held)
    assert set(refs_of(index.all_equal())) == {group.ref for group in held if group.all_equal}
    for environment in (None, "math", "code", "none"):
        assert refs_of(index.oldest(5, environment)) == model.oldest(5, environment)
    assert index.policies() == sorted({one for group in held for one in group.policies})
    for policies in {group.policies for group in groups}:
        alike = sorted(group.ref for group in held if group.policies == policies)
        assert refs_of(index.by_policies(policies)) == alike
    for policy in index.policies():
        assert set(index.having(policy)) == {g.policies for g in held if policy in g.policies}
    distinct = [None, {g.policies for g in groups}, {(PolicyRef("", 0, 1),)}, set()]
    refs = [group.ref for group in groups]
    left_out = data.draw(st.sets(st.sampled_from(refs)) if refs else st.just(set[GroupRef]()))
    for environments in (["math"], ["code", "math", "prose"]):
        for among in distinct:
            for out in (set[GroupRef](), left_out):
                packed = set(map(PACKED.pack, out))
                turns = index.keys_in_turn(environments, among, packed)
                assert listed(turns) == model.keys_in_turn(environments, among, out)
                by_age = index.by_age(environments, among, packed)
                found = [[index.at(ref).ref for ref in refs] for _, refs in by_age]
                assert found == model.by_age(environments, among, out)
    for at in {0, *(group.sealed_ts for group in groups)}:
        before = {PACKED.unpack(ref): rollouts for ref, rollouts in index.made_before(at)}
        assert before == model.made_before(at)
    for step in range(4):
        short = set(refs_of(index.short_from(step, "", LEAST)))
        assert short == model.short_from(step, LEAST)
        assert not [*index.short_from(step, "other", LEAST)]


def refs_of(packed: Iterable[int]) -> list[GroupRef]:
    return [PACKED.unpack(ref) for ref in packed]


def listed(
    keys: Iterable[tuple[Key, Iterable[KnownGroup]]],
) -> list[tuple[Key, list[GroupRef]]]:
    return [(key, [group.ref for group in bucket]) for key, bucket in keys]


def test_few_groups_of_a_policy_among_many_are_found_in_turn() -> None:
    """Looked up or met on the way: the same keys in the same order."""
    index, model = empty(1), ReadyModel()
    of_step = [GroupSpec(example_id=f"ex-{n}", weight_step=n % 100 == 0) for n in range(1_000)]
    for group in known_groups(LOGS[1], 0, flush_of(of_step, name="a")):
        add(index, group)
        model.groups[group.ref] = group
    for step, name in enumerate(("ex-300", "ex-7", "ex-0"), start=1):
        turn = index.begin_turn(PolicyRef("", 0, step))
        model.begin_turn(PolicyRef("", 0, step))
        key = next(group.key for group in model.groups.values() if group.key.example_id == name)
        index.mark_served(key.environment, [(key.example_id, turn)])
        model.mark_served(key, turn)
    for step, count in ((0, 990), (1, 10)):
        policies = {(PolicyRef("", 0, step),)}
        found = listed(index.keys_in_turn(["math"], policies))
        assert len(found) == count
        assert found == model.keys_in_turn(["math"], policies)


@pytest.mark.parametrize("late", [False, True])
def test_keys_without_the_policies_are_passed_over_in_turn(late: bool) -> None:
    """Many groups of a policy among many others: the same keys in the same order, also where those
    of the policy are the last ones, and their oldest groups are left out."""
    index, model = empty(1), ReadyModel()
    of_step = [GroupSpec(example_id=f"ex-{n}", weight_step=n % 3) for n in range(600)]
    of_step += [GroupSpec(example_id=f"ex-{n}", weight_step=n % 2) for n in range(0, 600, 7)]
    for log in LOGS[:2]:
        event = flush_of(of_step, name="a", environment=log.environment)
        for group in known_groups(log, 0, event):
            add(index, group)
            model.groups[group.ref] = group
    turn = index.begin_turn(PolicyRef("", 0, 3))
    model.begin_turn(PolicyRef("", 0, 3))
    for key in {
        group.key for group in model.groups.values() if late and group.ref.index_in_flush < 99
    }:
        index.mark_served(key.environment, [(key.example_id, turn)])
        model.mark_served(key, turn)
    without = {ref for ref in model.groups if ref.index_in_flush % 5 == 0}
    for step in range(3):
        policies = {(PolicyRef("", 0, step),)}
        packed = set(map(PACKED.pack, without))
        found = listed(index.keys_in_turn(["math", "code"], policies, packed))
        assert found == model.keys_in_turn(["math", "code"], policies, without)
