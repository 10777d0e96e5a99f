"""Status, which only reads logs, against the sampler that wrote them."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.sampler.deciding.commands import (
    Ack,
    Command,
    MarkCheckpointed,
    NextBatch,
    PublishPolicy,
    Replace,
    Resume,
)
from rollstream.sampler.errors import SamplerError
from rollstream.streams.status.groups import SamplerSources, SealLog, sealed_groups, standing
from rollstream.streams.status.progress import SamplerProgress

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


def command(sampler: Decider, action: str, back: int, later: Later) -> Command:
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
@given(actions=st.lists(ACTIONS, max_size=30))
@settings(max_examples=150)
def test_status_and_sampler_agree_whatever_was_decided(actions: list[Action]) -> None:
    sampler = Decider(max_policy_lag=2, max_open_batches=4)
    sampler.seal(*[GroupSpec(weight_step=1)] * 8)
    for action, back, later, specs in actions:
        if action == "seal":
            sampler.seal(*specs, log=LOGS[back % len(LOGS)])
            continue
        try:
            sampler.do(command(sampler, action, back, later))
        except SamplerError:
            continue  # Refused, so nothing was decided.
    progress = SamplerProgress()
    for event in sampler.events:
        progress.apply(0, event)
    logs = {}
    for log in LOGS:
        flushes = [(offset, flush) for where, offset, flush in sampler.sealed if where == log]
        groups = dict(pair for at, flush in flushes for pair in sealed_groups(log, at, 0, flush))
        logs[log] = SealLog(0, 0, groups)
    draws = SamplerSources(("math", "code"), "", sampler.config.max_policy_lag)
    found = standing(logs, draws, progress.taken, None)
    state = sampler.state
    assert found.ready == len(state.ready)
    waiting = list(state.waiting.values()) + ["eval"] * state.eval_groups
    assert found.waiting == {why: waiting.count(why) for why in set(waiting)}
    assert len(progress.open) == len(state.open_batches())
    assert progress.next_step == state.next_step
