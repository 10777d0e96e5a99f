"""Arguments by the names of other systems are refused with the name that is ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollstream.producers import (
    AsyncRolloutProducer,
    AsyncStepProducer,
    RolloutProducer,
    ScoreProducer,
    StepProducer,
)
from rollstream.streams.memory import MemoryBroker, MemoryLogs


@pytest.mark.parametrize(
    "made", [RolloutProducer, AsyncRolloutProducer, ScoreProducer], ids=lambda one: one.__name__
)
def test_a_producer_of_an_environment_name_is_refused(made: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"Producer\(\) .* 'environment_name'; give environment$"):
        made(environment_name="math", broker=MemoryBroker(MemoryLogs()))


@pytest.mark.parametrize("name", ["environment", "environment_name"])
@pytest.mark.parametrize("made", [StepProducer, AsyncStepProducer], ids=lambda one: one.__name__)
def test_a_step_producer_says_where_its_environment_is_named(
    made: Callable[..., Any], name: str
) -> None:
    with pytest.raises(TypeError, match=rf"StepProducer\(\) .* '{name}'; give .*to submit_step"):
        made(broker=MemoryBroker(MemoryLogs()), **{name: "math"})


@pytest.mark.parametrize("call", ["publish", "dispatch", "admit", "trajectory"])
def test_a_call_with_an_environment_name_is_refused(call: str) -> None:
    rollout = {"example_id": "ex", "group_size": 2, "weight_step": 0, "policy_version": "v"}
    arguments: dict[str, Any] = {} if call == "admit" else rollout
    producer = RolloutProducer(broker=MemoryBroker(MemoryLogs()))
    with producer, pytest.raises(TypeError, match=r"'environment_name'; give environment$"):
        getattr(producer, call)(environment_name="math", **arguments)


def test_a_score_with_an_environment_name_is_refused() -> None:
    with ScoreProducer(scorer="tests", broker=MemoryBroker(MemoryLogs())) as scores:
        for call, given in (
            (scores.publish, {"rollout_uid": "a", "reward": 1.0}),
            (scores.upsert_scores, {"group_id": "g", "scores": {"a": 1.0}}),
        ):
            wrong: dict[str, Any] = {**given, "environment_name": "math"}
            with pytest.raises(TypeError, match=r"'environment_name'; give environment$"):
                call(**wrong)
