"""The report's fold counts what the sampler's own state says became of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.groups import GroupSpec
from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.folds.saved_state import copied
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.trainer.commands import (
    Ack,
    Finish,
    MarkCheckpointed,
    PublishPolicy,
    Purge,
    Resume,
)
from rollstream.sampler.history.report_fold import ReportFold
from rollstream.sampler.history.report_rows import ReportCounters, ReportRow
from rollstream.sampler.history.uses import UseHistory
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

ROLLOUTS = 2  # Of each group.
FLUSHES = st.lists(
    st.tuples(
        st.sampled_from(LOGS),
        st.lists(
            st.builds(
                GroupSpec,
                example_id=st.sampled_from(["a", "b", "c"]),
                rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0), (None, None)]),
                weight_step=st.integers(0, 3),
                split=st.sampled_from(["train", "train", "train", "eval"]),
            ),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=8,
)
ACTIONS = st.lists(
    st.sampled_from(
        [
            *("next", "next", "next", "filter", "ack", "fail", "skip"),
            *("save", "replay", "release", "policy", "purge"),
        ]
    ),
    max_size=14,
)
LIMITS = st.sampled_from([{}, {"max_policy_lag": 1}, {"capacity": 4}])


def report_on(sampler: Decider) -> ReportCounters:
    """Reads its logs as the command does: of seal logs as much as each decision needs."""
    counters = ReportCounters()
    fold = ReportFold(counters)
    applied = dict.fromkeys(LOGS, 0)

    def apply_below(log: PartitionAddress, stop: int) -> None:
        for at, offset, event in sampler.sealed:
            if at == log and applied[log] <= offset < stop:
                fold.apply_groups(log, offset, event)
        applied[log] = max(applied[log], stop)

    for decision in sampler.events:
        for log, stop in fold.needed(decision).items():
            apply_below(log, stop)
        fold.apply(decision)
    fold.end_decisions()
    for log in LOGS:
        apply_below(log, len(sampler.sealed))
    fold.end()
    return counters


def perform(sampler: Decider, action: str) -> None:
    """What is refused as impossible is left out."""
    state, step = sampler.state, sampler.state.next_step
    newest = max(state.batches, default=None)
    if action in ("next", "filter"):
        accept: Any = "nonzero_std" if action == "filter" else None
        sampler.choose(NextBatch(step=step, num_groups=2, accept=accept))
    elif action == "policy":
        sampler.do(PublishPolicy(step=step, policy_version=f"v{step}-{state.policy_epoch}"))
    elif action == "purge":
        sampler.do(Purge())
    elif newest is None:
        return
    elif action == "save":
        sampler.do(MarkCheckpointed(step=newest))
    elif action in ("replay", "release"):
        sampler.do(Resume(checkpointed_step=max(0, newest - 1), later=action))  # type: ignore[arg-type]
    elif not (state.batches[newest].final or state.batches[newest].status):
        given: dict[str, Any] = {"fail": {"status": "failed"}, "skip": {"skipped": (1,)}}
        batch_id = state.batches[newest].batch_id
        sampler.do(Ack(step=newest, batch_id=batch_id, **given.get(action, {})))


def expected_of(sampler: Decider) -> ReportRow:
    """What the state says, in rollouts; of open batches as they are acked now."""
    state = sampler.state
    ended = dict(state.outcomes.totals())
    served = 0
    for batch in state.open_batches():
        for slot in range(len(batch.refs)):
            if batch.status is None:
                served += 1
            else:
                outcome = "skipped" if slot in batch.skipped else batch.status
                ended[outcome] = ended.get(outcome, 0) + 1
    sealed = [event for _, _, event in sampler.sealed if isinstance(event, Flushed)]
    evaluated = [group for event in sealed for group in event.groups if group.split == "eval"]
    return ReportRow(
        trained=ROLLOUTS * ended.pop("trained", 0),
        served=ROLLOUTS * served,
        waiting=ROLLOUTS * (len(state.ready) + len(state.waiting)),
        eval=ROLLOUTS * len(evaluated),
        dropped={reason: ROLLOUTS * count for reason, count in ended.items()},
    )


@pytest.mark.proves("F12")
@given(flushes=FLUSHES, actions=ACTIONS, limits=LIMITS)
@settings(max_examples=examples(150))
def test_any_history_is_counted_as_the_state_has_it(
    flushes: Sequence[Any], actions: list[str], limits: dict[str, Any]
) -> None:
    sampler = Decider(**{"max_policy_lag": -1, **limits})
    pending = list(flushes)
    for action in [*actions, *["seal"] * len(pending)]:
        if pending:
            log, specs = pending.pop(0)
            sampler.seal(*specs, log=log)
        if action != "seal":
            perform(sampler, action)
    assert report_on(sampler).totals() == expected_of(sampler)


def shape(sampler: Decider, carries: bool) -> None:
    """The next step with what the one before kept; where its ack did not say, with anything."""
    state = sampler.state
    before = state.batches.get(state.next_step - 1)
    carried: list[tuple[str, tuple[bool, ...]]] = []
    if before is not None and before.is_shaped and carries:
        told = None if before.outcomes is None else unpack_outcomes(before.outcomes)
        new = len(before.groups)
        for slot, chosen in enumerate(before.all_groups):
            mask = np.array([slot % 2 == 0, False])
            if told is not None:
                mask = told.get(slot, np.zeros(2)) == RowOutcome.KEPT
            elif slot >= new:
                mask = mask & before.carried[slot - new].wanted
            if mask.any():
                carried.append((chosen.group_id, tuple(mask.tolist())))
    asked = NextShapedBatch(
        step=state.next_step, settings="{}", num_groups=2, min_groups=0, carried=tuple(carried)
    )
    sampler.choose(asked)


def ack_shaped(sampler: Decider, codes: Sequence[int]) -> None:
    batch = sampler.state.batches[max(sampler.state.batches)]
    if not batch.is_shaped or batch.final or batch.status:
        return
    groups = range(len(batch.all_groups))
    outcomes = [bytes([codes[(2 * slot + row) % len(codes)] for row in (0, 1)]) for slot in groups]
    sampler.do(Ack(step=batch.event.step, batch_id=batch.batch_id, outcomes=tuple(outcomes)))


SHAPED = st.lists(
    st.tuples(
        st.sampled_from(
            ["shape", "tell"] * 4 + ["drop", "next", "ack", "save", "save", "replay", "release"]
        ),
        st.lists(st.integers(1, 4), min_size=1, max_size=5),
    ),
    max_size=14,
)


@pytest.mark.proves("F12")
@given(flushes=FLUSHES, actions=SHAPED, over=st.booleans())
@settings(max_examples=examples(60))
def test_any_history_of_shaped_batches_is_told_alike(
    flushes: Sequence[Any], actions: list[tuple[str, list[int]]], over: bool
) -> None:
    sampler = Decider(max_policy_lag=-1)
    for log, specs in flushes:
        sampler.seal(*specs, log=log)
    rewound = False
    for action, codes in actions:
        if action in ("shape", "drop"):
            shape(sampler, carries=action == "shape")
        elif action == "tell" and sampler.state.batches:
            ack_shaped(sampler, codes)
        elif action in ("replay", "release"):
            newest = max(sampler.state.batches, default=None)
            rewound |= newest is not None and max(0, newest - 1) < sampler.state.final_step
            perform(sampler, action)
        elif action != "tell":
            perform(sampler, action)
    state = sampler.state
    check_sums(sampler)
    if state.open_batches():
        sampler.do(MarkCheckpointed(step=max(state.batches)))
    if over:
        sampler.do(Finish())
    told = check_sums(sampler)
    assert by_decisions(sampler).digest() == state.digest()
    assert copied(state).digest() == state.digest()
    if not rewound:
        assert told == by_lineage(sampler)


def check_sums(sampler: Decider) -> Counter[str]:
    """Each rollout and each group counts once. Returns what the report says of rollouts."""
    state = sampler.state
    totals = report_on(sampler).totals()
    dropped = Counter(totals.dropped)
    told = +Counter({**dropped, "trained": totals.trained, "kept": totals.kept})
    told += Counter(unknown=totals.unknown, served=totals.served)
    every = [g for _, _, event in sampler.sealed for g in event.groups]  # type: ignore[union-attr]
    assert told.total() + totals.waiting + totals.eval == ROLLOUTS * len(every)
    groups = sum(state.outcomes.totals().values()) + len(list(state.left()))
    groups += sum(len(batch.groups) for batch in state.open_batches())
    groups += len(state.ready) + len(state.waiting)
    assert groups == sum(group.split == "train" for group in every)
    return told


def by_lineage(sampler: Decider) -> Counter[str]:
    """The newest state of each rollout that a batch had; acked ones of open batches as acked."""
    history = UseHistory(lambda _, __: True)
    for offset, event in enumerate(sampler.events):
        history.apply(offset, event)
    found: dict[tuple[GroupRef, int], str] = {}
    for use in history.uses:
        for row in (0, 1):
            of_row = use.of_rows([row])
            if of_row is not None and of_row.state != "released":
                found[use.group, row] = of_row.acked or of_row.state
    for group, drop in history.drops.items():
        for row in (0, 1):
            found.setdefault((group, row), drop.reason)
    return Counter(found.values())


def by_decisions(sampler: Decider) -> SamplerState:
    """The decisions are folded before the flushes that they are about."""
    state = sampler.fresh()
    for offset, event in enumerate(sampler.events):
        state.apply(offset, sampler.log_us, event)
    for one in sampler.sealed:
        state.apply_groups(*one)
    return state


def test_rollouts_that_were_left_out_of_their_group_are_counted_apart() -> None:
    sampler = Decider(max_rollout_step_delay=1, max_policy_lag=-1)
    sampler.do(Resume(checkpointed_step=2, later="release"))
    sampler.seal(GroupSpec(rewards=(0.0, 1.0, 0.5), weight_steps=(3, 0, 3)))
    batch = sampler.serve(3, 1)
    sampler.do(Ack(step=3, batch_id=batch.batch_id))
    counters = report_on(sampler)
    assert counters.totals() == ReportRow(trained=2, dropped={"left_out": 1})
    by_lag = counters.by_lag()
    assert by_lag[0, 0].trained == 2
    assert by_lag[2, 3].dropped == {"left_out": 1}


def test_a_group_whose_file_was_retired_does_not_wait() -> None:
    sampler = Decider()
    sampler.seal(GroupSpec(example_id="a"))
    sampler.seal(GroupSpec(example_id="b"))
    sampler.do(Resume(checkpointed_step=None, later="release"))
    served = sampler.serve(0, 1)
    (ref,) = served.refs
    sampler.retire(LOGS[1], 0, 1)
    report = report_on(sampler).totals()
    assert (report.served, report.waiting, dict(report.dropped)) == (2, 0, {"retired": 2})
    assert ref.log == LOGS[1]
