"""Status, which only reads logs, against the sampler that wrote them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.command import Command
from rollstream.sampler.decide.trainer.commands import (
    Ack,
    MarkCheckpointed,
    PublishPolicy,
    Resume,
)
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.events import BatchServed, Flushed
from rollstream.status.figures import SamplerFigures
from rollstream.status.sampling import SamplerReading
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.follow import ConfirmedEvent

Later = Literal["replay", "release"]
Action = tuple[str, int, Later, list[GroupSpec]]
SPECS = st.builds(
    GroupSpec,
    rewards=st.sampled_from([(0.0, 1.0), (1.0, 1.0), (None, 1.0)]),
    weight_step=st.sampled_from([-1, 1, 1, 2, 3]),
    policy_epoch=st.sampled_from([0, 9]),
    lineage=st.sampled_from(["", "", "", "other"]),
    split=st.sampled_from(["train", "train", "train", "eval"]),
)
ACTIONS = st.tuples(
    st.sampled_from(["seal", "next", "next", "ack", "save", "resume", "policy", "replace"]),
    st.integers(0, 3),
    st.sampled_from(["replay", "release"]),
    st.lists(SPECS, min_size=1, max_size=4),
)


def command(sampler: Decider, action: str, back: int, later: Later) -> Command[Any]:
    """The action, ``back`` steps before the next one."""
    state = sampler.state
    step = max(0, state.next_step - 1 - back)
    batch = state.batches.get(step)
    match action:
        case "ack":
            return Ack(step=step, batch_id=batch.event.batch_id if batch else "none")
        case "save":
            return MarkCheckpointed(step=step)
        case "resume":
            return Resume(checkpointed_step=step if back else None, later=later)
        case "policy":
            return PublishPolicy(step=step, policy_version=f"v{step}-{state.policy_epoch}")
        case "replace":
            digest = batch.digest if batch else b""
            return Replace(step=step, digest=digest, slots=(0,), reason="test")
        case _:
            return NextBatch(step=state.next_step, num_groups=1)


@pytest.mark.proves("F17")
@given(actions=st.lists(ACTIONS, max_size=30), unread=st.integers(0, 3))
@settings(max_examples=150)
def test_status_and_sampler_agree_whatever_was_decided(actions: list[Action], unread: int) -> None:
    sampler = Decider(max_policy_lag=2, max_open_batches=4)
    sampler.seal(*[GroupSpec(weight_step=1)] * 8)
    for action, back, later, specs in actions:
        if action == "seal":
            sampler.seal(*specs, log=LOGS[back % len(LOGS)])
            continue
        try:
            sampler.decide(command(sampler, action, back, later))
        except SamplerError:
            continue  # Refused, so nothing was decided.
    state = sampler.state
    waiting = Counter(state.waiting.values())
    policy = state.newest_policy()
    for start in (0, unread):
        figures = status_of(sampler, start)
        assert figures.open_batches == len(state.open_batches())
        assert figures.next_step == state.next_step
        assert figures.policy_epoch == state.policy_epoch
        assert figures.policy_step == (-1 if policy is None else policy.step)
        assert figures.batches == sum(isinstance(e, BatchServed) for e in sampler.events)
        not_taken = figures.ready + sum(figures.waiting.values()) + figures.older
        older_ones = not_taken - len(state.ready) - waiting.total()  # Evaluations.
        assert 0 <= older_ones <= min(figures.older, state.evaluated.groups)
        if start == 0:
            assert figures.ready == len(state.ready)
            assert figures.waiting == waiting
            assert figures.older == 0


def status_of(sampler: Decider, start: int) -> SamplerFigures:
    """What status finds, where it reads each seal log from ``start`` on."""
    reading = SamplerReading("trainer-a", sampler.choosing, dict.fromkeys(LOGS, start))
    for offset, event in enumerate(sampler.events):
        reading.apply_decision(ConfirmedEvent(TopicPartition("sampler", 0), offset, 0, event))
    for log in LOGS:
        flushes = [(offset, flush) for at, offset, flush in sampler.sealed if at == log]
        for offset, flush in flushes:
            if offset >= start:
                where = TopicPartition(f"groups.{log.environment}", log.partition)
                reading.apply_groups(log, ConfirmedEvent(where, offset, 0, flush))
        sealed = [flush for _, flush in flushes if isinstance(flush, Flushed)]
        reading.end_log(log, sum(len(flush.groups) for flush in sealed))
    return reading.figures(0)
