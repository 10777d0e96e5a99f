"""Which files are retired: compared with a slow model that looks at one group after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.seal_events import one_group
from rollstream.consumers.retention.limits import OverLimits, RetentionLimits
from rollstream.consumers.retention.plan import (
    RETIRED_BYTES_MAX,
    FileGroups,
    FlushFiles,
    HeldGroups,
    describe_held,
    files_of_flush,
    parts,
    plan_retention,
)
from rollstream.schemas.events import RetiredFile, SealedGroupColumns
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

ADDRESS = PartitionAddress("math", 1, 0)
Standing = Literal["done", "open", "undecided"]
STANDINGS: tuple[Standing, ...] = ("done", "done", "done", "open", "undecided")
Named = tuple[int, str, int]


@dataclass
class Decided:
    """What a sampler decided of groups; of all others nothing."""

    standings: Mapping[GroupRef, Standing]

    def is_done(self, ref: GroupRef) -> bool:
        return self.standings.get(ref) == "done"

    def is_open(self, ref: GroupRef) -> bool:
        return self.standings.get(ref) == "open"


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[FlushFiles], dict[str, Decided], int]:
    """Flushes by rising offset and time, what up to 2 samplers decided, and the youngest age."""
    flushes: list[FlushFiles] = []
    refs: list[GroupRef] = []
    sealed_ts = 0
    for number in range(draw(st.integers(0, 5))):
        sealed_ts += draw(st.integers(0, 2))
        sizes = draw(st.lists(st.integers(0, 3), max_size=3))
        files, first = [], 0
        for index, size in enumerate(sizes):
            groups = tuple(range(first, first + size))
            first += size
            version, evaluated = draw(st.sampled_from("xy")), draw(st.integers(0, 1))
            stored = size + evaluated
            files.append(FileGroups(f"{number}-{index}", 10 + index, groups, version, stored))
            refs += [GroupRef(*ADDRESS, 2 * number, group) for group in groups]
        flushes.append(FlushFiles(2 * number, sealed_ts, tuple(files)))
    standing = st.sampled_from(STANDINGS)
    samplers = {
        name: Decided({ref: draw(standing) for ref in refs})
        for name in draw(st.sampled_from([("a",), ("a", "b")]))
    }
    return flushes, samplers, draw(st.integers(0, 8))


@pytest.mark.proves("I7")
@given(cases())
def test_a_file_is_retired_where_every_sampler_is_done_with_every_group(
    case: tuple[list[FlushFiles], dict[str, Decided], int],
) -> None:
    flushes, samplers, until = case
    retire: list[Named] = []
    held: list[Named] = []
    holding = {name: [0, 0] for name in samplers}
    for flush in flushes:
        for file in flush.files:
            if flush.sealed_ts > until:
                continue
            left = 0
            for name, decided in samplers.items():
                for group in file.groups:
                    standing = decided.standings[GroupRef(*ADDRESS, flush.offset, group)]
                    left += standing != "done"
                    holding[name][0] += standing == "open"
                    holding[name][1] += standing == "undecided"
            (held if left else retire).append((flush.offset, file.path, file.size))
    plan = plan_retention(ADDRESS, flushes, samplers, OverLimits(until))
    assert [(file.offset, file.path, file.size) for file in plan.files] == retire
    assert plan.held_files == len(held)
    assert plan.held == {name: HeldGroups(*two) for name, two in holding.items() if any(two)}
    assert bool(describe_held(plan.held_files, plan.held)) == bool(held)


@given(cases())
def test_what_is_done_later_retires_the_same_files_and_more(
    case: tuple[list[FlushFiles], dict[str, Decided], int],
) -> None:
    flushes, samplers, until = case
    later = {name: Decided({**one.standings, **_done(one)}) for name, one in samplers.items()}
    before = plan_retention(ADDRESS, flushes, samplers, OverLimits(until)).files
    after = plan_retention(ADDRESS, flushes, later, OverLimits(until + 1)).files
    assert {*before} <= {*after}


@pytest.mark.proves("A20", "I7")
@given(cases(), st.none() | st.integers(0, 8), st.none() | st.integers(0, 4))
def test_over_a_cap_the_oldest_files_that_are_done_with_are_retired_and_no_more(
    case: tuple[list[FlushFiles], dict[str, Decided], int],
    cap: int | None,
    cap_per_policy: int | None,
) -> None:
    flushes, samplers, _ = case
    limits = RetentionLimits(keep_groups=cap, keep_groups_per_policy=cap_per_policy)
    over = OverLimits.of(limits, 100, sum((flush.count_groups() for flush in flushes), Counter()))
    plan = plan_retention(ADDRESS, flushes, samplers, over)
    files = [(flush.offset, file) for flush in flushes for file in flush.files]
    done = {
        file.path
        for offset, file in files
        if all(
            decided.is_done(GroupRef(*ADDRESS, offset, index))
            for decided in samplers.values()
            for index in file.groups
        )
    }
    left: Counter[str] = Counter()
    for _, file in files:
        left[file.policy_version] += file.stored

    def is_over(file: FileGroups) -> bool:
        of_policy = left[file.policy_version]
        over_its_own = cap_per_policy is not None and of_policy > cap_per_policy
        return over_its_own or (cap is not None and left.total() > cap)

    retired = {file.path for file in plan.files}
    assert retired <= done
    for _, file in files:
        if file.path in retired:
            assert is_over(file), "each was retired while there was too much"
            left[file.policy_version] -= file.stored
    assert not any(is_over(file) for _, file in files if file.path in done - retired)
    if cap_per_policy is None:
        paths = [file.path for _, file in files if file.path in done]
        assert {*paths[: len(retired)]} == retired, "the oldest go first"


@given(st.integers(0, 1000), st.integers(1, 64))
def test_the_shares_of_all_partitions_hold_what_the_cap_allows(cap: int, partitions: int) -> None:
    share = RetentionLimits(7, cap).of_partition(partitions)
    assert share.keep_groups is not None
    assert cap <= share.keep_groups * partitions < cap + partitions
    assert (share.older_than_us, share.keep_groups_per_policy) == (7, None)


def _done(decided: Decided) -> dict[GroupRef, Standing]:
    return {ref: "done" for ref, standing in decided.standings.items() if standing == "open"}


def test_without_a_sampler_nothing_is_retired() -> None:
    flush = FlushFiles(0, 0, (FileGroups("a", 1, (), "x", 0),))
    assert plan_retention(ADDRESS, [flush], {}, OverLimits(10)).files == ()


def test_nothing_is_read_behind_the_first_flush_that_is_too_young() -> None:
    def flushes() -> Iterator[FlushFiles]:
        yield FlushFiles(0, 1, (FileGroups("a", 1, (), "x", 0),))
        yield FlushFiles(1, 3, (FileGroups("b", 1, (), "x", 0),))
        raise AssertionError("read too far")

    plan = plan_retention(ADDRESS, flushes(), {"a": Decided({})}, OverLimits(2))
    assert [file.path for file in plan.files] == ["a"]


def test_nobody_trains_on_groups_of_split_eval() -> None:
    event = one_group("a", [0], 1)
    (group,) = event.groups
    evaluated = replace(event, groups=SealedGroupColumns.of([group._replace(split="eval")]))
    assert [file.groups for file in files_of_flush(3, event).files] == [(0,)]
    (file,) = files_of_flush(3, evaluated).files
    assert (file.groups, file.policy_version, file.stored) == ((), group.policy_version, 1)


@given(st.lists(st.integers(1, 2_000), max_size=3_000))
def test_events_hold_all_files_in_order_and_stay_small(lengths: Sequence[int]) -> None:
    files = [RetiredFile(offset=at, path="x" * size, size=1) for at, size in enumerate(lengths)]
    events = list(parts(files))
    assert [file for event in events for file in event] == files
    assert all(sum(len(file.path) for file in event) <= RETIRED_BYTES_MAX for event in events)
