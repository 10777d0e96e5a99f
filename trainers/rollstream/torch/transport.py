"""How a batch gets from a loader's worker process to the trainer: in shared memory, in one copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollstream.sampler import Batch

ALIGNMENT = 64  # Of each array, in bytes: what JAX takes without a copy.
_Header = tuple[str, tuple[int, ...], int]  # An array's dtype, shape, and where it begins.


def share_memory_of_batches() -> None:
    """From now on this process hands batches to other processes (in a ``multiprocessing.Queue``, as
    ``DataLoader`` does) in PyTorch's shared memory; there ``to_torch`` copies nothing."""
    ForkingPickler.register(Batch, _reduced)


class _Pickler(pickle.Pickler):
    """Leaves arrays out, and names each by its place in ``arrays``."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[NDArray[Any]] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return None
        self.arrays.append(value)
        return len(self.arrays) - 1


class _Unpickler(pickle.Unpickler):
    """Puts the arrays back."""

    def __init__(self, file: BytesIO, arrays: list[NDArray[Any]]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def persistent_load(self, place: int) -> NDArray[Any]:
        return self._arrays[place]


def _reduced(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    rest = BytesIO()
    pickler = _Pickler(rest)
    pickler.dump(batch)
    rounded = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in pickler.arrays]
    *starts, total = accumulate(rounded, initial=0)
    shared = torch.empty(total, dtype=torch.uint8).share_memory_()
    headers = [
        (array.dtype.str, array.shape, start)
        for array, start in zip(pickler.arrays, starts, strict=True)
    ]
    for array, into in zip(pickler.arrays, _arrays_in(shared, headers), strict=True):
        np.copyto(into, array)
    return _rebuilt, (rest.getvalue(), shared, headers)


def _rebuilt(rest: bytes, shared: torch.Tensor, headers: Sequence[_Header]) -> Batch:
    batch: Batch = _Unpickler(BytesIO(rest), _arrays_in(shared, headers)).load()
    return batch


def _arrays_in(shared: torch.Tensor, headers: Sequence[_Header]) -> list[NDArray[Any]]:
    memory = shared.numpy()
    return [np.ndarray(shape, dtype, memory, start) for dtype, shape, start in headers]
