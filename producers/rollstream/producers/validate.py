"""A caller's arguments to a rollout segment's fields, or ``InvalidRollout``. Pure.

A correct array costs one pass; only a wrong one is searched for the value to name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rollstream.producers import arrays
from rollstream.producers.arguments import DEFAULTS, RolloutArguments
from rollstream.producers.errors import RolloutTooLarge
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import REQUIRED_ARRAYS, named

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class GroupAddress(NamedTuple):
    """Which group a rollout belongs to."""

    environment: str
    example_id: str
    group_uid: str
    group_size: int
    split: str


def group_address(
    environment: str, example_id: str, group_uid: str, group_size: int, split: str
) -> GroupAddress:
    """The address, once each part was checked; ``InvalidRollout`` names part, value and remedy."""
    given = GroupAddress(environment, example_id, group_uid, group_size, split)._asdict()
    try:
        return GroupAddress(*(_CHECKS[name](name, part) for name, part in given.items()))
    except rules.BrokenRule as broken:
        raise _invalid(broken) from None


def checked_origin(origin: Mapping[str, Any]) -> None:
    """The names that a producer stamps on its rollouts; ``InvalidRollout`` as for a rollout's own.

    Args:
        origin: ``environment`` (empty: each call names it), ``replica_id``, ``worker_id`` and
            ``lineage``.
    """
    try:
        _text("environment", origin["environment"])
        _filled_name("replica_id", origin["replica_id"])
        _name("worker_id", origin["worker_id"])
        _name("lineage", origin["lineage"])
    except rules.BrokenRule as broken:
        raise _invalid(broken) from None


def failed_members(reason: str, count: int) -> tuple[str, int]:
    """Why how many members of a group will never come, checked as ``group_address`` checks."""
    try:
        return _filled_text("reason", reason), _number("count", count)
    except rules.BrokenRule as broken:
        raise _invalid(broken) from None


def segment_fields(given: Mapping[str, Any], stamped: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an ``Entry``, checked, packed and copied: extras only where they are given.

    Args:
        given: the caller's arguments (``RolloutArguments``).
        stamped: the fields of a rollout for which nothing is given, with the producer's names.

    Raises:
        InvalidRollout: names the field, the value and the remedy.
        TypeError: an unknown argument, or a missing one that has no default.
    """
    fields = dict(stamped)
    rare: dict[str, Any] = {}
    try:
        for name, value in given.items():
            check = _CHECKS.get(name)
            if check is not None:
                fields[name] = check(name, value)
            elif name == "weight_step" and value.__class__ is int and value in rules.STEPS:
                fields[name] = value
            elif name not in _RARE:
                raise TypeError(f"publish() got an unexpected keyword argument {name!r}")
            elif value is not DEFAULTS[name]:
                rare[name] = value
        for name in ("example_id", "policy_version"):
            if fields[name] is None:
                raise TypeError(f"publish() missing required keyword argument: {name!r}")
        if not fields["environment"]:
            raise InvalidRollout("environment is empty; name it at the producer or at the call")
        count = len(fields["output_tokens"]) >> 2
        fields["prompt_count"] = len(fields["prompt_tokens"]) >> 2
        fields["token_count"] = count
        for name, value in rare.items():
            _add_extra(fields, name, value, count)
        rules.check_lengths(fields, _TOKEN_BYTES, count)
    except rules.BrokenRule as broken:
        raise _invalid(broken) from None
    return fields


def _invalid(broken: rules.BrokenRule) -> InvalidRollout:
    argument = "weight_step" if broken.field == "weight_steps" else broken.field
    return InvalidRollout(f"{argument} {broken.finding}; {broken.remedy}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRollout(f"{name} is {value!r}; give a string")
    return value if value.isascii() else _utf8(name, value)


def _utf8(name: str, value: str) -> str:
    """The text, which is written long after the caller was told its uid."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRollout(f"{name} {value!r:.60} cannot be written as UTF-8: {error}") from error
    return value


def _filled_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRollout(f"{name} is {value!r}; give a string that is not empty")
    return value if value.isascii() else _utf8(name, value)


def _name(name: str, value: Any) -> str:
    value = _text(name, value)
    rules.check_name(name, value)
    return str(value)


def _filled_name(name: str, value: Any) -> str:
    value = _filled_text(name, value)
    rules.check_name(name, value)
    return str(value)


def _version(name: str, value: Any) -> str:
    rules.check_version(name, _filled_text(name, value))
    return str(value)


def _number(name: str, value: Any) -> int:
    if value.__class__ is int and value in rules.BOUNDS[name]:
        return int(value)
    try:
        if value.__class__ is bool:
            raise TypeError(value)
        number = int(value.__index__())
    except (AttributeError, TypeError) as error:
        raise InvalidRollout(f"{name} is {value!r}; give a whole number") from error
    rules.check_number(name, number)
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRollout(f"{name} is {value!r}; give True or False")
    return value


def _finite(name: str, value: Any) -> float:
    try:
        number = value if value.__class__ is float else _float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRollout(f"{name} is {value!r}; give one number") from error
    rules.check_finite(name, number)
    return float(number)


def _float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(value)
    return float(value)


def _finite_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _finite(name, value)


def _rewards(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InvalidRollout(f"{name} is {value!r}; give a mapping of names to numbers")
    return {
        _filled_name(f"a name in {name}", key): _finite(f"{name}[{key!r}]", number)
        for key, number in value.items()
    }


def _split(name: str, value: Any) -> str:
    if value not in rules.SPLITS:
        raise InvalidRollout(f"{name} is {value!r}; give 'train' or 'eval'")
    return str(value)


def _json_object(name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise InvalidRollout(f"{name} is {value!r}; give a mapping")
    for key in value:
        if key.__class__ is not str:
            raise InvalidRollout(f"{name} has the key {key!r}; JSON has strings as keys only")
    return _json(name, dict(value)) if value else "{}"


def _json(name: str, value: Any) -> str:
    try:
        text = _to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRollout(
            f"{name} cannot be written as JSON: {error}; "
            "give plain numbers, strings, lists and dicts (float(x), x.tolist())"
        ) from error
    return _text(name, text)


def _messages(name: str, value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRollout(f"{name} is {value!r}; give a list of mappings")
    return _json(name, list(value)) if value else ""


def _attachments(name: str, value: Any) -> dict[str, bytes]:
    if not isinstance(value, Mapping):
        raise InvalidRollout(f"{name} is {value!r}; give a mapping of names to bytes")
    attached: dict[str, bytes] = {}
    for key, data in value.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRollout(f"{name}[{key!r}] is a {type(data).__name__}; give bytes")
        attached[_filled_text(f"a name in {name}", key)] = bytes(data)
    size = sum(map(len, attached.values()))
    if size > rules.ATTACHED_BYTES_MAX:
        remedy = "put large files elsewhere and their names in metadata"
        raise RolloutTooLarge(name, size, rules.ATTACHED_BYTES_MAX, remedy)
    return attached


def _add_extra(fields: dict[str, Any], name: str, value: Any, count: int) -> None:
    """Adds what few rollouts give, unless it is empty."""
    if name == "token_arrays":
        if not isinstance(value, Mapping):
            raise InvalidRollout(f"token_arrays is {value!r}; give a mapping of names to arrays")
        checked: Any = {
            _filled_text("a name in token_arrays", key): arrays.token_array(key, rows, count)
            for key, rows in value.items()
        }
        rules.check_token_arrays(checked)
    elif name == "weight_step":
        name, checked = "weight_steps", _weight_steps(value, fields)
    elif name == "actor_logprobs" and arrays.as_array(name, value).ndim == 0:
        name, checked = "actor_logprob_sum", _finite(name, value)
    else:
        checked = _EXTRA_CHECKS[name](name, value)
    if checked is not None and (checked or name in _TOKEN_BYTES):
        fields[name] = checked


def _weight_steps(value: Any, fields: dict[str, Any]) -> bytes | None:
    if arrays.as_array("weight_step", value).ndim == 0:
        fields["weight_step"] = _number("weight_step", value)
        return None
    packed, fields["weight_step"] = arrays.packed_steps("weight_step", value)
    return packed


_TOKEN_BYTES = {one.name: one.width for one in named("array") if one.name not in REQUIRED_ARRAYS}
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "environment": _filled_text,
    "example_id": _filled_name,
    "group_uid": _name,
    "group_size": _number,
    "rollout_uid": _name,
    "segment_idx": _number,
    "is_last_segment": _flag,
    "lineage": _name,
    "policy_version": _version,
    "policy_epoch": _number,
    "replica_id": _filled_name,
    "reward": _finite_or_none,
    "split": _split,
    "stop_reason": _filled_name,
    "prompt_tokens": arrays.packed_tokens,
    "output_tokens": arrays.packed_tokens,
    "logprobs": arrays.packed_floats,
    "loss_mask": arrays.packed_mask,
    "metadata": _json_object,
    "actor_policy_version": _name,
}
_EXTRA_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "continuation_of": _text,
    "prefix_hash": _text,
    "rewards": _rewards,
    "actor_logprobs": arrays.packed_floats,
    "ref_logprobs": arrays.packed_floats,
    "token_rewards": arrays.packed_floats,
    "attachments": _attachments,
    "messages": _messages,
}
_RARE = RolloutArguments.__annotations__.keys() - _CHECKS.keys()
