"""Arrays of any sort and dtype that ``publish`` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.taken import publish
from rollstream.producers import InvalidRollout


@pytest.mark.parametrize("dtype", ["i1", "i2", ">i2", "i4", ">i4", "i8", ">i8"])
@pytest.mark.parametrize("place", range(4))
def test_a_negative_token_is_refused_in_every_dtype_and_place(dtype: str, place: int) -> None:
    tokens = np.array([1, 2, 3, 4], dtype)
    tokens[place] = -100
    with pytest.raises(InvalidRollout, match=rf"output_tokens\[{place}\] is -100; "):
        publish(output_tokens=tokens, logprobs=None)


class Bfloat:
    """A torch tensor of a dtype that NumPy lacks, as far as we touch it."""

    def __init__(self, values: list[float], *, plain: bool) -> None:
        self._values = values
        self._plain = plain

    def detach(self) -> Bfloat:
        return self

    def cpu(self) -> Bfloat:
        return self

    def float(self) -> Bfloat:
        return Bfloat(self._values, plain=True)

    def numpy(self) -> Any:
        if not self._plain:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.array(self._values, np.float32)


@pytest.mark.parametrize(
    "logprobs",
    [
        [-0.5, -0.25, -1.0],
        (-0.5, -0.25, -1.0),
        np.array([-0.5, -0.25, -1.0], np.float16),
        np.array([-0.5, -0.25, -1.0], ">f4"),
        np.array([-0.5, 9, -0.25, 9, -1.0, 9], np.float32)[::2],
        Bfloat([-0.5, -0.25, -1.0], plain=False),
    ],
)
def test_array_likes_of_any_sort_arrive_as_float32(logprobs: Any) -> None:
    assert publish(logprobs=logprobs)["logprobs"] == np.array([-0.5, -0.25, -1.0], "<f4").tobytes()


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<i8", "<u2", "<u8", ">u4"])
def test_tokens_of_any_integer_type_arrive_as_int32(dtype: str) -> None:
    tokens = publish(output_tokens=np.array([7, 8, 9], dtype))["output_tokens"]
    assert tokens == np.array([7, 8, 9], "<i4").tobytes()


def test_large_numbers_whose_square_overflows_are_finite_all_the_same() -> None:
    wide = np.array([-3e38, -3e38, -3e38], np.float32)
    assert publish(token_rewards=wide)["token_rewards"] == wide.tobytes()
