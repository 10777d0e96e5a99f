"""What a maker of somebody's own may not make; nothing of it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.batches import batch_of
from harness.groups import GroupSpec
from rollstream.sampler import (
    Batch,
    BatchMaker,
    GrpoBatchMaker,
    InvalidRequest,
    MadeBatch,
    RlooBatchMaker,
    StableMixtureBatchMaker,
    examples_of,
    make_batch,
    rollouts_of,
)

pytestmark = pytest.mark.proves("D1", "F20")
RIGHT: Mapping[str, Any] = {
    "trajectories": np.array([0, 1], np.int32),
    "advantages": np.array([0.5, -0.5], np.float32),
    "kept": np.array([4], np.int32),
    "filtered": {"all_equal": 2},
    "filtered_groups": np.array([1], np.int32),
}
"""Of ``a_batch``: what is here with four of its six trajectories, of which one is used."""


def a_batch() -> Batch:
    """Three groups of two trajectories; of the last one, which was carried, one is used."""
    groups = [GroupSpec(rewards=(0.0, 1.0), example_id=name) for name in ("x", "y", "z")]
    used = np.array([False] * 5 + [True])
    return replace(batch_of(groups), carried_groups=1, used=used)


class Returns(BatchMaker):
    """Returns what it was given, or what that makes of the maker."""

    def __init__(self, made: Any) -> None:
        self._made = made

    @property
    def settings(self) -> Mapping[str, object]:
        return {"maker": "returns"}

    def create_batch(self, batch_size: int) -> MadeBatch:
        made: MadeBatch = self._made(self) if callable(self._made) else self._made
        return made


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def test_what_a_batch_may_be_is_taken() -> None:
    made = make_batch(Returns(MadeBatch(**RIGHT)), a_batch(), 2)
    assert examples_of(a_batch(), made).trajectories.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trajectories": i32(0, 99)}, "trajectory 99, which was not added, or stands there twice"),
        ({"trajectories": i32(0, -1)}, "trajectory -1, which was not added"),
        ({"trajectories": i32(0, 0)}, "trajectory 0, which was not added, or stands there twice"),
        ({"trajectories": i32(0, 5)}, "trajectory 5, which an earlier step trained on, or left"),
        ({"trajectories": [0, 1]}, r"trajectories \[0, 1\], which is no int32 array \[n\]"),
        ({"trajectories": np.ones(6, np.bool_)}, "trajectories array.*which is no int32 array"),
        ({"trajectories": np.array([[0, 1]])}, "trajectories array.*which is no int32 array"),
        ({"trajectories": np.array([0.0, 1.0])}, "trajectories array.*which is no int32 array"),
        ({"trajectories": i32(0, 1, 2)}, "3 trajectories, where batch_size is 2"),
        ({"advantages": np.zeros(1, np.float32)}, r"advantages .* no float32 array \[2\]"),
        ({"advantages": np.zeros(3, np.float32)}, r"advantages .* no float32 array \[2\]"),
        ({"advantages": np.array(["a", "b"])}, r"advantages .* no float32 array \[2\]"),
        ({"advantages": np.array([0, np.nan])}, "advantages .*nan.* finite"),
        ({"advantages": np.array([0, np.inf])}, "advantages .*inf.* finite"),
        ({"kept": i32(77)}, "trajectory 77, which was not added"),
        ({"kept": i32(1)}, "trajectory 1, which was not added, or stands there twice"),
        ({"kept": i32(5)}, "trajectory 5, which an earlier step trained on"),
        ({"filtered": {}}, r"filtered \{\}, where 2 are neither trained on nor kept"),
        ({"filtered": {"a": 3, "b": -1}}, "filtered .*, where 2 are neither"),
        ({"filtered": None}, "filtered None, where 2 are neither"),
        ({"filtered_groups": i32(0, 1)}, r"filtered_groups .* none is trained on or kept of \[1\]"),
        ({"filtered_groups": i32()}, r"filtered_groups .* none is trained on or kept of \[1\]"),
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_batch_that_names_what_it_may_not_is_refused_with_its_maker(
    changed: Mapping[str, Any], message: str, mixed: bool
) -> None:
    maker: BatchMaker = Returns(MadeBatch(**{**RIGHT, **changed}))
    if mixed:
        maker = StableMixtureBatchMaker({"math": maker}, {"math": 1.0})
    with pytest.raises(InvalidRequest, match=f"create_batch of Returns returned {message}"):
        make_batch(maker, a_batch(), 2)


@pytest.mark.parametrize("made", [None, [0, 1], {"trajectories": [0]}])
def test_what_is_no_made_batch_is_refused(made: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"create_batch of Returns returned .*no MadeBatch; M"):
        make_batch(Returns(made), a_batch(), 2)
    with pytest.raises(InvalidRequest, match=r"made is .*; give what make_batch returned"):
        examples_of(a_batch(), made)


def test_what_was_made_of_another_batch_is_refused() -> None:
    made = make_batch(RlooBatchMaker(), a_batch(), 6)
    with pytest.raises(InvalidRequest, match=r"made.trajectories has \d; there are 1, which count"):
        examples_of(batch_of([GroupSpec(rewards=(1.0,))]), made)


@pytest.mark.parametrize(
    "call", [rollouts_of, lambda batch: make_batch(RlooBatchMaker(), batch, 2)]
)
def test_what_is_no_batch_is_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidRequest, match="batch is None; give the Batch that next_batch retur"):
        call(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trained": [9]}, "trained has 9; there are 6, which count from 0"),
        ({"trained": [-1]}, "trained has -1; there are 6"),
        ({"trained": [True] * 6}, "trained is .*; give a sequence of whole numbers"),
        ({"kept": [6]}, "kept has 6; there are 6"),
        ({"advantages": [0.0]}, r"advantages are float64 \[1\]; give .* each of the 6 rollouts"),
        ({"advantages": [np.nan] * 6}, "advantages has nan at 0, .*give finite"),
        ({"advantages": ["1"] * 6}, "give a number for each of the 6 rollouts"),
    ],
)
def test_a_batch_of_indices_that_are_none_of_the_list_is_not_made(
    arguments: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        MadeBatch.of(
            rollouts_of(a_batch()), **{"advantages": np.zeros(6), "trained": [0], **arguments}
        )


def test_advantages_that_nobody_trains_on_may_be_anything() -> None:
    advantages = [1.0, *[np.nan] * 5]
    made = MadeBatch.of(rollouts_of(a_batch()), advantages, trained=[0])
    assert made.advantages.tolist() == [1.0]


@pytest.mark.parametrize(
    ("makers", "message"),
    [
        (None, "makers is None; give a mapping of environments to makers"),
        ([RlooBatchMaker()], r"makers is \[RlooBatchMaker.*; give a mapping of environments"),
        (dict.fromkeys(("math", "code"), RlooBatchMaker()), "one object for several of .*make one"),
        ({None: RlooBatchMaker(), "math": RlooBatchMaker()}, "a name in makers is None; give a st"),
    ],
)
def test_a_mixture_has_a_maker_of_its_own_for_each_environment(makers: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        StableMixtureBatchMaker(makers, {"math": 0.5, "code": 0.5})


@pytest.mark.parametrize("advantage", [None, "gae", ["rloo"], np.zeros(2)])
def test_an_advantage_that_is_none_is_refused_before_a_step(advantage: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"advantage .* is unknown; use one of \('rloo'"):
        GrpoBatchMaker(advantage=advantage)
