"""A body of the gateway takes what the producers take, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from inspect import signature
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from harness.producers import OUTBOX
from harness.step_writers import STEP
from rollstream.gateway.models import Body, CompleteBody, FailBody, ScoreBody, StepBody
from rollstream.producers import ScoreProducer, Step
from rollstream.producers.scores.records import Score, score_record
from rollstream.producers.steps.entries import StepEntries
from rollstream.runtime.clock import ManualClock
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import DEPTH_MAX

NUMBERS = (
    *range(-2, 3),
    *(edge + more for edge in (rules.GROUP_SIZE_MAX, rules.INT_MAX) for more in (0, 1)),
    *(rules.LONG_MAX, rules.LONG_MAX + 1, -rules.LONG_MAX - 1),
)
FLOATS = (
    *(sign * edge for edge in (rules.FLOAT32_MAX, 1e39, 0.0, 1.0) for sign in (-1, 1)),
    *(rules.LOGPROB_MAX, 2 * rules.LOGPROB_MAX, rules.LOGPROB_MIN, 2 * rules.LOGPROB_MIN),
)
TEXTS = (
    *("", "x"),
    *("x" * edge for edge in (rules.VERSION_BYTES_MAX, rules.VERSION_BYTES_MAX + 1)),
    *("x" * edge for edge in (rules.NAME_CHARS_MAX, rules.NAME_CHARS_MAX + 1)),
)
FLAGS = (True, False, 0, 1, None, "true")
DEEP: dict[str, Any] = reduce(lambda inner, _: {"a": inner}, range(DEPTH_MAX - 1), {})
PAIRS_OF_NUMBERS = tuple([number, number] for number in NUMBERS)
OF_A_STEP: Mapping[str, tuple[Any, ...]] = {
    "prompt_ids": PAIRS_OF_NUMBERS,
    "response_ids": PAIRS_OF_NUMBERS,
    "logprobs": tuple([number, number] for number in FLOATS),
    "loss_mask": PAIRS_OF_NUMBERS,
    "reward": FLOATS,
    "trajectory_uid": TEXTS,
    "prompt_uid": TEXTS,
    "step_index": NUMBERS,
    "policy_version": TEXTS,
    "weight_step": NUMBERS,
    "n_rollouts": NUMBERS,
    "policy_epoch": NUMBERS,
    "lineage": TEXTS,
    "example_id": TEXTS,
    "is_last": FLAGS,
    "awaits_score": FLAGS,
    "metadata": ({}, {"a": [1, None, {"b": "x"}]}, [], "x", 1, DEEP, {"a": DEEP}, None),
}
OF_A_SCORE: Mapping[str, tuple[Any, ...]] = {
    "reward": FLOATS,
    "scorer": TEXTS,
    "rewards": tuple({"tests": number} for number in FLOATS),
    "flags": tuple([text] for text in TEXTS if text),
    "attempt": TEXTS,
}
# Arrays [2, …], as a body has them, and as NumPy does.
ARRAYS = [
    np.ones((2, *sides), dtype)
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float64")
    for sides in ((), (3,), (2, 0), (1,) * 7)
]


def is_body(model: type[Body], given: Mapping[str, Any]) -> bool:
    try:
        body = msgspec.convert(given, model)
        if isinstance(body, StepBody):
            body.step()
    except (msgspec.ValidationError, InvalidRollout):
        return False
    return True


def is_taken(take: Callable[[StepEntries], object]) -> bool:
    try:
        take(StepEntries(OUTBOX, 1, ManualClock()))
    except InvalidRollout:
        return False
    return True


@pytest.mark.parametrize("field", OF_A_STEP)
def test_a_step_of_a_body_has_the_limits_of_a_step(field: str) -> None:
    for value in OF_A_STEP[field]:
        given = {"reward": None, **STEP, field: value}
        taken = is_taken(lambda entries, given=given: entries.steps([Step(**given)], "math", None))  # type: ignore[misc]
        assert is_body(StepBody, given) == taken, value


@pytest.mark.parametrize("number", NUMBERS)
def test_the_end_of_a_trajectory_has_the_producers_limits(number: int) -> None:
    steps = is_taken(lambda entries: entries.end("math", "t", "p", number))
    assert is_body(CompleteBody, {"prompt_uid": "p", "steps": number}) == steps
    of_group = is_taken(lambda entries: entries.failure("math", "t", "p", "why", number, ""))
    failed = {"prompt_uid": "p", "reason": "why", "n_rollouts": number}
    assert is_body(FailBody, failed) == (of_group and number > 0)  # 0: it does not say.


def test_a_step_of_a_body_leaves_out_what_a_step_does() -> None:
    given = {"reward": None, **STEP}
    assert msgspec.convert(given, StepBody).step()._replace(
        prompt_ids=None, response_ids=None, logprobs=None
    ) == Step(**{**given, "prompt_ids": None, "response_ids": None, "logprobs": None})
    assert {*OF_A_STEP, "token_arrays"} == {*Step._fields} == {*StepBody.__struct_fields__}


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_of_a_body_is_the_array_of_a_step(array: NDArray[Any]) -> None:
    as_body = {"dtype": array.dtype.name, "shape": array.shape, "data": array.ravel().tolist()}
    given = {"reward": None, **STEP, "token_arrays": {"a": as_body}}
    step = msgspec.convert(given, StepBody).step()
    assert step.token_arrays is not None
    found = step.token_arrays["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert (found == array).all()
    assert is_taken(lambda entries: entries.steps([step], "math", None))


def is_score(given: Mapping[str, Any]) -> bool:
    of = Score(given["reward"], given.get("rewards", {}), given.get("flags", ()))
    named = {"scorer": given["scorer"], "attempt": given.get("attempt", "")}
    try:
        score_record({"t": of}, group_id="", prompt_uid="p", now_us=0, **named)
    except InvalidRollout:
        return False
    return True


@pytest.mark.parametrize("field", OF_A_SCORE)
def test_a_score_of_a_body_has_the_limits_of_a_score(field: str) -> None:
    for value in OF_A_SCORE[field]:
        given = {"prompt_uid": "p", "reward": 1.0, "scorer": "tests", field: value}
        assert is_body(ScoreBody, given) == is_score(given), value


def test_a_score_of_a_body_has_the_arguments_of_a_score() -> None:
    taken = {*signature(ScoreProducer.publish).parameters}
    given_elsewhere = {"self", "rollout_uid", "group_id", "environment"}
    assert {*ScoreBody.__struct_fields__} == taken - given_elsewhere
    assert {*OF_A_SCORE, "prompt_uid"} == {*ScoreBody.__struct_fields__}
