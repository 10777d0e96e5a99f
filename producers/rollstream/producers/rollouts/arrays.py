"""Array-likes of callers to packed bytes. Pure.

NumPy arrays of the right dtype cost no copy besides the bytes. A value that breaks a rule raises
``InvalidRollout`` with field, index, value and remedy.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ingest.entry import NamedArray
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.rules import (
    INT_MAX,
    LOGPROB_MAX,
    LOGPROB_MIN,
    LONG_MAX,
    check_logprobs,
    check_token_rows,
)

_I4 = np.dtype("<i4")
_I8 = np.dtype("<i8")
_F4 = np.dtype("<f4")
_B1 = np.dtype("|b1")
_INTEGERS = "iu"
_NUMBERS = "fiu"


def packed_tokens(name: str, values: Any) -> bytes:
    """int32 [n], none negative."""
    array = values
    if array.__class__ is not np.ndarray or array.ndim != 1:
        array = _one_dimensional(name, values)
    if array.dtype is not _I4:
        array = _narrowed(name, array)
    if array.size and array.item(array.argmin()) < 0:
        _refuse_negative(name, array)
    packed: bytes = array.tobytes()
    return packed


def _narrowed(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.size == 0:
        return array.astype(_I4)
    _require_kind(name, array, _INTEGERS, "integers")
    if int(array.max()) > INT_MAX:
        _refuse(name, array, array > INT_MAX, "token ids must fit int32")
    if int(array.min()) < 0:
        _refuse_negative(name, array)
    return array.astype(_I4)


def _refuse_negative(name: str, array: NDArray[Any]) -> NoReturn:
    _refuse(name, array, array < 0, "token ids are not negative; is padding still in it?")


def packed_floats(name: str, values: Any) -> bytes | None:
    """float32 [n], all finite; None for None."""
    if values is None:
        return None
    array = _floats(name, values)
    _check_finite(name, values, array)
    return array.tobytes()


def packed_logprobs(name: str, values: Any) -> bytes | None:
    """float32 [n], all from ``LOGPROB_MIN`` to 0, but for rounding; None for None."""
    if values is None:
        return None
    array = _floats(name, values)
    # The least of several is NaN where any is.
    if array.size and not (
        array.item(array.argmin()) >= LOGPROB_MIN and array.item(array.argmax()) <= LOGPROB_MAX
    ):
        _check_finite(name, values, array)
        check_logprobs(name, array)
    return array.tobytes()


def _floats(name: str, values: Any) -> NDArray[np.float32]:
    array: NDArray[Any] = values
    if array.__class__ is not np.ndarray or array.ndim != 1:
        array = _one_dimensional(name, values)
    if array.dtype is _F4:
        return array
    if array.dtype.kind not in _NUMBERS and array.dtype.name != "bfloat16" and array.size:
        _require_kind(name, array, _NUMBERS, "numbers")
    with np.errstate(over="ignore"):  # What overflows is refused, with its value.
        return array.astype(_F4)


def _check_finite(name: str, values: Any, array: NDArray[np.float32]) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        _refuse(name, _one_dimensional(name, values), bad, "every value must be finite in float32")


def packed_mask(name: str, values: Any) -> bytes | None:
    """bool [n], from numbers 0 and 1 too; None for None."""
    if values is None:
        return None
    array = _one_dimensional(name, values)
    if array.dtype is not _B1:
        if array.size:
            _require_kind(name, array, _NUMBERS, "booleans")
        bad = (array != 0) & (array != 1)
        if bad.any():
            _refuse(name, array, bad, "give True and False, or 1 and 0")
        array = array.astype(_B1)
    return array.tobytes()


def packed_steps(name: str, values: Any) -> tuple[bytes, int]:
    """int64 [n] and the oldest of them; -1 where none is known or n is 0."""
    array = _one_dimensional(name, values)
    if array.size:
        _require_kind(name, array, _INTEGERS, "integers")
        if (array < UNKNOWN_STEP).any():
            _refuse(name, array, array < UNKNOWN_STEP, "steps count from 0; -1: not known")
        if (array > LONG_MAX).any():
            _refuse(name, array, array > LONG_MAX, "steps must fit int64")
    array = array.astype(_I8)
    return array.tobytes(), int(array.min()) if array.size else UNKNOWN_STEP


def token_array(name: str, values: Any, rows: int) -> NamedArray:
    """One element of ``token_arrays``: [rows, …], any plain dtype, little-endian."""
    array = np.ascontiguousarray(as_array(f"token_arrays[{name!r}]", values))
    check_token_rows(name, array.dtype, array.shape[1:])
    if array.ndim == 0 or array.shape[0] != rows:
        remedy = f"its first axis must have one row for each of the {rows} output_tokens"
        finding = f"has shape {array.shape}"
        raise InvalidRollout(f"token_arrays[{name!r}]", array.shape, remedy, finding)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return NamedArray(little.dtype.str, little.shape[1:], little.tobytes())


def as_array(name: str, values: Any) -> NDArray[Any]:
    """An array of whatever NumPy can read, or of a torch tensor on any device."""
    if isinstance(values, np.ndarray):
        # The bytes of a masked array have the values that it hides.
        if values.__class__ is not np.ndarray and hasattr(values, "mask"):
            remedy = "give x.filled(value) or x.compressed(), or the mask as loss_mask"
            raise InvalidRollout(name, values, remedy, "is a masked array")
        return values
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        try:
            return np.asarray(values.numpy())
        except TypeError:  # A dtype that NumPy lacks: bfloat16, float8.
            return np.asarray(values.float().numpy())
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        remedy = "give a NumPy array, a tensor or a sequence of numbers"
        finding = f"cannot be read as an array: {error}"
        raise InvalidRollout(name, values, remedy, finding) from error


def _one_dimensional(name: str, values: Any) -> NDArray[Any]:
    array = as_array(name, values)
    if array.ndim == 0:
        raise InvalidRollout(name, values, "give a sequence, one value a token")
    if array.ndim != 1:
        remedy = "give one value a token, [n], one rollout at a time"
        raise InvalidRollout(name, array.shape, remedy, f"has shape {array.shape}")
    return array


def _require_kind(name: str, array: NDArray[Any], kinds: str, what: str) -> None:
    if array.dtype.kind not in kinds:
        first = array.flat[0]
        finding = f"has dtype {array.dtype}, first value {first!r}"
        raise InvalidRollout(name, first, f"give {what}", finding)


def _refuse(name: str, array: NDArray[Any], bad: NDArray[np.bool_], remedy: str) -> NoReturn:
    index = int(np.flatnonzero(bad)[0])
    count = int(np.count_nonzero(bad))
    others = f" (and {count - 1} more)" if count > 1 else ""
    value = array[index].item()
    raise InvalidRollout(f"{name}[{index}]", value, remedy, f"is {value!r}{others}")
