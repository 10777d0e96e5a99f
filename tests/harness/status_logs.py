"""The logs of a small deployment in memory, for what ``status`` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.groups import GroupSpec, flush_of
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
    SamplerConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Event
from rollstream.status import Figures, measure
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

LAYOUT = Layout("test")
CLAIM: dict[str, Any] = {"epoch": 0, "nonce": "n"}
DECISION: dict[str, Any] = {**CLAIM, "now_ts": 0, "trainer_epoch": 0}


class Logs:
    """The topics of one environment and one sampler, and what tests append to them."""

    def __init__(
        self, max_policy_lag: int = -1, topics: Callable[[str], bool] = lambda name: True
    ) -> None:
        self.max_policy_lag = max_policy_lag
        self.clock = ManualClock()
        self.broker = MemoryBroker(clock=self.clock)
        specs = specs_for(LAYOUT, {"math": 1}, ["t"])
        self.broker.admin().create([spec for spec in specs if topics(spec.name)], 10)

    def append(self, topic: str, *values: bytes) -> None:
        writer = self.broker.writer()
        for value in values:
            writer.append(topic, value, partition=0)
        assert writer.flush(10) == 0

    def say(self, topic: str, *events: Event) -> None:
        self.append(topic, *map(encode, events))

    def seal(self, *specs: GroupSpec, offset: int = 0, epoch: int = 0) -> None:
        """One flush whose source offsets begin at ``offset``."""
        flush = flush_of(specs, name=f"flush-{offset}", watermark=offset + 2 * len(specs))
        segments = replace(flush.segments, offsets=flush.segments.offsets + offset)
        touched = replace(flush.touched, offsets=flush.touched.offsets + offset)
        event = replace(flush, epoch=epoch, nonce="n", segments=segments, touched=touched)
        self.say(LAYOUT.groups("math"), event)

    def measure(self, *environments: str) -> Figures:
        config = RollstreamConfig(
            kafka=KafkaConfig(bootstrap="memory", namespace=LAYOUT.namespace),
            store=StoreConfig(root="file:///nowhere"),
            environments=dict.fromkeys(("math", *environments), EnvironmentConfig(partitions=1)),
            samplers={
                "t": SamplerConfig(environments=("math",), max_policy_lag=self.max_policy_lag)
            },
        )
        return measure(self.broker, config, Deadline(10, self.clock))
