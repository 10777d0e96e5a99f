"""Properties of the decider: interleaving, arrival, and what is never served."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.groups import GroupSpec
from rollstream.folds.group.eligible import Accept
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.trainer.commands import (
    Ack,
    MarkCheckpointed,
    PublishPolicy,
    Purge,
    Resume,
    SetCurrentStep,
)
from rollstream.sampler.errors import TooManyOpenBatches
from rollstream.schemas.events import Flushed, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import ref_of


@st.composite
def seal_logs(draw: st.DrawFn) -> list[tuple[PartitionAddress, list[GroupSpec]]]:
    """Flushes for the three logs, in some order of arrival."""
    spec = st.builds(
        GroupSpec,
        example_id=st.sampled_from(["a", "b", "c", "d"]),
        rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0), (None, 1.0)]),
        weight_step=st.integers(0, 3),
        weight_steps=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)),
        split=st.sampled_from(["train", "train", "train", "eval"]),
    )
    flush = st.tuples(st.sampled_from(LOGS), st.lists(spec, min_size=1, max_size=4))
    return draw(st.lists(flush, min_size=1, max_size=8))


steps = st.lists(
    st.sampled_from(
        [
            "next",
            "filter",
            "ack",
            "save",
            "replay",
            "release",
            "policy",
            "replace",
            "retire",
            "purge",
            "clock",
        ]
    ),
    max_size=14,
)

USES = st.fixed_dictionaries(
    {"max_samples": st.sampled_from([1, 2, -1])},
    optional={"max_rollout_step_delay": st.integers(0, 1), "capacity": st.integers(4, 8)},
)
"""Settings by which groups are served again, or without some of their rollouts."""


def drive(sampler: Decider, flushes: Sequence[Any], actions: Sequence[str]) -> None:
    """Seals and commands in turn; what is refused as impossible is left out."""
    pending = list(flushes)
    for action in [*actions, *["seal"] * len(pending)]:
        if pending:
            log, group_specs = pending.pop(0)
            sampler.seal(*group_specs, log=log)
        perform(sampler, action)


def perform(sampler: Decider, action: str) -> None:
    state = sampler.state
    step = state.next_step
    newest = max(state.batches, default=None)
    if action == "retire":
        retire_oldest(sampler)
        return
    if action == "purge":
        sampler.do(Purge())
        return
    if action == "clock":
        sampler.do(SetCurrentStep(step=max(step, state.current_step or 0)))
        return
    if action in ("next", "filter"):
        accept: Accept | None = "nonzero_std" if action == "filter" else None
        sampler.choose(NextBatch(step=step, num_groups=2, accept=accept))
    elif action == "policy":
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}-{state.policy_epoch}"))
    elif newest is None:
        return
    elif action == "ack":
        sampler.do(Ack(step=newest, batch_id=state.batches[newest].batch_id))
    elif action == "save":
        sampler.do(MarkCheckpointed(step=newest))
    elif action == "replay" and any(
        state.is_retired(ref_of(chosen)) for chosen in state.batches[newest].groups
    ):
        return  # It would be refused.
    elif action in ("replay", "release"):
        sampler.do(Resume(checkpointed_step=max(0, newest - 1), later=action))  # type: ignore[arg-type]
    elif action == "replace" and not (state.batches[newest].final or state.batches[newest].status):
        digest = state.batches[newest].digest
        sampler.choose(Replace(step=newest, digest=digest, slots=(0,), reason="test"))


def retire_oldest(sampler: Decider) -> None:
    """The files of the oldest flush that has any that is not retired; an idle sampler is told."""
    flushes = sorted((log, at) for log, at, event in sampler.sealed if isinstance(event, Flushed))
    retired = {
        (log, file.offset)
        for log, _, event in sampler.sealed
        if isinstance(event, Retired)
        for file in event.files
    }
    for log, at in flushes:
        if (log, at) not in retired:
            sampler.retire(log, at)
            sampler.evict()
            return


@pytest.mark.proves("I5")
@given(flushes=seal_logs(), actions=steps, seed=st.integers(0, 2**16), uses=USES)
@settings(max_examples=examples(120))
def test_any_interleaving_of_the_logs_folds_to_the_same_state(
    flushes: Any, actions: list[str], seed: int, uses: Any
) -> None:
    sampler = Decider(max_policy_lag=2, capacity_groups=12, max_open_batches=4, **uses)
    with contextlib.suppress(TooManyOpenBatches):
        drive(sampler, flushes, actions)
    other = sampler.fresh()
    by_log: dict[Any, list[Any]] = {log: [] for log in LOGS}
    for log, offset, flush in sampler.sealed:
        by_log[log].append(lambda s=other, a=(log, offset, flush): s.apply_groups(*a))
    by_log["decisions"] = [
        lambda s=other, o=o, e=e: s.apply(o, 0, e) for o, e in enumerate(sampler.events)
    ]
    shuffle = random.Random(seed)
    while any(by_log.values()):
        shuffle.choice([steps for steps in by_log.values() if steps]).pop(0)()
    assert other.digest() == sampler.state.digest()


@pytest.mark.proves("I7", "F16")
@given(flushes=seal_logs(), actions=steps, uses=USES)
@settings(max_examples=examples(120))
def test_no_group_is_in_more_batches_than_allowed_and_none_that_must_not_be_served(
    flushes: Any, actions: list[str], uses: Any
) -> None:
    sampler = Decider(capacity_groups=12, **uses)
    drive(sampler, flushes, actions)
    batches = sampler.state.batches.values()
    seen = Counter(ref_of(g) for b in batches for g in b.groups)
    limit = uses["max_samples"]
    assert limit < 0 or not [ref for ref, count in seen.items() if count > limit]
    for batch in batches:
        assert len({ref_of(g) for g in batch.groups}) == len(batch.groups)
    unacked = {ref_of(g) for b in batches if b.status is None and not b.final for g in b.groups}
    assert not {ref for ref in unacked if ref in sampler.state.ready}
    used_up = {ref for ref, count in seen.items() if count == limit}
    assert not {ref for ref in used_up if ref in sampler.state.ready}
    for ref in seen:
        assert sampler.sealed_group(ref).split == "train"
        assert not (ref in unacked and sampler.state.is_done(ref))
    for batch in batches:
        assert all(sampler.state.group(chosen) is not None for chosen in batch.groups)


@given(flushes=seal_logs(), actions=steps, order=st.randoms())
@settings(max_examples=examples(60))
def test_arrival_between_logs_changes_no_choice(
    flushes: Any, actions: list[str], order: random.Random
) -> None:
    """Two samplers see the same flushes of each log, in another order between the logs."""
    one, two = Decider(), Decider()
    by_log = {log: [specs for at, specs in flushes if at == log] for log in LOGS}
    arrivals = [at for at, _ in flushes]
    for at, group_specs in flushes:
        one.seal(*group_specs, log=at)
    order.shuffle(arrivals)
    for at in arrivals:
        two.seal(*by_log[at].pop(0), log=at)
    for action in actions:
        perform(one, action)
        perform(two, action)
    assert repr(one.events) == repr(two.events)
