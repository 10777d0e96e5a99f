"""What a producer keeps of deliveries that failed, until a call tells of them."""

from __future__ import annotations

import asyncio

import pytest

from harness.brokers import until
from harness.faults import Fate, FaultyBroker
from harness.producer_faults import until_sent
from harness.producers import new_layout, sampled
from rollstream.producers import AsyncRolloutProducer, DeliveryFailed
from rollstream.producers.engine import failures
from rollstream.streams.memory import MemoryBroker

KEPT = 3


def test_a_producer_that_never_flushes_keeps_so_many_failures_and_logs_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "KEPT_MAX", KEPT)
    broker = FaultyBroker(MemoryBroker(), lambda append: Fate.DOUBT_AND_DROP)
    broker.silent = True
    layout = new_layout(broker)
    uids = [f"uid-{number}" for number in range(KEPT + 2)]

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace
        )
        publishing = [
            asyncio.ensure_future(producer.publish(example_id="ex", rollout_uid=uid, **sampled()))
            for uid in uids
        ]
        await until_sent(broker, 1)
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        broker.silent = False
        await asyncio.to_thread(until, lambda: sum("uid-" in one for one in caplog.messages) == 2)
        with pytest.raises(DeliveryFailed) as told:
            await producer.close()
        assert told.value.uids == tuple(uids[:KEPT])

    asyncio.run(scenario())
    assert [line.split()[0] for line in caplog.messages if "uid-" in line] == uids[KEPT:]
