"""How samplers are named: by whoever opens one, and in ``repr``."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sampler_worlds import memory_world
from rollstream.sampler import InvalidRequest, Sampler, SamplerView


@pytest.mark.parametrize("of", [Sampler, SamplerView])
def test_a_name_that_is_no_text_is_refused(of: Any) -> None:
    world = memory_world()
    with pytest.raises(InvalidRequest, match="name is 3; give a string"):
        of(3, config=world.config, broker=world.broker(), store=world.store)


def test_a_sampler_shows_its_name_and_epoch_in_a_line() -> None:
    world = memory_world()
    sampler = world.open()
    assert repr(sampler) == f"Sampler({world.name!r}, trainer_epoch=None)"
    sampler.resume(None)
    assert repr(sampler) == f"Sampler({world.name!r}, trainer_epoch={sampler.trainer_epoch})"
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        assert repr(view) == f"SamplerView({world.name!r})"
    world.close()
