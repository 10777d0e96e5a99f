"""Status, which only reads logs, against the sampler that wrote them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.faults import FaultyBroker
from harness.groups import GroupSpec
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.command import Command
from rollstream.sampler.decide.trainer.commands import (
    Ack,
    MarkCheckpointed,
    PublishPolicy,
    Resume,
)
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.codec import encode
from rollstream.schemas.events import BatchServed, Claimed, Event, Flushed
from rollstream.status import decided as decisions
from rollstream.status.decided import DecisionLog
from rollstream.status.figures import SamplerFigures
from rollstream.status.sampling import SamplerReading
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.memory import MemoryBroker
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


def decided(actions: list[Action]) -> Decider:
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
    return sampler


@pytest.mark.proves("F17")
@given(actions=st.lists(ACTIONS, max_size=30), unread=st.integers(0, 3))
@settings(max_examples=examples(150))
def test_status_and_sampler_agree_whatever_was_decided(actions: list[Action], unread: int) -> None:
    sampler = decided(actions)
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
        reading.decided.apply(offset, 0, event)
    return figures_of(reading, sampler, start)


def figures_of(reading: SamplerReading, sampler: Decider, start: int) -> SamplerFigures:
    for log in LOGS:
        flushes = [(offset, flush) for at, offset, flush in sampler.sealed if at == log]
        for offset, flush in flushes:
            if offset >= start:
                where = TopicPartition(f"groups.{log.environment}", log.partition)
                reading.apply_groups(log, ConfirmedEvent(where, offset, 0, flush))
        sealed = [flush for _, flush in flushes if isinstance(flush, Flushed)]
        reading.end_log(log, sum(len(flush.groups) for flush in sealed))
    return reading.figures(0)


class KeptHint:
    """A hint in memory."""

    def __init__(self) -> None:
        self.data = b""

    def read(self) -> bytes:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data


class DecisionLogs:
    """Decision logs in a broker, each with the events of a decider under one claim."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.broker = FaultyBroker(MemoryBroker(clock=clock))
        self.broker.admin().create([TopicSpec("decisions", 3, {})], 1.0)
        self.deadline = Deadline(10.0, clock)
        self._writer = self.broker.writer()

    def write(self, number: int, *events: Event) -> None:
        for event in events:
            self._writer.append("decisions", encode(event), partition=number)
        assert self._writer.flush(1.0) == 0

    def reading(
        self, number: int, sampler: Decider, start: int, hint: KeptHint | None
    ) -> SamplerReading:
        """As status has it once it has read the log to its end."""
        reading = SamplerReading("trainer-a", sampler.choosing, dict.fromkeys(LOGS, start))
        where = TopicPartition("decisions", number)
        with closing(DecisionLog(self.broker, where, reading.decided, hint, "root")) as log:
            log.read(self.deadline)
        reading.end_decisions(where, None)
        return reading

    def records_read(self, number: int, sampler: Decider, start: int, hint: KeptHint) -> int:
        before = self.broker.records_read
        self.reading(number, sampler, start, hint)
        return self.broker.records_read - before


def owned(sampler: Decider, nonce: str = "n") -> list[Event]:
    """Its events, under a claim."""
    claim = Claimed(nonce=nonce, owner="trainer")
    return [claim, *(replace(cast(Any, event), epoch=0, nonce=nonce) for event in sampler.events)]


@pytest.mark.proves("F17")
@given(
    actions=st.lists(ACTIONS, min_size=5, max_size=40),
    known=st.integers(0, 3),
    later=st.integers(0, 3),
    cut=st.integers(1, 30),
)
@settings(max_examples=examples(50), deadline=None)
def test_status_from_a_hint_on_is_status_from_the_beginning(
    actions: list[Action], known: int, later: int, cut: int
) -> None:
    sampler, logs, hint = decided(actions), DecisionLogs(), KeptHint()
    events, start = owned(sampler), known + later
    logs.write(0, *events[:cut])
    with patch.object(decisions, "HINT_EVENTS", 2):
        logs.reading(0, sampler, known, hint)
        logs.write(0, *events[cut:])
        found = logs.reading(0, sampler, start, hint)
    whole = logs.reading(0, sampler, start, None)
    assert figures_of(found, sampler, start) == figures_of(whole, sampler, start)
    assert found.decided.state.digest() == whole.decided.state.digest()


def test_no_hint_is_trusted_that_the_log_does_not_prove() -> None:
    sampler, logs, hint = (
        Decider(max_open_batches=100, max_policy_lag=100),
        DecisionLogs(),
        KeptHint(),
    )
    sampler.seal(*[GroupSpec(weight_step=0)] * 40)
    for step in range(40):
        sampler.serve(step, num_groups=1)
    events = owned(sampler)
    logs.write(0, *events)
    logs.write(1, *events[:20], *events[21:], events[20])
    logs.write(2, *owned(sampler, "another"))
    with patch.object(decisions, "HINT_EVENTS", 20):
        assert logs.records_read(0, sampler, 1, hint) == len(events)
        data = hint.data
        assert data
        assert logs.records_read(0, sampler, 1, hint) < len(events) / 2
        for number in (1, 2):
            assert logs.records_read(number, sampler, 1, KeptHint()) <= len(events)
            hint.data = data
            whole = logs.reading(number, sampler, 1, None)
            found = logs.reading(number, sampler, 1, hint)
            assert found.figures(0) == whole.figures(0)
        for damaged in (data[:-1], data[:100] + b"x" + data[101:], b"\n\n", b"{}\n{}\n"):
            hint.data = damaged
            assert logs.records_read(0, sampler, 1, hint) == len(events)
        hint.data = data
        assert logs.records_read(0, sampler, 0, hint) >= len(events), "its groups are read anew"
