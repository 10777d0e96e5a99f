"""Array-likes of callers to packed bytes. Pure.

NumPy arrays of the right dtype cost no copy besides the bytes. A value that breaks a rule raises
``InvalidRollout`` with field, index, value and remedy.
"""

from __future__ import annotations

from array import array as plain_array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ingest.entry import NamedArray
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.rules import (
    FLOAT32_MAX,
    INT_MAX,
    LOGPROB_MAX,
    LOGPROB_MIN,
    check_logprobs,
    check_token_rows,
)

_ARRAY = np.ndarray
_I4 = np.dtype("<i4")
_I8 = np.dtype("<i8")


class Rule(NamedTuple):
    """What the values of one array may be.

    Attributes:
        dtype: as it is packed.
        kinds, what: of NumPy's dtypes that are taken, and how a message calls them.
        low, high: the least and the greatest value; None: any of the dtype.
        remedy: what to give instead of another value.
        code: of the plain numbers in a list, for ``array``; empty: NumPy reads lists.
    """

    dtype: np.dtype[Any]
    kinds: str
    what: str
    low: float
    high: float | None
    remedy: str
    code: str = ""


_FINITE = "every value must be finite in float32"
_IDS = "token ids are not negative, and must fit int32; is padding still in it?"
_COUNTED = "steps must fit int64, and count from 0; -1: not known"
TOKENS = Rule(_I4, "iu", "integers", 0, None, _IDS, "i")
STEPS = Rule(_I8, "iu", "integers", UNKNOWN_STEP, None, _COUNTED)
FLOATS = Rule(np.dtype("<f4"), "fiu", "numbers", -FLOAT32_MAX, FLOAT32_MAX, _FINITE, "f")
LOGPROBS = FLOATS._replace(low=LOGPROB_MIN, high=LOGPROB_MAX)
FLAGS = Rule(np.dtype("|b1"), "fiub", "booleans", 0, None, "give True and False, or 1 and 0")


def packed(name: str, values: Any, rule: Rule) -> bytes | None:
    """The bytes of values that keep the rule; None for None."""
    return None if values is None else _checked(name, values, rule).tobytes()


def packed_tokens(name: str, values: Any) -> bytes:
    """int32 [n], none negative."""
    is_plain = values.__class__ is _ARRAY and values.dtype is _I4 and values.ndim == 1
    if is_plain and len(values) and values.item(values.argmin()) >= 0:  # As most are.
        found: bytes = values.tobytes()
        return found
    return _checked(name, values, TOKENS).tobytes()


def packed_steps(name: str, values: Any) -> tuple[bytes, int]:
    """int64 [n] and the oldest of them; -1 where none is known or n is 0."""
    steps = _checked(name, values, STEPS)
    return steps.tobytes(), int(steps.min(initial=steps[0])) if len(steps) else UNKNOWN_STEP


def _checked(name: str, values: Any, rule: Rule) -> NDArray[Any]:
    dtype, _, _, low, high, remedy, _ = rule
    array: NDArray[Any] = values
    if array.__class__ is not _ARRAY or array.dtype is not dtype or array.ndim != 1:
        array = _read(name, values, rule)
    if len(array):  # The least of several is NaN where any is.
        least = array.item(array.argmin())
        if not (least >= low and (high is None or array.item(array.argmax()) <= high)):
            given = _one_dimensional(name, values)
            if high is None:
                _refuse(name, given, given < low, remedy)
            _refuse(name, given, ~np.isfinite(array), remedy)
            check_logprobs(name, array)
    return array


def _read(name: str, values: Any, rule: Rule) -> NDArray[Any]:
    """One value a token, without loss where they are integers or flags."""
    array = _listed(values, rule)
    if array is not None:
        return array
    array = _one_dimensional(name, values)
    is_float = rule.dtype.kind == "f"
    is_taken = array.dtype.kind in rule.kinds or (is_float and array.dtype.name == "bfloat16")
    if array.size and not is_taken:
        first = array.flat[0]
        finding = f"has dtype {array.dtype}, first value {first!r}"
        raise InvalidRollout(name, first, f"give {rule.what}", finding)
    if rule is TOKENS and _are_usual_tokens(array):
        return array.astype(_I4)
    with np.errstate(over="ignore", invalid="ignore"):  # What is lost is refused, with its value.
        found = array.astype(rule.dtype)
    if not is_float:
        _refuse(name, array, found != array, rule.remedy)
    return found


def _are_usual_tokens(array: NDArray[Any]) -> bool:
    """int64, which tokenizers and torch give, of the bounds of ids: to look for these takes less
    than to compare all with what is left of them."""
    is_usual = array.dtype is _I8 and len(array)
    return bool(is_usual and array.item(array.argmin()) >= 0) and bool(
        array.item(array.argmax()) <= INT_MAX
    )


def _listed(values: Any, rule: Rule) -> NDArray[Any] | None:
    """A list of plain numbers, which ``array`` reads faster than NumPy; None if it has others."""
    if values.__class__ is list and values and rule.code and values[0].__class__ in (int, float):
        try:
            return np.frombuffer(plain_array(rule.code, values), rule.dtype)
        except (TypeError, OverflowError):
            pass
    return None


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


def _refuse(name: str, array: NDArray[Any], bad: NDArray[np.bool_], remedy: str) -> None:
    """Raises with the first bad value, if there is one."""
    count = int(np.count_nonzero(bad))
    if not count:
        return
    index = int(bad.argmax())
    others = f" (and {count - 1} more)" if count > 1 else ""
    value = array[index].item()
    raise InvalidRollout(f"{name}[{index}]", value, remedy, f"is {value!r}{others}")
