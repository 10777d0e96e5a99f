"""One suite over every batch maker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.example_files import example
from harness.makers import check_maker, steps_of_rollouts
from rollstream.sampler import (
    BatchMaker,
    GrpoBatchMaker,
    RlooBatchMaker,
    Rollout,
    StableMixtureBatchMaker,
)

MAKERS: dict[str, Callable[[], BatchMaker]] = {
    "grpo": GrpoBatchMaker,
    "grpo, no reservoir": lambda: GrpoBatchMaker(advantage="grpo", reservoir_size=0),
    "grpo, small reservoir": lambda: GrpoBatchMaker(seed=7, reservoir_size=3),
    "rloo": RlooBatchMaker,
    "rloo, small reservoir": lambda: RlooBatchMaker(reservoir_size=2),
    "mixture": lambda: StableMixtureBatchMaker(
        {"math": GrpoBatchMaker(), "code": RlooBatchMaker(reservoir_size=4)},
        {"math": 0.5, "code": 0.5},
    ),
    "one of a user's own": example("06_a_batch_maker_of_your_own.py").BestAndWorst,
}


@pytest.mark.proves("D1", "D2", "D3")
@pytest.mark.parametrize("maker", MAKERS)
@given(steps=steps_of_rollouts(), batch_size=st.sampled_from([0, 2, 3, 5, 30]))
def test_a_maker_keeps_what_it_promises(
    maker: str, steps: list[list[Rollout]], batch_size: int
) -> None:
    check_maker(MAKERS[maker], steps, batch_size)
