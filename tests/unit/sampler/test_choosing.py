"""Which groups are chosen: eligible, weighted, chosen; and what no setting could ever choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.choosing_model import expected
from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import Key
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.choosing.choose import Asked
from rollstream.sampler.decide.choosing.requests import choose
from rollstream.sampler.decide.queries.sampling import SampleGroups
from rollstream.sampler.decide.trainer.commands import PublishPolicy, Resume
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups

STEPS = st.integers(0, 6)
GROUPS = st.lists(
    st.builds(
        GroupSpec,
        example_id=st.sampled_from("abcde"),
        rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.5)]),
        weight_steps=st.tuples(STEPS, STEPS) | STEPS.map(lambda step: (step, step)),
        policy_epoch=st.just(1),
    ),
    min_size=1,
    max_size=8,
)
FLUSHES = st.lists(st.tuples(st.sampled_from(LOGS), GROUPS), min_size=1, max_size=5)
CHOOSING = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 3),
        "order": st.just("ready"),
        "recency": st.sampled_from(["linear", "exp"]),
        "reward_weighting": st.just("spread"),
        "on_policy_fraction": st.sampled_from([0.25, 0.5, 1.0]),
        "prefer_policy_versions": st.sets(st.sampled_from(["v0", "v1"]), min_size=1).map(tuple),
        "recent_n_versions": st.integers(1, 3),
        "max_policy_lag": st.integers(0, 6),
    },
)
FILTER = st.fixed_dictionaries(
    {},
    optional={
        "min_mean_reward": st.sampled_from([0.0, 0.25, 0.5]),
        "max_mean_reward": st.sampled_from([0.5, 0.9, 1.0]),
    },
)
ASKED = st.fixed_dictionaries(
    {"num_groups": st.integers(1, 8)},
    optional={
        "mix": st.sampled_from([{"math": 1.0, "code": 1.0}, {"math": 3.0, "code": 1.0}]),
        "accept": st.just("nonzero_std"),
        "grouping": st.just("strict"),
        "start_offset": st.integers(0, 7),
        "attempt": st.integers(0, 2),
        "seed": st.integers(4, 6),
        "policy_version": st.sampled_from(["v0", "v1"]),
    },
)


def begun_at(step: int, **settings: Any) -> Decider:
    """A sampler whose trainer resumed and does this step next, as policy epoch 1."""
    sampler = Decider(**settings)
    sampler.do(Resume(checkpointed_step=step - 1))
    return sampler


def specs(count: int, **fields: Any) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}", **fields) for i in range(count)]


def look(sampler: Decider, num_groups: int, **other: Any) -> tuple[str, ...]:
    names = ("grouping", "start_offset", "seed", "mix", "policy_version")
    asked = {name: other.pop(name) for name in names if name in other}
    command = SampleGroups(asked=Asked(num_groups=num_groups, step=0, **asked), settings=other)
    return tuple(group.group_id for group in sampler.do(command))


def ids(batch: ServedBatch) -> tuple[str, ...]:
    return tuple(group.group_id for group in batch.groups)


def steps_of(sampler: Decider, groups: tuple[str, ...]) -> list[int]:
    known = {one.group.group_id: one for one in sampler.state.known_as(groups)}
    return [known[one].group.weight_step for one in groups]


@pytest.mark.proves("A13", "A14", "A15", "E4")
@given(
    first=st.sampled_from([3, 6]),
    flushes=FLUSHES,
    served=st.lists(st.integers(1, 3), max_size=3),
    published=st.integers(0, 3),
    choosing=CHOOSING,
    kept=FILTER,
    asked=ASKED,
    alpha=st.sampled_from([1.0, 0.5, 3.0]),
)
@settings(max_examples=examples(300))
def test_the_choice_is_that_of_the_model(
    first: int,
    flushes: Any,
    served: list[int],
    published: int,
    choosing: Any,
    kept: Any,
    asked: Any,
    alpha: float,
) -> None:
    if choosing.get("reward_weighting"):
        choosing.pop("recency", None)
    sampler = begun_at(first, seed=choosing.get("seed", 0), **kept)
    for log, groups in flushes:
        sampler.seal(*groups, log=log)
    turns: dict[Key, int] = {}
    for count in served:
        step = sampler.state.next_step
        batch = sampler.choose(NextBatch(step=step, num_groups=count))
        if isinstance(batch, ServedBatch):
            turns |= {Key(g.environment, e): step for g, e in named(sampler, batch)}
    for step in range(published):
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}"))
    published_ones = sampler.state.published.policies.keys()
    versions = tuple(v for v in choosing.pop("prefer_policy_versions", ()) if v in published_ones)
    wanted = replace(sampler.choosing, **choosing, alpha=alpha, prefer_policy_versions=versions)
    if asked.get("policy_version") not in published_ones:
        asked.pop("policy_version", None)
    request = Asked(step=sampler.state.next_step, **asked)
    found, _ = choose(sampler.state, wanted, request, 0)
    refs = None if found is None else [one.group.ref for one in found]
    assert refs == expected(sampler.state, turns, wanted, request)


def named(sampler: Decider, batch: ServedBatch) -> list[tuple[Any, str]]:
    return list(zip(batch.groups, sampler.examples(batch), strict=True))


@pytest.mark.proves("A14", "A22")
@given(
    flushes=FLUSHES,
    config=CHOOSING,
    kept=FILTER,
    limits=st.fixed_dictionaries({}, optional={"max_rollout_step_delay": st.integers(0, 6)}),
    count=st.integers(1, 8),
    batches=st.integers(1, 3),
)
@settings(max_examples=examples(150))
def test_what_is_looked_at_is_what_is_served_next_and_looking_changes_nothing(
    flushes: Any, config: Any, kept: Any, limits: Any, count: int, batches: int
) -> None:
    if config.get("reward_weighting"):
        config.pop("recency", None)
    if "order" in config:
        for other in ("recency", "reward_weighting", "on_policy_fraction"):
            config.pop(other, None)
    if "order" in config or "recent_n_versions" in config or config.get("on_policy_fraction") == 1:
        config.pop("prefer_policy_versions", None)
    if limits:
        config["max_policy_lag"] = max(7, config.get("max_policy_lag", 0))
    sampler = begun_at(6, **config, **kept, **limits)
    for log, groups in flushes:
        sampler.seal(*groups, log=log)
    for step in range(6, 6 + batches):
        before = sampler.state.digest()
        asked = Asked(num_groups=count, step=0)
        try:
            seen = sampler.do(SampleGroups(asked=asked, settings={}))
        except NotEnoughGroups:
            seen = None
        assert sampler.state.digest() == before
        batch = sampler.choose(NextBatch(step=step, num_groups=count))
        if isinstance(batch, NotEnoughGroups):
            assert seen is None
            return
        assert seen is not None
        assert [one.group_id for one in seen] == list(ids(batch))
        masks = [one.row_mask for one in batch.groups]
        assert [repr(one.row_mask) for one in seen] == [repr(mask) for mask in masks]


def test_an_offset_pages_through_the_examples_and_wraps_around() -> None:
    sampler = Decider()
    sampler.seal(*specs(6))
    first, second = look(sampler, 3), look(sampler, 3, start_offset=3)
    assert set(first).isdisjoint(second)
    assert look(sampler, 6) == first + second
    assert look(sampler, 3, start_offset=6 * 1_000 + 3) == second


def test_strict_leaves_out_what_several_policies_sampled() -> None:
    sampler = begun_at(2)
    sampler.seal(*specs(2), GroupSpec(example_id="mixed", weight_steps=(1, 2)))
    assert len(look(sampler, 3)) == 3
    with pytest.raises(NotEnoughGroups):
        look(sampler, 3, grouping="strict")


@pytest.mark.proves("A14")
def test_a_batch_has_its_share_of_the_newest_policy_or_waits_for_it() -> None:
    sampler = Decider(on_policy_fraction=0.5)
    sampler.seal(*specs(8, weight_step=0))
    sampler.do(PublishPolicy(step=0, policy_version="v0"))
    sampler.serve(0, 2)
    sampler.do(PublishPolicy(step=1, policy_version="v1"))
    error = sampler.choose(NextBatch(step=1, num_groups=4))
    assert isinstance(error, NotEnoughGroups)
    assert "2 of them by weights 1" in str(error)
    sampler.seal(*specs(2, weight_step=1))
    assert sorted(steps_of(sampler, ids(sampler.serve(1, 4)))) == [0, 0, 1, 1]


def test_where_nothing_is_published_the_newest_that_is_ready_counts() -> None:
    sampler = begun_at(5, on_policy_fraction=0.5)
    sampler.seal(*specs(8, weight_step=3), *specs(2, weight_step=5))
    assert sorted(steps_of(sampler, ids(sampler.serve(5, 4)))) == [3, 3, 5, 5]


@pytest.mark.proves("A15")
def test_preferred_versions_come_first_and_others_follow() -> None:
    sampler = begun_at(1, prefer_policy_versions=("v1",))
    sampler.do(PublishPolicy(step=1, policy_version="v1"))
    sampler.seal(*specs(6, weight_step=0), *specs(2, weight_step=1, policy_epoch=1))
    assert sorted(steps_of(sampler, ids(sampler.serve(1, 3)))) == [0, 1, 1]


@pytest.mark.proves("A15")
def test_of_the_newest_published_versions_groups_are_chosen_and_others_dropped() -> None:
    sampler = begun_at(6, recent_n_versions=2, max_policy_lag=-1)
    for step in (1, 4, 6):
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}"))
        sampler.seal(*specs(2, weight_step=step))
    sampler.seal(GroupSpec(weight_steps=(3, 6)), GroupSpec(weight_steps=(5, 6)))
    assert {*steps_of(sampler, look(sampler, 8, recent_n_versions=3))} == {1, 3, 4, 5, 6}
    assert sorted(steps_of(sampler, ids(sampler.serve(6, 5)))) == [4, 4, 5, 6, 6]
    assert sampler.state.outcomes.totals() == {"stale": 3}, "none holds capacity for ever"
    error = sampler.choose(NextBatch(step=7, num_groups=1))
    assert "recent_n_versions = 2" in str(error)


@pytest.mark.proves("A15")
def test_before_the_first_is_published_each_step_counts_as_a_version() -> None:
    sampler = begun_at(7, recent_n_versions=2)
    for step in (1, 5, 6, 7):
        sampler.seal(*specs(1, weight_step=step))
    assert sorted(steps_of(sampler, ids(sampler.serve(7, 2)))) == [6, 7]
    assert sampler.state.outcomes.totals() == {"stale": 2}


@pytest.mark.proves("B3")
def test_by_order_of_readiness_what_was_sealed_first_comes_first_whatever_its_example() -> None:
    sampler = begun_at(9, order="ready", max_policy_lag=-1)
    for example, step in (("a", 5), ("a", 2), ("b", 0), ("a", 7)):
        sampler.seal(GroupSpec(example_id=example, weight_step=step))
    assert [steps_of(sampler, ids(sampler.serve(9 + n, 1))) for n in range(4)] == [
        [5],
        [2],
        [0],
        [7],
    ]


@pytest.mark.proves("E4")
@pytest.mark.parametrize("recency", ["linear", "exp"])
def test_a_greater_alpha_prefers_newer_policies_more(recency: str) -> None:
    shares = []
    for alpha in (0.25, 1.0, 4.0):
        newest = 0
        for seed in range(200):
            sampler = begun_at(3, seed=seed, recency=recency, alpha=alpha)
            sampler.seal(*[GroupSpec(weight_step=step) for step in range(4)])
            newest += steps_of(sampler, ids(sampler.serve(3, 1))) == [3]
        shares.append(newest)
    assert shares == sorted(shares)
    assert shares[0] + 40 < shares[2]


@pytest.mark.proves("A15", "E4")
@pytest.mark.parametrize("recency", ["linear", "exp"])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_a_single_draw_follows_the_weights_among_the_groups_of_many_examples(
    recency: str, alpha: float
) -> None:
    steps, examples, draws = 4, 6, 1_500
    sampler = begun_at(steps, recency=recency, alpha=alpha)
    for step in range(steps):
        sampler.seal(
            *[GroupSpec(example_id=f"{step}-{i}", weight_step=step) for i in range(examples)],
            log=LOGS[step % 3],
        )
    drawn = Counter(look(sampler, 1, seed=seed)[0] for seed in range(draws))
    base = [n / steps if recency == "linear" else 2.0 ** (n - steps) for n in range(1, steps + 1)]
    weights = [one**alpha for one in base]
    known = {
        one.group.group_id: one for one in map(sampler.state.sealed, sampler.state.ready.refs())
    }
    wanted = {
        name: draws * weights[one.group.weight_step] / (examples * sum(weights))
        for name, one in known.items()
    }
    deviation = sum((drawn[name] - of) ** 2 / of for name, of in wanted.items())
    freedom = len(wanted) - 1
    assert deviation < freedom + 4 * (2 * freedom) ** 0.5, "of a chi-square distribution"


@pytest.mark.proves("A15", "E4")
def test_by_recency_a_batch_prefers_newer_policies_whatever_their_examples() -> None:
    """In a stream where each example has one group, as usual."""
    lags = {}
    for recency in ("uniform", "linear", "exp"):
        sampler = begun_at(8, recency=recency)
        for step in range(8):
            sampler.seal(*[GroupSpec(example_id=f"{step}-{i}", weight_step=step) for i in range(8)])
        lags[recency] = 8 - sum(steps_of(sampler, ids(sampler.serve(8, 16)))) / 16
    assert lags["uniform"] == 7.5
    assert lags["exp"] < lags["linear"] < 5.0


def test_what_is_drawn_is_a_function_of_what_is_ready_and_of_the_seed() -> None:
    seen = set()
    for order in ((0, 1, 2), (2, 0, 1)):
        sampler = begun_at(3, recency="exp")
        for log in order:
            sampler.seal(*specs(3, weight_step=log), log=LOGS[log])
        drawn = [look(sampler, 5, seed=seed) for seed in (1, 2)]
        assert drawn[0] != drawn[1]
        assert look(sampler, 9, seed=1)[:5] == drawn[0]
        assert look(sampler, 4, seed=1, start_offset=5) == look(sampler, 9, seed=1)[5:]
        assert look(sampler, 3, seed=1, mix={"code": 1.0}) != look(sampler, 3, seed=1)
        seen.add((drawn[0], drawn[1]))
    assert len(seen) == 1


@pytest.mark.proves("A18")
def test_what_earned_too_little_or_too_much_is_dropped_at_once_and_counted() -> None:
    sampler = Decider(min_mean_reward=0.25, max_mean_reward=0.75, capacity_groups=3)
    earned = ((0.0, 0.5), (0.5, 1.0), (0.0, 0.0), (1.0, 1.0))
    sampler.seal(*[GroupSpec(example_id=f"ex-{i}", rewards=of) for i, of in enumerate(earned)])
    sampler.evict()
    assert len(sampler.state.ready) == 2  # What was filtered holds no room for others.
    assert sampler.state.outcomes.totals() == {"filtered": 2}
    assert set(sampler.examples(sampler.serve(0, 2))) == {"ex-0", "ex-1"}
    error = sampler.choose(NextBatch(step=1, num_groups=1))
    assert isinstance(error, NotEnoughGroups)
    assert "min_mean_reward = 0.25 or max_mean_reward = 0.75" in str(error)


@pytest.mark.proves("A18")
def test_by_spread_examples_whose_rewards_differ_more_come_first_more_often() -> None:
    first = Counter[str]()
    for seed in range(300):
        sampler = Decider(seed=seed, reward_weighting="spread")
        sampler.seal(
            GroupSpec(example_id="equal", rewards=(1.0, 1.0)),
            GroupSpec(example_id="some", rewards=(0.0, 0.25)),
            GroupSpec(example_id="most", rewards=(0.0, 1.0)),
        )
        batch = sampler.serve(0, 2)
        assert "equal" not in sampler.examples(batch)
        first[sampler.examples(batch)[0]] += 1
        assert sampler.examples(sampler.serve(1, 1)) == ["equal"]  # It is served, if last.
    assert 210 < first["most"] < 270  # Four to one: 240.


@pytest.mark.proves("A18")
@pytest.mark.parametrize("extreme", [1e200, 1.7e308, -1.7e308])
def test_by_spread_an_extreme_reward_is_served_as_any_other(extreme: float) -> None:
    sampler = Decider(reward_weighting="spread", min_mean_reward=-1.0)
    sampler.seal(
        GroupSpec(example_id="usual", rewards=(0.0, 1.0)),
        GroupSpec(example_id="extreme", rewards=(extreme, 1.0)),
        GroupSpec(example_id="both", rewards=(extreme, -extreme)),
    )
    sampler.evict()
    found = sampler.examples(sampler.serve(0, len(sampler.state.ready)))
    assert {*found} == {"usual", "both"} | ({"extreme"} if extreme > 0 else set())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recency": "newest"}, 'recency = "newest": must be'),
        ({"on_policy_fraction": 1.5}, r"on_policy_fraction = 1\.5: must be"),
        ({"alpha": 2.0}, "alpha 2 has no effect with recency 'uniform'"),
        ({"prefer_policy_versions": ("v9",)}, r"\['v9'\], which publish_policy never named"),
        ({"recent_n_versions": 0}, "recent_n_versions = 0: must be"),
    ],
)
def test_an_unknown_choice_is_an_error_and_never_another_one(
    arguments: dict[str, Any], message: str
) -> None:
    sampler = Decider()
    sampler.seal(*specs(4))
    with pytest.raises(InvalidRequest, match=message):
        look(sampler, 2, **arguments)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"max_samples": 0}, "max_samples 0 would never serve a group"),
        ({"max_rollout_timestamp_delay": 0}, "would leave every rollout out"),
        ({"alpha": 2.0}, "alpha 2 has no effect with recency 'uniform'"),
        ({"alpha": 33.0, "recency": "linear"}, "alpha"),
        ({"prefer_policy_versions": ("a",), "recent_n_versions": 1}, "set one of them"),
        ({"prefer_policy_versions": ("a",), "on_policy_fraction": 1.0}, "lower it"),
        ({"on_policy_fraction": -0.1}, "on_policy_fraction"),
        ({"recency": "newest"}, "recency"),
        ({"order": "newest"}, "order"),
        ({"order": "ready", "recency": "exp"}, "recency 'exp' chooses in another order"),
        ({"order": "ready", "on_policy_fraction": 0.5}, "on_policy_fraction 0.5 chooses"),
        ({"order": "ready", "prefer_policy_versions": ("a",)}, "prefer_policy_versions .* chooses"),
        ({"order": "ready", "reward_weighting": "spread"}, "reward_weighting 'spread' chooses"),
        ({"target_policy_lag": 9}, "target_policy_lag 9 is above max_policy_lag 8"),
        ({"groups_per_step": 9, "capacity": 8}, "groups_per_step 9 is above the 8 groups"),
        ({"groups_per_step": 9, "capacity_groups": 8}, "groups_per_step 9 is above the 8 groups"),
        ({"groups_per_step": 9, "admission": False}, "groups_per_step 9 has no effect"),
        ({"admission_idle_s": 9, "admission": False}, "admission_idle_s 9 has no effect"),
        ({"recency": "exp", "max_policy_lag": -1}, "capacity = 192"),
        ({"reward_weighting": "spread", "max_policy_lag": -1}, "capacity = 192"),
        ({"reward_weighting": "spread", "recency": "exp"}, "set one of them"),
        ({"reward_weighting": "mean"}, "reward_weighting"),
        ({"min_mean_reward": 0.6, "max_mean_reward": 0.5}, "every group would be dropped"),
        ({"min_mean_reward": float("nan")}, "min_mean_reward"),
        ({"exclude_flags": ["a", "b"], "require_flags": ["b"]}, "both name 'b': every group"),
        ({"max_mean_reward": float("inf")}, "max_mean_reward"),
    ],
)
def test_settings_that_could_choose_nothing_are_refused_with_the_reason(
    section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplerConfig(environments=("math",), **section)
