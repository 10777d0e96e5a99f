"""Who owns a sampler's decision log, and who knows of it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sampler_worlds import memory_world
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler.deciding.queries import AskProgress
from rollstream.sampler.deciding.trainer import Resume
from rollstream.sampler.serving.owner import Owner
from rollstream.streams.errors import Fenced


def test_an_owner_that_was_fenced_is_so_after_it_was_closed_too() -> None:
    world = memory_world()
    shared: dict[str, Any] = {
        "broker": world.broker(),
        "store": world.store,
        "clock": SystemClock(),
        "entropy": SystemEntropy(),
    }
    first, successor = (Owner(world.name, world.config, **shared) for _ in range(2))
    first.execute(Resume(checkpointed_step=None), 0.0)
    successor.execute(Resume(checkpointed_step=None), 0.0)
    with pytest.raises(Fenced, match="taken over"):
        first.execute(AskProgress(), 0.0)
    assert first.fenced
    for owner in (first, successor):
        owner.close()
    assert (first.fenced, successor.fenced) == (True, False)
    world.close()
