"""A maker of somebody's own that fails: its step stays to be asked for, and nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from harness.sampler_worlds import memory_world
from harness.training_batches import WAIT_S, everything, made_by, seal
from rollstream.sampler import BatchMaker, InvalidRequest, MadeBatch, RlooBatchMaker

pytestmark = pytest.mark.proves("D1", "F20")


class Other(RlooBatchMaker):
    """One whose settings are those of the test."""

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self._settings = settings

    @property
    def settings(self) -> Mapping[str, object]:
        given: Mapping[str, object] = self._settings
        return given


class Fails(BatchMaker):
    """As ``RlooBatchMaker``, but for what it makes."""

    def __init__(self, failure: Exception | MadeBatch) -> None:
        self._failure = failure

    @property
    def settings(self) -> Mapping[str, object]:
        return RlooBatchMaker().settings

    def create_batch(self, batch_size: int) -> MadeBatch:
        if isinstance(self._failure, Exception):
            raise self._failure
        return self._failure


@pytest.mark.parametrize("settings", [{"maker": object()}, {"best": float("nan")}, ["maker"], None])
def test_a_maker_whose_settings_cannot_be_recorded_is_refused_before_a_step(settings: Any) -> None:
    message = r"settings of Other is .* cannot be recorded: .*JSON"
    with closing(memory_world()) as world, pytest.raises(InvalidRequest, match=message):
        made_by(world.open(), Other(settings))


def test_after_a_maker_that_raised_the_step_is_made_by_one_that_does_not() -> None:
    nothing = MadeBatch.of([], (), trained=())
    with closing(memory_world()) as world:
        seal(world, 4)
        sampler = world.open()
        sampler.resume(None)
        with pytest.raises(ZeroDivisionError, match="mine"):
            made_by(sampler, Fails(ZeroDivisionError("mine"))).next(0, timeout_s=WAIT_S)
        with pytest.raises(InvalidRequest, match="create_batch of Fails returned filtered"):
            made_by(sampler, Fails(nothing)).next(0, timeout_s=WAIT_S)
        batches = made_by(sampler, RlooBatchMaker())
        training = batches.next(0, timeout_s=WAIT_S)
        assert len(training.examples) == 3
        batches.ack(training)
        assert everything(batches.next(0, timeout_s=WAIT_S)) == everything(training)
        assert sampler.stats().ready == {"math": 2}
