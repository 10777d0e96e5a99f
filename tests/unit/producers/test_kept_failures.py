"""What a producer keeps of deliveries that failed, until a call tells of them."""

from __future__ import annotations

import pytest

from harness.brokers import until
from harness.faults import Fate, FaultyBroker
from harness.producers import new_layout, sampled
from rollstream.producers import DeliveryFailed, RolloutProducer
from rollstream.producers.engine import failures
from rollstream.streams.memory import MemoryBroker

KEPT = 3


def test_a_producer_that_never_flushes_keeps_so_many_failures_and_logs_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "KEPT_MAX", KEPT)
    broker = FaultyBroker(MemoryBroker(), lambda append: Fate.DOUBT_AND_DROP)
    layout = new_layout(broker)
    broker.silent = True  # `publish` may raise what failed before it.
    uids = [f"uid-{number}" for number in range(KEPT + 2)]
    producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)
    for uid in uids:
        producer.publish(example_id="ex", rollout_uid=uid, **sampled())
    broker.silent = False
    until(lambda: sum("uid-" in one for one in caplog.messages) == 2)
    with pytest.raises(DeliveryFailed) as told:
        producer.close()
    assert told.value.uids == tuple(uids[:KEPT])
    assert [line.split()[0] for line in caplog.messages if "uid-" in line] == uids[KEPT:]
