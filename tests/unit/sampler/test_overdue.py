"""Batches that nobody acks are reported by ``stats``, and stay where they are."""

from __future__ import annotations

from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import config_of, memory_world
from rollstream.runtime.clock import ManualClock
from rollstream.sampler import Sampler

WAIT_S = 30.0


@pytest.mark.proves("F17")
def test_a_batch_that_is_not_acked_in_time_is_reported_and_kept() -> None:
    world = memory_world()
    world.configure(ack_timeout_s=60.0)
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(3)))
    clock = ManualClock()
    parts: dict[str, Any] = {"broker": world.broker(), "store": world.store, "clock": clock}
    with Sampler(world.name, config=world.config, **parts) as sampler:
        sampler.resume(None)
        first = sampler.next_batch(0, 1)
        clock.advance(59.0)
        assert sampler.stats().overdue == ()
        clock.advance(2.0)
        assert sampler.stats().overdue == (0,)
        clock.advance(30.0)
        sampler.next_batch(1, 1)
        assert sampler.stats().overdue == (0,)
        assert sampler.next_batch(0, 1).digest == first.digest
        sampler.ack(first)
        assert sampler.stats().overdue == ()
        clock.advance(70.0)
        assert sampler.stats().overdue == (1,)
        sampler.resume(0)  # Which serves step 1 again, so that the time begins anew.
        assert sampler.stats().overdue == ()
        sampler.resume(0, later="release")
        clock.advance(70.0)
        assert sampler.stats().overdue == ()
    world.close()


def test_no_time_for_an_ack_is_no_setting() -> None:
    with pytest.raises(ValueError, match="ack_timeout_s"):
        config_of("file:///unused", "t", ack_timeout_s=0.0)
