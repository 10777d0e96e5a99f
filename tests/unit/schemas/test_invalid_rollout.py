"""What breaks a rule says field, value and remedy apart from its message."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from rollstream.producers import Contradiction, InvalidRollout, RolloutTooLarge

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def test_the_message_is_made_of_the_attributes() -> None:
    error = InvalidRollout("reward", 2, "give 1", "is 2, which is too much")
    assert str(error) == "reward is 2, which is too much; give 1"
    assert (error.field, error.value, error.remedy) == ("reward", 2, "give 1")
    assert error.index is None
    error.index = 3
    assert str(error) == "steps[3]: reward is 2, which is too much; give 1"
    assert str(InvalidRollout("reward", "x", "give 1")) == "reward is 'x'; give 1"


@pytest.mark.parametrize(
    ("error", "value"),
    [
        (InvalidRollout("reward", float("inf"), "give a finite number"), float("inf")),
        (InvalidRollout("metadata", lambda: None, "give a mapping"), None),
        (Contradiction("is_last", True, "give it to the last", "step 3 was submitted"), True),
        (RolloutTooLarge("attachments", 20, 10, "send less"), 20),
    ],
)
def test_it_crosses_processes_whole(error: InvalidRollout, value: Any) -> None:
    error.index = 1
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), repr(found)) == (str(error), repr(error))
    assert vars(found) == vars(error)
    assert value is None or found.value == value


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, np.zeros(10_000), 10**5_000, DEEP, [0] * 10_000],
    ids=["text", "array", "number", "nested", "list"],
)
def test_it_holds_little_of_a_large_value(value: Any) -> None:
    error = InvalidRollout("metadata", value, "give less")
    assert len(pickle.dumps(error)) < 3_000
    assert len(str(error)) < 300
    assert len(repr(error)) < 600
