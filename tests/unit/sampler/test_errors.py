"""Errors cross from the sampler's process to the trainer's as what they are."""

from __future__ import annotations

import pickle

import pytest

from rollstream.sampler import NotEnoughGroups, SamplerError
from rollstream.schemas.errors import RollstreamError, UnreadableEvent


@pytest.mark.parametrize(
    "error",
    [
        NotEnoughGroups(
            "too few", step=1, wanted=2, ready={"math": 1}, waiting={"reward": 3}, dropped={}
        ),
        UnreadableEvent("inconsistent", "metadata of a: no JSON"),
        SamplerError("refused"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pickled_error_keeps_type_message_and_attributes(error: RollstreamError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
