"""A batch's arrays as tensors of PyTorch and arrays of JAX: their values, and whose memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.batches import batch_of
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from rollstream.sampler import Batch, Examples, InvalidRequest, Packs, plan_packs

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
jax = pytest.importorskip("jax", reason="needs JAX: make test-torch")

pytestmark = pytest.mark.proves("F11")
SHAPES: dict[str, Callable[[Batch], Any]] = {
    "batch": lambda batch: batch,
    "padded": lambda batch: batch.padded(32, 0, layout="prompt_response"),
    "examples": lambda batch: Examples.of(batch, "grpo"),
    "packs": lambda batch: Packs.of(
        Examples.of(batch), plan_packs(Examples.of(batch).lengths, length=16)
    ),
}


def shaped(name: str) -> Any:
    groups = [
        GroupSpec(extras=(every_extra(),) * 2),
        GroupSpec(prompt=5, output=2, extras=(every_extra(2),) * 2),
    ]
    return SHAPES[name](batch_of(groups, columns=EVERY_COLUMN))


def address(tensor: Any) -> int:
    """Where its memory begins."""
    return int(tensor.data_ptr())


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_the_arrays_and_share_their_memory_where_it_may_be_written_to(
    name: str,
) -> None:
    arrays = shaped(name)
    tensors = arrays.to_torch()
    assert {"tokens", "loss_mask", "token_arrays/routed_experts"} <= tensors.keys()
    assert tensors.keys() == arrays.arrays().keys()
    for key, array in arrays.arrays().items():
        assert np.array_equal(tensors[key].numpy(), array, equal_nan=array.dtype.kind == "f"), key
        if array.flags.writeable:
            assert address(tensors[key]) == array.ctypes.data, key


def test_writing_to_a_tensor_never_changes_memory_that_may_only_be_read() -> None:
    batch = batch_of([GroupSpec()])
    before = batch.tokens.copy()
    batch.tokens.flags.writeable = False
    tensors = batch.to_torch()
    tensors["tokens"].zero_()
    assert np.array_equal(batch.tokens, before)
    batch.logprobs.flags.writeable = True
    assert address(tensors["logprobs"]) == batch.logprobs.ctypes.data


@pytest.mark.parametrize("read_only", [False, True])
def test_jax_has_the_arrays_without_a_copy(read_only: bool) -> None:
    batch: Batch = shaped("batch")
    arrays = batch.arrays()
    for array in arrays.values():
        array.flags.writeable = not read_only
    for key, made in batch.to_jax().items():
        array = arrays[key]
        assert np.array_equal(np.asarray(made), array, equal_nan=array.dtype.kind == "f"), key
        if array.dtype != np.int64 and array.ctypes.data % 64 == 0:
            assert made.unsafe_buffer_pointer() == array.ctypes.data, key


@pytest.mark.parametrize("name", SHAPES)
def test_pinned_tensors_are_page_locked_copies_and_without_a_gpu_the_error_says_so(
    name: str,
) -> None:
    arrays = shaped(name)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidRequest, match="pin_memory is True, and PyTorch finds no GPU"):
            arrays.to_torch(pin_memory=True)
        return
    for key, tensor in arrays.to_torch(pin_memory=True).items():
        array = arrays.arrays()[key]
        assert tensor.is_pinned(), key
        assert np.array_equal(tensor.numpy(), array, equal_nan=array.dtype.kind == "f"), key
