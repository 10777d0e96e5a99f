"""Owners under seeds: no item twice, none lost, nothing acted upon and not there."""

from __future__ import annotations

from typing import Any

import pytest

from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from simulation.broken.durable_for_confirmed import durable_for_confirmed
from simulation.broken.hiding import HidingBroker
from simulation.broken.no_barrier import without_barrier
from simulation.broken.no_doubt import without_doubt
from simulation.broken.no_fence import without_fence
from simulation.streams.owners import MakeLog, Owners, first_failure

STEPS = 60


@pytest.mark.proves("I1", "I3", "I4")
@pytest.mark.parametrize("batch", range(4))
def test_owners_settle_each_item_once_whatever_goes_wrong(batch: int) -> None:
    for seed in range(batch * 15, batch * 15 + 15):
        Owners(seed).run(STEPS)


@pytest.mark.parametrize(
    "make_log", [without_fence, durable_for_confirmed, without_barrier, without_doubt]
)
def test_a_broken_owned_log_is_caught(make_log: MakeLog) -> None:
    assert first_failure(make_log, range(100), STEPS) != ""


def test_broker_that_hides_nothing_breaks_nothing() -> None:
    class HidingNothing(HidingBroker):
        def hides(self, offset: int, event: Event) -> bool:
            return False

    def make_log(broker: Broker, where: TopicPartition, **settings: Any) -> OwnedLog[SealFold]:
        return OwnedLog(HidingNothing(broker), where, **settings)

    assert first_failure(make_log, range(10), STEPS) == ""
