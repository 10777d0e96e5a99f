"""A body of the gateway takes what the producers take, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from harness.producers import OUTBOX
from harness.step_writers import STEP
from rollstream.gateway.models import Body, CompleteBody, FailBody, StepBody
from rollstream.producers import Step
from rollstream.producers.steps.entries import StepEntries
from rollstream.runtime.clock import ManualClock
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout

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
}


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
    assert {*OF_A_STEP} == {*Step._fields} - {"is_last", "metadata", "awaits_score", "token_arrays"}
