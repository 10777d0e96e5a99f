"""How a batch gets from a loader's worker process to the trainer: in shared memory, in one copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from rollstream.sampler import Batch

ALIGNMENT = 64  # Of each array, in bytes: what JAX takes without a copy.


def share_memory_of_batches() -> None:
    """From now on this process hands batches to other processes (in a ``multiprocessing.Queue``, as
    ``DataLoader`` does) in PyTorch's shared memory; there ``to_torch`` copies nothing."""
    ForkingPickler.register(Batch, _reduced)


def _reduced(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    found: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(batch, protocol=5, buffer_callback=found.append)
    arrays = [buffer.raw() for buffer in found]
    rounded = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
    *starts, total = accumulate(rounded, initial=0)
    shared = torch.empty(total, dtype=torch.uint8).share_memory_()
    memory = shared.numpy()
    for start, array in zip(starts, arrays, strict=True):
        memory[start : start + array.nbytes] = np.frombuffer(array, np.uint8)
    spans = [(start, array.nbytes) for start, array in zip(starts, arrays, strict=True)]
    return _rebuilt, (rest, shared, spans)


def _rebuilt(rest: bytes, shared: torch.Tensor, spans: list[tuple[int, int]]) -> Batch:
    memory = memoryview(shared.numpy())
    batch: Batch = pickle.loads(rest, buffers=[memory[at : at + size] for at, size in spans])
    return batch
