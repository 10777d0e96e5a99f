"""The sample-to-insert ratio: what counts, who waits, and that never both sides do."""

from __future__ import annotations

import contextlib
from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.decider import Decider
from harness.examples import examples
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.admission.capacity import Loads
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.decide.ratio import inserts
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Purge, Resume
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.events import BatchServed, Dropped, ProducerInFlight, Replaced, Resumed
from rollstream.streams.folds.refs import GroupRef, ref_of

pytestmark = pytest.mark.proves("F5")
UNFIT = {"filtered", "unscored", "off_branch", "ahead", "no_weight_step", "unreadable"}


class World(Decider):
    """A decider with one environment, whose ready groups are all different examples."""

    def __init__(self, **config: Any) -> None:
        self.config = SamplerConfig(environments=("math",), **config)
        super().__init__(environments=("math",), **config)
        self.loads = Loads(self.config)
        self.made = 0

    def ready(self, count: int, **spec: Any) -> None:
        if not count:
            return
        policy = {"weight_step": self.state.next_step, "policy_epoch": self.state.policy_epoch}
        spec = {**policy, **spec}
        self.seal(*(GroupSpec(example_id=f"ex-{self.made + i}", **spec) for i in range(count)))
        self.made += count

    def ask(self, groups: int) -> ServedBatch | NotEnoughGroups:
        return self.choose(NextBatch(step=self.state.next_step, num_groups=groups))

    def ack(self) -> None:
        step = self.state.next_step - 1
        self.do(Ack(step=step, batch_id=self.state.batches[step].batch_id))

    def train(self, groups: int) -> None:
        """A batch is served and acked."""
        assert isinstance(self.ask(groups), ServedBatch)
        self.ack()

    def open(self, waiting: int = 0) -> int:
        """Groups that may be begun, while a batch of so many is waited for."""
        request = NextBatch(step=self.state.next_step, num_groups=waiting or 1)
        shortage = request.shortage(self.state) if waiting else None
        quotas = [] if shortage is None else [shortage.quotas]
        return self.loads.now(self.state, self.reported, self.now_us, quotas)["math"].open

    def error(self) -> float:
        """samples_per_insert × inserts − uses."""
        spi = self.config.samples_per_insert
        assert spi is not None
        return spi * inserts(self.state) - self.state.uses.lately


def reused(**config: Any) -> World:
    return World(**{"max_samples": -1, "samples_per_insert": 2, "error_buffer": (0, 16), **config})


def test_a_batch_waits_while_groups_were_used_as_often_as_they_may_be() -> None:
    world = reused()
    world.ready(4)
    world.train(4)
    world.train(4)
    short = world.ask(4)
    assert isinstance(short, NotEnoughGroups)
    assert (short.ready, short.wanted) == ({"math": 4}, 4)
    for figure in (
        "samples_per_insert = 2 holds the batch back",
        "4 groups were ready in this trainer epoch and used 8 times",
        "2 × 4 − 8 − 4 = -4, and error_buffer allows 0",
        "waits for 2 more",
    ):
        assert figure in str(short)
    world.ready(1)
    assert isinstance(world.ask(4), NotEnoughGroups)
    world.ready(1)
    assert isinstance(world.ask(4), ServedBatch)


def test_what_a_batch_waits_for_may_be_begun_whatever_uses_are_left() -> None:
    world = reused(groups_per_step=4, target_policy_lag=0, error_buffer=(8, 40))
    world.ready(4)
    assert isinstance(world.ask(4), NotEnoughGroups)
    assert world.open() == 0
    assert world.open(waiting=4) == 2
    world.report(ProducerInFlight("a", 1, 1, 0, 0))
    assert world.open(waiting=4) == 1
    assert world.open(waiting=16) == 11  # That many more groups the batch needs.


def test_what_is_not_there_is_no_fault_of_the_ratio() -> None:
    world = reused()
    world.ready(3)
    world.train(3)
    world.train(3)
    assert "holds the batch back" in str(world.ask(3))
    assert "holds the batch back" not in str(world.ask(4))
    assert world.open(waiting=4) >= 2


def test_workers_wait_while_more_is_ready_than_is_used() -> None:
    world = reused(groups_per_step=4, target_policy_lag=8)
    assert world.open() == 8  # 16 uses; by the lag alone 18 groups.
    world.report(ProducerInFlight("a", 3, 3, 0, 0))
    assert world.open() == 5
    world.ready(8)
    assert world.open() == 0
    world.train(4)
    world.train(4)
    world.report(ProducerInFlight("a", 3, 0, 0, 0))
    assert world.open() == 4


def test_workers_are_as_far_ahead_as_the_target_in_uses_that_groups_are_to_have() -> None:
    world = reused(groups_per_step=4, max_samples=8, target_policy_lag=1, error_buffer=(0, 40))
    assert world.open() == 4  # Two steps of 4, with groups that are to be used twice.
    world.ready(4)
    assert world.open() == 0
    world.train(4)  # Of six uses that are left of each, it is to have one.
    assert world.open() == 4


def test_groups_that_ended_before_they_were_used_often_hold_no_worker() -> None:
    world = reused(groups_per_step=4, max_samples=2)
    world.ready(8)
    world.train(4)
    world.do(Purge())
    assert world.error() == 12
    assert world.open() >= 4


def test_a_new_trainer_is_not_held_by_what_another_one_used() -> None:
    world = reused()
    world.ready(4)
    world.train(4)
    world.train(4)
    assert isinstance(world.ask(4), NotEnoughGroups)
    world.do(Resume(checkpointed_step=1))
    stats = world.do(AskStats())
    assert (stats.inserts, stats.uses) == (4, 0)
    world.train(4)
    world.train(4)
    assert world.do(AskStats()).uses == 8
    assert isinstance(world.ask(4), NotEnoughGroups)


def test_batches_that_are_replayed_are_no_uses_of_the_new_trainer() -> None:
    world = reused()
    world.ready(4)
    world.train(4)
    world.train(4)
    world.do(Resume(checkpointed_step=None))
    assert inserts(world.state) == 0  # All are in batches that are to be trained on again.
    for step in (0, 1):
        batch = world.choose(NextBatch(step=step, num_groups=4))
        assert isinstance(batch, ServedBatch)
        world.do(Ack(step=step, batch_id=batch.batch_id))
    assert (inserts(world.state), world.state.uses.lately) == (4, 0)


def test_the_groups_that_replace_others_are_used_in_their_place() -> None:
    world = reused()
    world.ready(8)
    batch = world.ask(4)
    assert isinstance(batch, ServedBatch)
    world.choose(Replace(step=0, digest=batch.digest, slots=(0, 1), reason="all equal"))
    assert (inserts(world.state), world.state.uses.lately) == (6, 4)


def test_what_is_filtered_as_a_batch_is_made_is_no_insert() -> None:
    world = reused()
    world.ready(4)
    world.ready(4, rewards=(1.0, 1.0))
    filtered = NextBatch(step=0, num_groups=4, accept="nonzero_std")
    assert isinstance(world.choose(filtered), ServedBatch)
    assert inserts(world.state) == 4
    world = reused(samples_per_insert=1)
    world.ready(3)
    world.ready(4, rewards=(1.0, 1.0))
    world.train(3)
    filtered = NextBatch(step=1, num_groups=3, accept="nonzero_std")
    assert isinstance(world.choose(filtered), NotEnoughGroups)


# A slow model.

operations = st.lists(
    st.one_of(
        st.tuples(st.just("seal"), st.integers(1, 5)),
        st.tuples(st.just("equal"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["next", "filter"]), st.integers(1, 4)),
        st.tuples(
            st.sampled_from(["ack", "skip", "save", "replay", "release", "replace", "purge"]),
            st.just(0),
        ),
    ),
    min_size=4,
    max_size=30,
)


class Recount:
    """What was ready and used in the newest trainer epoch, by all events from the beginning."""

    def __init__(self) -> None:
        self.was_ready: set[GroupRef] = set()
        self.uses: list[GroupRef] = []
        self.chosen: dict[tuple[int, int], GroupRef] = {}  # By step and slot.

    def after(self, world: World, events: int) -> None:
        for event in world.events[events:]:
            match event:
                case Resumed():
                    self.was_ready, self.uses, self.chosen = set(), [], {}
                case BatchServed():
                    for slot, group in enumerate(event.groups):
                        self._use(event.step, slot, ref_of(group))
                case Replaced():
                    for slot, group in zip(event.slots.tolist(), event.groups, strict=True):
                        if (before := self.chosen.get((event.step, slot))) is not None:
                            self.uses.remove(before)
                            self._unfit(before)
                        self._use(event.step, slot, ref_of(group))
                case Dropped():
                    for one in event.groups:
                        if event.reason in UNFIT:
                            self._unfit(ref_of(one))
        self.was_ready |= {*world.state.ready.refs(), *self.uses}

    def _use(self, step: int, slot: int, ref: GroupRef) -> None:
        self.chosen[step, slot] = ref
        self.uses.append(ref)

    def _unfit(self, ref: GroupRef) -> None:
        if ref not in self.uses:
            self.was_ready.discard(ref)


@example(
    operations=[
        *[("seal", 1)] * 3,
        *[("next", 1)] * 3,
        *[("replay", 0), ("seal", 1), ("release", 0), ("next", 1)],  # One is ahead by then.
    ],
    max_samples=2,
)
@given(operations=operations, max_samples=st.sampled_from([2, 3, -1]))
@settings(max_examples=examples(100), deadline=None)
def test_inserts_and_uses_are_what_a_recount_of_the_log_finds(
    operations: list[tuple[str, int]], max_samples: int
) -> None:
    world = reused(max_samples=max_samples, capacity=8, error_buffer=(-4, 12))
    recount = Recount()
    for kind, count in operations:
        before = len(world.events)
        held = perform(world, kind, count)
        if kind in ("next", "filter") and held is not None:
            served = isinstance(held, ServedBatch)
            assert not served or world.error() >= -4
            if not served and kind == "next" and len(world.state.ready) >= count:
                assert world.error() - count < -4
        recount.after(world, before)
        assert inserts(world.state) == len(recount.was_ready)
        assert world.state.uses.lately == len(recount.uses)
        for most in (1, 2, 5):
            assert world.state.unacked(most) == unacked(world.state, most)
    again = world.fresh()
    for offset, event in enumerate(world.events):
        again.apply(offset, 0, event)
    for log, offset, flush in world.sealed:
        again.apply_groups(log, offset, flush)
    assert again.digest() == world.state.digest()
    assert inserts(again) == inserts(world.state)


def unacked(state: SamplerState, most: int) -> tuple[Counter[str], Counter[str]]:
    """The slow way: of all groups of the batches."""
    refs = {ref for one in state.open_batches() if one.status is None for ref in one.refs}
    each = map(state.uses.of, refs)
    left = sum(max(0, most - one.used) for one in each if not (one.ended or one.dropped))
    return Counter(ref.environment for ref in refs), Counter({"math": left})


def perform(world: World, kind: str, count: int) -> ServedBatch | NotEnoughGroups | None:
    state = world.state
    newest = max(state.batches, default=None)
    if kind in ("seal", "equal"):
        world.ready(count, rewards=(1.0, 1.0) if kind == "equal" else (0.0, 1.0))
        world.evict()
    elif kind in ("next", "filter"):
        accept = "nonzero_std" if kind == "filter" else None
        request = NextBatch(step=state.next_step, num_groups=count, accept=accept)  # type: ignore[arg-type]
        return world.choose(request)
    elif kind == "purge":
        world.do(Purge())
    elif newest is None:
        return None
    elif kind == "ack":
        for step, batch in list(state.batches.items()):
            world.do(Ack(step=step, batch_id=batch.batch_id, skipped=batch.skipped))
    elif kind == "skip":
        for step, batch in list(state.batches.items()):
            if batch.status is None and not batch.final and len(batch.groups) > 1:
                world.do(Ack(step=step, batch_id=batch.batch_id, skipped=(0,)))
    elif kind == "save":
        world.do(MarkCheckpointed(step=newest))
    elif kind in ("replay", "release"):
        world.do(Resume(checkpointed_step=max(0, newest - 1), later=kind))  # type: ignore[arg-type]
    elif not (state.batches[newest].final or state.batches[newest].status):
        digest = state.batches[newest].digest
        world.choose(Replace(step=newest, digest=digest, slots=(0,), reason=f"r{count}"))
    return None


# Both sides.


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Those that a constructor takes."""
    groups = draw(st.integers(1, 6))
    least = draw(st.integers(-20, 40))
    config: dict[str, Any] = {
        "groups_per_step": groups,
        "samples_per_insert": draw(st.sampled_from([1.0, 1.3, 2.0, 4.0])),
        "max_samples": draw(st.sampled_from([1, 2, 4, 7, -1])),
        "error_buffer": (least, least + draw(st.integers(0, 40))),
        "capacity": draw(st.none() | st.integers(6, 30)),
        "target_policy_lag": draw(st.integers(0, 2)),
    }
    with contextlib.suppress(ValidationError):
        return SamplerConfig(environments=("math",), **config).model_dump(include={*config})
    assume(False)
    raise AssertionError


@given(config=configurations(), dice=st.randoms(use_true_random=False))
@settings(max_examples=examples(100), deadline=None)
def test_with_both_sides_willing_one_can_always_move(config: dict[str, Any], dice: Any) -> None:
    world = World(**config)
    groups, spi = config["groups_per_step"], config["samples_per_insert"]
    least, most = config["error_buffer"]
    served = stuck = 0
    while served < 12:
        # Some batches are smaller: never larger than what the configuration says.
        wanted = dice.randint(1, groups)
        begun = dice.randint(0, world.open())
        world.ready(begun)
        assert not begun or config["max_samples"] > 0 or world.error() <= most
        if isinstance(world.ask(wanted), ServedBatch):
            assert world.error() >= least
            world.ack()
            served, stuck = served + 1, 0
            if dice.random() < 0.1:
                world.do(Purge())
            if dice.random() < 0.05:
                world.do(Resume(checkpointed_step=world.state.next_step - 1))
        else:
            lacking = world.open(waiting=wanted)
            assert lacking > 0, "the batch waits, and nobody may begin what it waits for"
            world.ready(min(lacking, dice.randint(1, groups)))
            stuck += 1
        assert stuck <= ceil((abs(least) + abs(most)) / spi) + 4 * groups
        world.evict()


# What is refused.

BUFFER = {"error_buffer": (0, 512)}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"samples_per_insert": 2}, r"samples_per_insert = 2 and error_buffer = \[0, 512\]"),
        (BUFFER, "need one another"),
        ({"samples_per_insert": 0.5, **BUFFER}, "samples_per_insert"),
        (
            {"samples_per_insert": 2, **BUFFER},
            "samples_per_insert 2 is above max_samples 1.*max_samples to 2 or more",
        ),
        (
            {"samples_per_insert": 2, "max_samples": 2, "admission": False, **BUFFER},
            "set admission to true",
        ),
        (
            {"samples_per_insert": 2, "max_samples": 4, "error_buffer": (512, 0)},
            r"error_buffer \[512, 0\] .* its first number has to be below its second",
        ),
        (
            {"samples_per_insert": 2, "max_samples": 4, "error_buffer": (25, 90), "capacity": 12},
            "begins above what may be ready.* 13, .* keep 12; lower its first number to 23",
        ),
        (
            {
                "samples_per_insert": 2,
                "max_samples": 4,
                "error_buffer": (0, 100),
                "groups_per_step": 64,
            },
            "ends below what one batch needs.* to 128 or more",
        ),
        (
            {
                "samples_per_insert": 2,
                "max_samples": 4,
                "error_buffer": (80, 140),
                "groups_per_step": 64,
            },
            "smaller than one batch needs.* to 146 or more",
        ),
        ({"samples_per_insert": float("nan"), **BUFFER}, "finite"),
        ({"samples_per_insert": 1, "error_buffer": (float("-inf"), 9)}, "finite"),
    ],
)
def test_what_could_hold_both_sides_back_is_refused_with_the_remedy(
    section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplerConfig(environments=("math",), **section)
