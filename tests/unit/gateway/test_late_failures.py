"""What the broker says after the gateway's answer is kept nowhere."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from harness.faults import Append, FaultyBroker
from harness.producers import new_layout
from rollstream.gateway.intake import Intake
from rollstream.gateway.problems import Refused
from rollstream.producers import AsyncStepProducer, Step
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.streams.broker import Delivery, OnDelivery
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker

TIMEOUT_S = 0.05


class _Late(FaultyBroker):
    """Refuses each append, once ``tell`` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.tell = False
        self.kept: list[tuple[OnDelivery, Delivery]] = []

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        assert on_delivery is not None
        return lambda delivery: self.kept.append((on_delivery, delivery))

    def before_poll(self, timeout_s: float) -> float:
        while self.tell and self.kept:
            on_delivery, delivery = self.kept.pop()
            on_delivery(delivery._replace(error=BrokerUnavailable("gone")))
        return timeout_s


def test_failures_that_come_after_the_answer_do_not_pile_up() -> None:
    broker = _Late()
    layout = new_layout(broker, "web")

    async def scenario() -> None:
        writer = AsyncStepProducer(broker=broker, namespace=layout.namespace, timeout_s=30.0)
        intake = Intake(writer, GatewayConfig(timeout_s=TIMEOUT_S, allow_anonymous=True))
        step = Step([1], [2], 1.0, "t", "p", 0, "v", 0, is_last=True, n_rollouts=1)
        async with intake.request("web") as call:
            with pytest.raises(Refused, match="may have it"):
                await intake.deliver(call, partial(writer.submit_steps, [step]), durable=True)
        broker.tell = True
        while broker.kept:
            await asyncio.sleep(0)
        async with intake.request("web"):
            pass
        await writer.close()  # Would raise whatever was kept.
        assert not intake.undelivered  # Its caller was told.

    asyncio.run(scenario())
