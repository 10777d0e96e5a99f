"""What ready packs say where their queue is full."""

from __future__ import annotations

import logging
import re
import time
from contextlib import closing

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import memory_world
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ReadyPacks

WAIT_S = 30.0


@pytest.mark.proves("C4")
def test_what_a_queue_has_no_room_for_is_said_with_its_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(memory_world()) as world:
        world.writer().flush(GroupSpec(rewards=(0.0, 1.0) * 4))  # Four packs.
        sampler = world.open()
        sampler.resume(None)
        deadline = time.monotonic() + WAIT_S
        while sampler.stats().ready.get("math", 0) < 1:
            assert time.monotonic() < deadline
        few = ReadyPacksConfig.model_validate(
            {
                "schedule": {"b_ratio": 0.5},
                "pack_length": 10,
                "queue_limit": 2,
                "prefetch_target_packs": 1,
            }
        )
        ready = ReadyPacks(sampler, few, dp_rank=0, dp_size=1)
        with caplog.at_level(logging.WARNING, "rollstream.sampler"):
            decided = ready.next_step(0, timeout_s=WAIT_S)
    dropped = int(decided.metrics["stage2_ab/async/drop_oldest"])
    assert dropped > 0
    said = f"drops the oldest {dropped} packs of each rank: more than queue_limit 2 .*with 1 new gr"
    assert re.search(said, caplog.text)
