"""How samplers are named: by whoever opens one, and in ``repr``."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sampler_worlds import memory_world
from rollstream.sampler import (
    GrpoBatchMaker,
    InvalidRequest,
    Sampler,
    SamplerView,
)


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


@pytest.mark.parametrize(
    ("name", "ours"), [("rng_seed", "seed"), ("local_batch_size", "num_groups for all ranks")]
)
def test_a_request_by_the_names_of_others_is_refused_with_ours(name: str, ours: str) -> None:
    world = memory_world()
    sampler: Any = world.open()
    wrong: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'; give {ours}"):
        sampler.next_batch(0, 1, **wrong)
    if name == "rng_seed":
        with pytest.raises(TypeError, match="'rng_seed'; give seed"):
            sampler.sample_groups(1, **wrong)
    world.close()


def test_the_seed_of_a_maker_by_another_name_is_refused() -> None:
    maker: Any = GrpoBatchMaker
    with pytest.raises(TypeError, match=r"GrpoBatchMaker\(\) .* 'rng_seed'; give seed"):
        maker(rng_seed=3)
