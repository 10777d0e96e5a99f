"""The report's fold counts what the sampler's own state says became of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.sampler.deciding.batches import NextBatch
from rollstream.sampler.deciding.trainer import (
    Ack,
    MarkCheckpointed,
    PublishPolicy,
    Purge,
    Resume,
)
from rollstream.sampler.history.report_fold import ReportFold
from rollstream.sampler.history.report_rows import ReportCounters, ReportRow
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress

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
@settings(max_examples=150)
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
