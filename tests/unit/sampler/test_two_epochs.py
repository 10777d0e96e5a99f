"""Batches of two policy epochs, in which step numbers come twice: packs and makers beside loops
that know of each row which weights sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.batches import batch_of
from harness.groups import GroupSpec
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import Batch, GrpoBatchMaker, make_batch
from rollstream.sampler.training.ready_packs.decision import METRICS, PackDecision, decide
from rollstream.sampler.training.ready_packs.offered import Offered
from rollstream.schemas.records import SampledBatch

PACK = 8  # Tokens; no trajectory is longer than the packs of a rank.


class Weights(NamedTuple):
    """What sampled a row."""

    epoch: int
    step: int
    name: str

    def age(self) -> tuple[int, ...]:
        """Greater is newer."""
        return self.epoch, self.step


class Member(NamedTuple):
    """A trajectory.

    Attributes:
        rows: weights and number of tokens of each segment.
    """

    rows: tuple[tuple[Weights, int], ...]
    reward: float
    used: bool


Group = tuple[str, list[Member]]  # Its example, and its members.


def weights(names: Sequence[str]) -> st.SearchStrategy[Weights]:
    def named(epoch: int, step: int, name: str) -> Weights:
        return Weights(epoch, step, f"step-{step}{name}")

    return st.builds(named, st.integers(0, 1), st.integers(-1, 2), st.sampled_from(names))


@st.composite
def batches(draw: st.DrawFn, names: Sequence[str] = ("", ".e1")) -> list[Group]:
    """Groups with the weights of each row; most trajectories are of one policy."""
    groups: list[Group] = []
    drawn, lengths = weights(names), st.integers(1, 4)
    for _ in range(draw(st.integers(0, 6))):
        members = []
        for _ in range(draw(st.integers(1, 3))):
            first = draw(drawn)
            rows = [(first, draw(lengths))]
            if draw(st.booleans()):
                rows.append((draw(st.just(first) | drawn), draw(lengths)))
            reward = draw(st.sampled_from([0.0, 0.5, 1.0]))
            members.append(Member(tuple(rows), reward, draw(st.sampled_from([False] * 3 + [True]))))
        groups.append((draw(st.sampled_from("ab")), members))
    return groups


def batch(groups: Sequence[Group]) -> Batch:
    """As files have it; every group was carried."""
    specs = []
    for number, (example, members) in enumerate(groups):
        rows = [
            {
                "rollout_uid": f"{number}-{index}",
                "segment_idx": segment,
                "is_last_segment": segment + 1 == len(member.rows),
                "policy_epoch": of.epoch,
                "weight_step": of.step,
                "policy_version": of.name,
                "prompt_tokens": np.empty(0, "<i4"),
                "output_tokens": np.arange(length, dtype="<i4"),
                "logprobs": np.zeros(length, "<f4"),
                "reward": member.reward if segment + 1 == len(member.rows) else 0.0,
            }
            for index, member in enumerate(members)
            for segment, (of, length) in enumerate(member.rows)
        ]
        epoch = min((of for member in members for of, _ in member.rows), key=Weights.age).epoch
        specs.append(
            GroupSpec(
                example_id=example, rewards=(0.0,) * len(rows), policy_epoch=epoch, extras=rows
            )
        )
    made = batch_of(*([spec] for spec in specs))
    ids = tuple(f"group-{number}" for number in range(len(groups)))
    used = [member.used for _, members in groups for member in members]
    return replace(
        made,
        sampled=SampledBatch("b", ids, 0),
        carried_groups=len(groups),
        used=np.array(used, np.bool_),
    )


def decided(
    groups: Sequence[Group], *, ranks: int, current: int = 2, **changed: Any
) -> PackDecision:
    settings = {"pack_length": PACK, "schedule": {"b_ratio": 1.0}, "queue_limit": 99, **changed}
    config = ReadyPacksConfig.model_validate(settings)
    return decide(config, Offered.of(batch(groups)), step=4, current=current, ranks=ranks)


def members_of(groups: Sequence[Group]) -> list[Member]:
    return [member for _, members in groups for member in members]


def version_of(member: Member) -> Weights | None:
    """The weights that sampled all of it, whatever their names; None: several did, or their step is
    not known."""
    found = {of._replace(name="") for of, _ in member.rows}
    only = found.pop()
    return None if found or only.step < 0 else only


def packs_of(groups: Sequence[Group], decision: PackDecision) -> dict[tuple[int, int], set[int]]:
    """By micro-step and rank, which trajectories are in the pack."""
    found: dict[tuple[int, int], set[int]] = {}
    if decision.plan is not None:
        rows = [index for index, m in enumerate(members_of(groups)) for _ in m.rows]
        places = zip(decision.plan.pack.tolist(), decision.plan.rank.tolist(), strict=True)
        for row, place in enumerate(places):
            if place[0] >= 0:
                found.setdefault(place, set()).add(rows[row])
    return found


def kept_of(groups: Sequence[Group], decision: PackDecision) -> set[int]:
    """The trajectories that are carried."""
    wanted = {one.group_id: one.wanted.tolist() for one in decision.carried}
    marks = [
        mark
        for number, (_, members) in enumerate(groups)
        for mark in wanted.get(f"group-{number}", [False] * len(members))
    ]
    return {index for index, mark in enumerate(marks) if mark}


@pytest.mark.proves("C5", "I9")
@given(
    groups=batches(),
    ranks=st.integers(1, 2),
    steps=st.integers(1, 3),
    leftovers=st.sampled_from(["flush", "drop"]),
    window=st.integers(0, 2),
)
def test_packs_are_of_one_version_and_the_newest_one_waits(
    groups: list[Group], ranks: int, steps: int, leftovers: str, window: int
) -> None:
    decision = decided(
        groups,
        ranks=ranks,
        gradient_accumulation_steps=steps,
        leftovers=leftovers,
        version_window=window,
    )
    members, packs = members_of(groups), packs_of(groups, decision)
    versions = [version_of(member) for member in members]
    for (micro_step, _), inside in packs.items():
        (version,) = {versions[index] for index in inside}  # Whatever its names.
        assert version is not None
        assert version.step == decision.versions[micro_step] >= 2 - window
        assert version.epoch == decision.policy_epochs[micro_step]
    found = [versions[min(packs[step, 0])] for step in range(len(decision.versions))]
    ages = [version.age() for version in found if version is not None]
    assert ages == sorted(ages), "the oldest first"
    trained, kept = set().union(*packs.values()), kept_of(groups, decision)
    usable = {
        index
        for index, member in enumerate(members)
        if versions[index] is not None and not member.used
    }
    assert decision.metrics[f"{METRICS}drop_unusable"] == sum(
        version is None and not member.used
        for version, member in zip(versions, members, strict=True)
    )
    assert not trained & kept
    assert trained | kept <= usable
    by_age = {index: version.age() for index in usable if (version := versions[index])}
    newest = max(by_age.values(), default=())
    of_newest = {index for index in usable if by_age[index] == newest}
    if newest and newest[1] >= 2 - window:
        assert of_newest <= trained | kept, "what is newest never is a leftover"
    if leftovers == "flush" and window == 2 and ranks == 1:
        assert trained | kept == usable, "a rank alone always has a pack of what is left over"


@pytest.mark.proves("C4", "C5")
@given(groups=batches(), ranks=st.integers(1, 2), steps=st.integers(1, 3))
def test_two_epochs_make_the_packs_that_one_makes_whose_steps_rise_likewise(
    groups: list[Group], ranks: int, steps: int
) -> None:
    """Only the order of what sampled them counts."""
    ages = {of.age() for member in members_of(groups) for of, _ in member.rows if of.step >= 0}
    place = {age: number for number, age in enumerate(sorted(ages))}

    def alike(of: Weights) -> Weights:
        return of if of.step < 0 else Weights(0, place[of.age()], "v")

    in_one = [
        (
            example,
            [m._replace(rows=tuple((alike(of), n) for of, n in m.rows)) for m in members],
        )
        for example, members in groups
    ]
    settings: dict[str, Any] = {
        "ranks": ranks,
        "gradient_accumulation_steps": steps,
        "version_window": 9,
    }
    one, two = (decided(given, **settings) for given in (in_one, groups))
    assert packs_of(in_one, one) == packs_of(groups, two)
    assert kept_of(in_one, one) == kept_of(groups, two)
    assert one.metrics == two.metrics


@pytest.mark.proves("D2")
@given(groups=batches())
def test_a_problem_is_trained_on_under_what_the_newest_epoch_made(groups: list[Group]) -> None:
    """A trajectory's weights are those of its newest segment, a group's those of its newest
    trajectory."""
    made = make_batch(GrpoBatchMaker(), batch(groups), 99)
    ages = [max(member.rows[-1][0].age() for member in members) for _, members in groups]
    newest: dict[str, tuple[int, ...]] = {}
    for (example, _), age in zip(groups, ages, strict=True):
        newest[example] = max(newest.get(example, age), age)
    expected, older, index = [], 0, 0
    for (example, members), age in zip(groups, ages, strict=True):
        rewards = [member.reward for member in members]
        for member in members:
            if age < newest[example]:
                older += not member.used
            elif not member.used and member.reward * len(members) != sum(rewards):
                expected.append(index)
            index += 1
    assert sorted(made.trajectories.tolist()) == expected
    assert made.filtered.get("older_policy", 0) == older


@pytest.mark.proves("C5")
def test_one_step_of_two_epochs_makes_two_versions_and_a_trajectory_of_both_has_none() -> None:
    both = [Weights(0, 1, "step-1"), Weights(1, 1, "step-1.e1")]
    one = [Member(((of, 4),), 0.0, used=False) for of in both for _ in range(2)]
    mixed = Member(tuple((of, 4) for of in both), 0.0, used=False)
    decision = decided([("a", [*one, mixed])], ranks=1)
    assert packs_of([("a", [*one, mixed])], decision) == {(0, 0): {0, 1}}
    assert decision.policy_epochs == (0,)
    assert kept_of([("a", [*one, mixed])], decision) == {2, 3}
    assert decision.metrics[f"{METRICS}drop_unusable"] == 1
