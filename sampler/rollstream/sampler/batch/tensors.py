"""``NamedArrays``: arrays by name, and as tensors of PyTorch and arrays of JAX. Pure."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.errors import MissingExtra

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class NamedArrays:
    """A dataclass whose arrays have names: its fields, and ``field/key`` for arrays by name."""

    __slots__ = ()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns every array by name; ``token_arrays`` as ``token_arrays/NAME``."""
        arrays: dict[str, NDArray[Any]] = {}
        mappings: dict[str, Mapping[str, object]] = {}
        for field in fields(cast("DataclassInstance", self)):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                arrays[field.name] = value
            elif isinstance(value, Mapping):
                mappings[field.name] = value
        for name, mapping in mappings.items():
            for key, value in mapping.items():
                if isinstance(value, np.ndarray):
                    arrays[f"{name}/{key}"] = value
        return arrays

    def to_torch(self, *, pin_memory: bool = False) -> dict[str, Any]:
        """Returns ``arrays()`` as tensors, without a copy if the memory may be written to.

        PyTorch knows no read-only memory. So arrays of a batch from Ray's object store are copied
        once.

        Args:
            pin_memory: copies all into page-locked memory, so that ``tensor.to(device,
                non_blocking=True)`` overlaps with the GPU's work.

        Raises:
            MissingExtra: there is no PyTorch here.
            InvalidRequest: ``pin_memory``, and PyTorch finds no GPU here.
        """
        return torch_tensors(self.arrays(), pin_memory=pin_memory)

    def to_jax(self) -> dict[str, Any]:
        """Returns ``arrays()`` on JAX's default device.

        On a CPU, arrays that begin at a multiple of 64 bytes are not copied, and those of a batch
        do. Do not write to them. Without ``jax_enable_x64`` JAX copies int64 to int32. Numbers that
        int32 cannot hold, such as those of ``created_ts``, then stay in NumPy.

        Raises:
            MissingExtra: there is no JAX here.
        """
        jax = _library("jax", "to_jax")
        wide = jax.config.jax_enable_x64
        return {
            name: jax.device_put(one, may_alias=True) if wide or not _beyond_int32(one) else one
            for name, one in self.arrays().items()
        }


def _beyond_int32(array: NDArray[Any]) -> bool:
    """Whether it holds integers that int32 cannot."""
    if array.dtype != np.int64 or not array.size:
        return False
    limits = np.iinfo(np.int32)
    return bool(array.min() < limits.min or array.max() > limits.max)


def torch_tensors(
    arrays: Mapping[str, NDArray[Any]], *, pin_memory: bool = False
) -> dict[str, Any]:
    """As ``NamedArrays.to_torch``, of arrays in hand."""
    torch = _library("torch", "to_torch")
    if pin_memory and not torch.cuda.is_available():
        raise InvalidRequest(
            "pin_memory is True, and PyTorch finds no GPU here, whose driver would lock the pages; "
            "leave it out, or give pin_memory=torch.cuda.is_available()"
        )
    if pin_memory:
        return {name: _pinned(torch, array) for name, array in arrays.items()}
    return {
        name: torch.from_numpy(array if array.flags.writeable else array.copy())
        for name, array in arrays.items()
    }


def _pinned(torch: Any, array: NDArray[Any]) -> Any:
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    tensor = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    np.copyto(tensor.numpy(), array)
    return tensor


def _library(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"{method} needs {name}, which is not installed here: {error}"
        ) from error
