"""A choice looks at about as many groups as it chooses, whatever else is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.choosing.choose import Asked, counted
from rollstream.sampler.decide.choosing.dropping import refs_of, unfit_groups
from rollstream.sampler.decide.choosing.requests import choose
from rollstream.sampler.decide.ratio import held_back
from rollstream.sampler.decide.trainer.commands import PublishPolicy, Resume

READY = 1_200
STEPS = st.integers(3, 6)
GROUPS = st.lists(
    st.builds(
        GroupSpec,
        example_id=st.sampled_from("abcde"),
        rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0)]),
        weight_steps=st.tuples(STEPS, STEPS) | STEPS.map(lambda step: (step, step)),
        policy_epoch=st.just(1),
    ),
    min_size=1,
    max_size=8,
)


class Looks:
    """Counts how often groups, and ranges of sorted rows, are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = Counter[str]()
        for of, name in ((KnownGroups, "at"), (KnownGroups, "made"), (SortedRows, "columns")):
            monkeypatch.setattr(of, name, self._counting(name, getattr(of, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            self.counts[name] += 1
            return call(*args)

        return counting

    def of(self, sampler: Decider, command: NextBatch | NextShapedBatch) -> Counter[str]:
        """Those of this decision, which serves a batch."""
        self.counts.clear()
        assert isinstance(sampler.choose(command), ServedBatch)
        return self.counts.copy()


def begun_at(step: int, **config: Any) -> Decider:
    sampler = Decider(**config)
    sampler.do(Resume(checkpointed_step=step - 1))
    return sampler


def test_keys_without_the_newest_policy_cost_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four groups, the first ones in turn, are of other policies."""
    sampler = begun_at(3, on_policy_fraction=0.5)
    steps = [(f"ex-{number}", 4 * number // READY) for number in range(READY)]
    sampler.seal(*(GroupSpec(example_id=n, weight_step=step, policy_epoch=1) for n, step in steps))
    looks = Looks(monkeypatch).of(sampler, NextBatch(step=3, num_groups=8))
    assert looks["at"] < 50
    assert looks["columns"] < READY // 4


def test_groups_that_are_too_old_in_part_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = begun_at(20, max_rollout_step_delay=10, max_policy_lag=40)
    partly: dict[str, Any] = {"weight_steps": (0, 19, 20), "policy_epoch": 1}
    names = [f"ex-{number}" for number in range(READY)]
    sampler.seal(*(GroupSpec(example_id=n, rewards=(0.0, 1.0, 2.0), **partly) for n in names))
    looks = Looks(monkeypatch)
    assert looks.of(sampler, NextBatch(step=20, num_groups=8))["made"] >= READY
    for step in range(21, 24):
        found = looks.of(sampler, NextBatch(step=step, num_groups=8))
        assert found["at"] + found["made"] < 50
    assert len(sampler.state.ready) == READY - 4 * 8


def test_a_shaped_batch_of_all_that_is_ready_is_chosen_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = Decider()
    sampler.seal(*(GroupSpec(example_id=f"ex-{number}") for number in range(READY)))
    command = NextShapedBatch(
        step=0, settings="{}", num_groups=READY + 100, min_groups=0, carried=()
    )
    looks = Looks(monkeypatch).of(sampler, command)
    assert looks["at"] <= 2 * READY
    assert len(sampler.state.batches[0].groups) == READY


@given(
    flushes=st.lists(st.tuples(st.sampled_from(LOGS), GROUPS), min_size=1, max_size=5),
    config=st.fixed_dictionaries(
        {},
        optional={
            "on_policy_fraction": st.sampled_from([0.25, 0.5, 1.0]),
            "max_policy_lag": st.integers(0, 3),
            "samples_per_insert": st.just(1.0),
            "recency": st.just("exp"),
            "max_samples": st.integers(1, 2),
        },
    ),
    mix=st.sampled_from([None, {"math": 1.0, "code": 1.0}, {"math": 3.0, "code": 1.0}]),
    accept=st.sampled_from([None, "nonzero_std"]),
    delay=st.integers(-1, 3),
    publishes=st.booleans(),
)
@settings(max_examples=examples(100))
def test_a_shaped_batch_has_as_many_groups_as_a_choice_finds(
    flushes: Any, config: Any, mix: Any, accept: Any, delay: int, publishes: bool
) -> None:
    """Counted or chosen: for each number of groups the same, and the batch has the most."""
    if "samples_per_insert" in config:
        config["error_buffer"] = (-8.0, 64.0)
    if delay >= 0:
        config["max_rollout_step_delay"] = delay
    sampler = begun_at(6, **config)
    for log, groups in flushes:
        sampler.seal(*groups, log=log)
    if publishes:
        sampler.do(PublishPolicy(step=6, policy_version="v6"))
    state, most = sampler.state, len(sampler.state.ready) + 1

    def chosen(num_groups: int) -> bool:
        asked = Asked(num_groups=num_groups, step=6, mix=mix, accept=accept)
        found, drops = choose(state, state.choosing, asked, 0)
        held = num_groups and held_back(state, num_groups, unfit_groups(drops))
        fits[num_groups] = found is not None
        return found is not None and not held

    fits: dict[int, bool] = {}
    can = [number for number in range(most + 1) if chosen(number)]
    asked = Asked(num_groups=most, step=6, mix=mix, accept=accept)
    _, drops = choose(state, state.choosing, asked, 0)
    enough = counted(state, state.choosing, asked, refs_of(drops))
    assert (enough is None) == (accept is not None and delay >= 0)
    if enough is not None:
        assert {number: enough(number) for number in fits} == fits
    command = NextShapedBatch(
        step=6,
        settings="{}",
        num_groups=most,
        min_groups=0,
        carried=(),
        mix=mix,
        accept=accept,
    )
    batch = sampler.choose(command)
    assert isinstance(batch, ServedBatch)
    assert len(batch.groups) == max(can)
