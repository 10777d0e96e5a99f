"""What several calls say alike is checked once, and only that."""

from __future__ import annotations

import pytest

from harness.producers import ENVIRONMENT, new_layout, published, sampled
from rollstream.producers import InvalidRollout, RolloutProducer
from rollstream.streams.memory import MemoryBroker


class Loaded:
    """A policy of a caller's own, which changes when other weights are loaded."""

    def __init__(self) -> None:
        self.version, self.step, self.epoch, self.lineage = "step-1", 1, 0, "a"


def test_a_policy_that_changes_is_read_at_each_call() -> None:
    broker, policy = MemoryBroker(), Loaded()
    layout = new_layout(broker)
    with RolloutProducer(
        broker=broker, namespace=layout.namespace, environment=ENVIRONMENT
    ) as producer:
        for step in (1, 2):
            policy.step, policy.version = step, f"step-{step}"
            producer.publish(example_id="ex", policy=policy, output_tokens=[1])
        with pytest.raises(InvalidRollout, match="policy is not given"):
            producer.publish()  # type: ignore[call-arg]
    found = [one.fields for one in published(broker, layout)]
    assert [(one["weight_step"], one["policy_version"]) for one in found] == [
        (1, "step-1"),
        (2, "step-2"),
    ]


def test_an_argument_of_another_type_is_refused_behind_an_equal_one() -> None:
    broker = MemoryBroker()
    layout = new_layout(broker)
    with RolloutProducer(
        broker=broker, namespace=layout.namespace, environment=ENVIRONMENT
    ) as producer:
        producer.publish(example_id="ex", **sampled(weight_step=1))
        for wrong in (True, 1.0):
            with pytest.raises(InvalidRollout, match="give a whole number"):
                producer.publish(example_id="ex", **sampled(weight_step=wrong))
