"""A rollout as users have it, to an entry as ``encode_entries`` takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout, shown
from rollstream.schemas.fields import REQUIRED_ARRAYS, RowField, named, row_fields
from rollstream.schemas.ingest.entry import Entry, NamedArray
from rollstream.schemas.metadata import json_text, object_text
from rollstream.schemas.records import RolloutRecord

_OF_OUTPUT = {one.name: one.width for one in named("array") if one.name != "prompt_tokens"}
_NOTHING: tuple[Any, ...] = (None, "", {})


def entry_of(rollout: RolloutRecord) -> Entry:
    """The entry that has the values of this rollout; its tokens are counted anew. A reader of the
    entry's record checks the rules that values of the right type and shape can break.

    Raises:
        InvalidRollout: a value has not the type or the shape of its field.
    """
    whole = rollout.old_logprobs if isinstance(rollout.old_logprobs, float) else None
    given = {"old_logprob_sum": whole, **({"old_logprobs": None} if whole is not None else {})}
    found: dict[str, Any] = {
        field.name: _value(field, given.get(field.name, getattr(rollout, field.name, None)))
        for field in named("shared", "text", "number", "array")
    }
    found["prompt_count"] = len(found["prompt_tokens"]) // 4
    found["token_count"] = count = len(found["output_tokens"]) // 4
    rules.check_lengths(found, _OF_OUTPUT, count)
    rules.check_uid("rollout_uid", found["rollout_uid"])
    rewards, attachments = _named("rewards", rollout), _named("attachments", rollout)
    token_arrays = _named("token_arrays", rollout)
    rules.check_token_arrays(token_arrays)
    found["rewards"] = {key: number(f"rewards[{key!r}]", one) for key, one in rewards.items()}
    found["attachments"] = {key: _bytes(key, one) for key, one in attachments.items()}
    found["token_arrays"] = {
        key: _named_array(key, one, count) for key, one in token_arrays.items()
    }
    fields = row_fields()
    kept = (one for one in found.items() if not fields[one[0]].extra or one[1] not in _NOTHING)
    return Entry.of(dict(kept))


def _value(field: RowField, value: Any) -> Any:
    name = field.name
    if name == "metadata":
        return object_text(name, value)
    if name == "messages":
        if not isinstance(value, list | tuple) or not all(isinstance(o, Mapping) for o in value):
            raise InvalidRollout(name, value, "give a list of mappings")
        return json_text(name, list(value)) if value else ""
    if field.column == "array":
        left_out = value is None and name not in REQUIRED_ARRAYS
        return None if left_out else _packed(name, value, field.dtype)
    if field.dtype == "<f8":
        return None if value is None else number(name, value)
    if field.dtype == "|b1":
        if not isinstance(value, bool | np.bool_):
            raise InvalidRollout(name, value, "give True or False")
        return bool(value)
    if field.dtype:
        whole = rules.whole_number(name, value)
        if name in rules.BOUNDS:  # Before it is written: no column has room for any number.
            rules.check_number(name, whole)
        return whole
    if not isinstance(value, str):
        raise InvalidRollout(name, value, "give a string")
    return value


def _named(name: str, rollout: RolloutRecord) -> Mapping[str, Any]:
    """The values of this field, which has several by name."""
    given = getattr(rollout, name)
    if not isinstance(given, Mapping):
        raise InvalidRollout(name, given, "give a mapping")
    for key in given:
        if not isinstance(key, str):
            raise InvalidRollout(name, key, "give strings as keys", f"has the key {shown(key)}")
    return given


def number(name: str, value: Any) -> float:
    """Returns the value as a float. Raises ``InvalidRollout`` if it is no number."""
    if isinstance(value, bool | np.bool_ | str | bytes | bytearray):  # `float` takes them too.
        raise InvalidRollout(name, value, "give a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRollout(name, value, "give a number") from None


def _bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidRollout(f"attachments[{name!r}]", value, "give bytes")
    return value


def _array(name: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):  # Rows of different lengths, for example.
        raise InvalidRollout(name, values, "give an array of numbers") from None


def _packed(name: str, values: Any, dtype: str) -> bytes:
    array = _array(name, values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        finding = f"has shape {array.shape} and dtype {array.dtype}"
        raise InvalidRollout(name, array.shape, "give one number a token", finding)
    with np.errstate(over="ignore", invalid="ignore"):  # What that makes of a number is refused.
        cast = array.astype(dtype)
    differs = (cast != array) & (cast.dtype.kind in "bi")
    if differs.any():
        at = int(differs.argmax())
        raise InvalidRollout(f"{name}[{at}]", array.item(at), f"give numbers of dtype {dtype}")
    return cast.tobytes()


def _named_array(name: str, values: Any, count: int) -> NamedArray:
    array = _array(f"token_arrays[{name!r}]", values)
    rules.check_token_rows(name, array.dtype, array.shape[1:])
    if array.ndim == 0 or len(array) != count:
        finding, remedy = f"has shape {array.shape}", f"give {count} rows, one an output token"
        raise InvalidRollout(f"token_arrays[{name!r}]", array.shape, remedy, finding)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return NamedArray(little.dtype.str, little.shape[1:], little.tobytes())
