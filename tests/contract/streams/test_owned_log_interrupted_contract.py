"""An owner's wait for its event that ends without an answer, on the twin and on Kafka."""

from __future__ import annotations

import pytest

from harness.brokers import World, write
from harness.faults import FaultyBroker
from harness.owned_logs import in_time, owner_of, settle, settle_confirmed, whole_fold
from harness.sealed_state import digest_of
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import DeliveryUnknown, UnreadableLog


@pytest.mark.proves("I4")
def test_an_event_behind_an_unreadable_record_is_in_doubt(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    write(world.broker(), where, [MARKER + bytes(8) + b"newer"])
    with pytest.raises(UnreadableLog):
        settle_confirmed(log)
    with pytest.raises(DeliveryUnknown, match="claim again"):
        settle(log)
    with pytest.raises(UnreadableLog):
        log.claim(in_time())


class InterruptedBroker(FaultyBroker):
    """The next poll is interrupted like by Ctrl-C, if it is ``interrupting``."""

    interrupting = False

    def before_poll(self, timeout_s: float) -> float:
        if self.interrupting:
            self.interrupting = False
            raise KeyboardInterrupt
        return timeout_s


@pytest.mark.proves("I4")
def test_an_event_whose_wait_was_interrupted_is_in_doubt(
    world: World, where: TopicPartition
) -> None:
    broker = InterruptedBroker(world.broker())
    log = owner_of(broker, where)
    fold = log.claim(in_time())
    doubtful = settle(log)
    broker.interrupting = True
    with pytest.raises(KeyboardInterrupt):
        log.wait_confirmed(doubtful, in_time())
    with pytest.raises(DeliveryUnknown, match=r"KeyboardInterrupt.*claim again"):
        settle(log)
    assert log.claim(in_time()) is fold
    assert fold.watermark == 10
    settle_confirmed(log)
    assert digest_of(whole_fold(world, where)) == digest_of(fold)
