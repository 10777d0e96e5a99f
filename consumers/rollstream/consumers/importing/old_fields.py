"""The fields of a rollout of an old batch, as JSON or Parquet has them, and their rules. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import array_fields
from rollstream.schemas.records import RolloutRecord

Check = Callable[[str, Any], Any]
METADATA = ("worker_id", "timestamp", "weight_step")
_REQUIRED = ("environment", "example_id", "policy_version", "output_tokens")
# What a list is to NumPy, by the kind of the array that is made of it.
_KINDS = {"i": ("iu", "whole numbers"), "f": ("iuf", "numbers"), "b": ("b", "true and false")}


def old_record(given: dict[str, Any], shared: Mapping[str, Any]) -> RolloutRecord:
    """Returns the rollout of these fields, with what its metadata lacks from the batch's.

    Raises:
        InvalidRollout: names field, value and remedy.
    """
    metadata = {**shared, **known("metadata", given.pop("metadata", {}))}
    check_names(given, FIELDS)
    for name in (name for name in _REQUIRED if name not in given):
        raise InvalidRollout(name, None, "give it", "is missing")
    for name in (name for name in METADATA if name not in metadata):
        remedy = "give it in the metadata of the batch or of the rollout"
        raise InvalidRollout(f"metadata.{name}", None, remedy, "is missing")
    values: dict[str, Any] = {name: FIELDS[name](name, value) for name, value in given.items()}
    count = len(values["output_tokens"])
    of_tokens = {name: values[name] for name in ARRAYS.keys() & values.keys() - {"prompt_tokens"}}
    rules.check_lengths(of_tokens, dict.fromkeys(of_tokens, 1), count)
    worker_id = _text("metadata.worker_id", metadata.pop("worker_id"))
    timestamp = _number("metadata.timestamp", metadata.pop("timestamp"))
    if not 0 <= timestamp * 1e6 <= rules.CREATED_TS_MAX:
        raise InvalidRollout("metadata.timestamp", timestamp, "give seconds since 1970, UTC")
    values.setdefault("replica_id", worker_id or "unknown")
    return RolloutRecord(
        **values,
        worker_id=worker_id,
        created_ts=round(timestamp * 1e6),
        weight_step=_whole("weight_step", metadata.pop("weight_step")),
        prompt_count=len(values.get("prompt_tokens", ())),
        token_count=count,
        metadata=metadata,
    )


def known(name: str, value: Any) -> dict[str, Any]:
    """A copy of the object without what is null."""
    if not isinstance(value, dict):
        raise InvalidRollout(name, value, "give an object")
    return {key: one for key, one in value.items() if one is not None}


def check_names(given: Iterable[str], names: Iterable[str]) -> None:
    """The object has fields of these names alone."""
    for name in {*given} - {*names}:
        remedy = f"leave it out, or put it into metadata; the fields are: {', '.join(names)}"
        raise InvalidRollout(name, name, remedy, "is not a field here")


def _text(name: str, value: Any, check: Check = rules.check_name) -> Any:
    if not isinstance(value, str):
        raise InvalidRollout(name, value, "give a text")
    check(name, value)
    return value


def _whole(name: str, value: Any) -> int:
    number = rules.whole_number(name, value)
    rules.check_number(name, number)
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRollout(name, value, "give a number")
    rules.check_finite(name, value)
    return float(value)


def _numbers(name: str, value: Any) -> dict[str, float]:
    return {key: _number(f"{name}[{key!r:.80}]", one) for key, one in known(name, value).items()}


def _array(name: str, value: Any, check: Check) -> NDArray[Any]:
    dtype = np.dtype(array_fields()[name])
    kinds, what = _KINDS[dtype.kind]
    try:
        found = np.asarray(value) if value != [] else np.empty(0, dtype)
    except ValueError:  # Lists of several lengths.
        found = np.empty((0, 0))
    if not isinstance(value, list) or found.ndim != 1 or found.dtype.kind not in kinds:
        raise InvalidRollout(name, value, f"give a list of {what}")
    if dtype.kind == "i" and found.size and found.max() > rules.INT_MAX:
        raise InvalidRollout(name, int(found.max()), f"token ids go up to {rules.INT_MAX}")
    check(name, array := found.astype(dtype))
    return array


ARRAYS: Mapping[str, Check] = {
    **dict.fromkeys(("prompt_tokens", "output_tokens"), rules.check_tokens),
    **dict.fromkeys(("logprobs", "old_logprobs", "ref_logprobs"), rules.check_logprobs),
    "token_rewards": rules.check_floats,
    "loss_mask": lambda name, flags: None,
}
_NAMES = ("environment", "example_id", "rollout_uid", "group_uid", "replica_id", "lineage")
FIELDS: Mapping[str, Check] = {
    **dict.fromkeys((*_NAMES, "stop_reason", "old_policy_version"), _text),
    "policy_version": partial(_text, check=rules.check_version),
    "split": partial(_text, check=rules.check_split),
    **dict.fromkeys(("group_size", "policy_epoch"), _whole),
    **dict.fromkeys(("reward", "logprob_sum"), _number),
    "rewards": _numbers,
    **{name: partial(_array, check=check) for name, check in ARRAYS.items()},
}
