"""The arguments of ``publish`` as one table: what each may be, and what a rollout without it has.

A check takes an argument's name and value. It returns the value as an entry of the log holds it, or
raises ``InvalidRollout``. Tests hold the table to ``ingest_record.vN.avsc``, to the types of
``arguments`` and to what ``RolloutProducer.publish`` says of each argument. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rollstream.producers.errors import RolloutTooLarge
from rollstream.producers.rollouts import arrays
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import json_text, object_text
from rollstream.schemas.order import UNKNOWN_STEP

Check = Callable[[str, Any], Any]


class Field(NamedTuple):
    """One argument.

    Attributes:
        check: returns the value as an entry holds it, or raises ``InvalidRollout``.
        default: what it is if it is not given. ``NEEDED``: it has to be given.
    """

    check: Check
    default: Any


def checked(name: str, value: Any) -> Any:
    """The value, once it was checked as this field's."""
    return _CHECKS[name](name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRollout(name, value, "give a string")
    try:
        value.encode()  # It is written long after the caller was told its uid.
    except UnicodeEncodeError as error:
        finding = f"is {value!r:.60}, which cannot be written as UTF-8: {error}"
        raise InvalidRollout(name, ascii(value), "leave out half characters", finding) from error
    return str.__str__(value)  # A member of a str enumeration has another name for itself.


def _filled_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRollout(name, value, "give a string that is not empty")
    return _text(name, value)


def _ruled(convert: Check, rule: Callable[[str, Any], None]) -> Check:
    """The check of a value that breaks no rule once it is converted."""

    def check(name: str, value: Any) -> Any:
        found = convert(name, value)
        rule(name, found)
        return found

    return check


checked_name = _ruled(_text, rules.check_name)
_filled_name = _ruled(_filled_text, rules.check_name)
_uid = _ruled(_text, rules.check_uid)
_filled_uid = _ruled(_filled_text, rules.check_uid)
_digest = _ruled(_text, rules.check_digest)
_version = _ruled(_filled_text, rules.check_version)
_split = _ruled(_text, rules.check_split)
_number = _ruled(rules.whole_number, rules.check_number)


def is_plain_name(value: Any) -> bool:
    """Whether it breaks no rule of any name, as most do: a quick answer."""
    is_short = value.__class__ is str and 0 < len(value) <= rules.NAME_CHARS_MAX
    return is_short and value.isascii() and value.isprintable()


def checked_uid(name: str, value: Any) -> str:
    """A text that is not empty, and may be a uid."""
    return str(value if is_plain_name(value) else _filled_uid(name, value))


def checked_flag(name: str, value: Any) -> bool:
    """True or False, NumPy's too."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidRollout(name, value, "give True or False")
    return bool(value)


def checked_reward(name: str, value: Any) -> float:
    """A number that is finite in float32."""
    try:
        number = value if value.__class__ is float else _float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRollout(name, value, "give one number: float(x)") from error
    rules.check_finite(name, number)
    return float(number)


def _float(value: Any) -> float:
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError(value)
    return float(value)


def _named(name: str, value: Any, of: str, check: Check) -> dict[str, Any]:
    """A mapping, once its names were checked."""
    if not isinstance(value, Mapping):
        raise InvalidRollout(name, value, f"give a mapping of names to {of}")
    return {rules.check_key(name, key, check): one for key, one in value.items()}


def _rewards(name: str, value: Any) -> dict[str, float]:
    named = _named(name, value, "numbers", _filled_name)
    return {key: checked_reward(f"{name}[{key!r}]", number) for key, number in named.items()}


def _json_object(name: str, value: Any) -> str:
    return _text(name, object_text(name, value))


def _messages(name: str, value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRollout(name, value, "give a list of mappings")
    for index, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise InvalidRollout(f"{name}[{index}]", message, "give a mapping")
    return _text(name, json_text(name, list(value))) if value else ""


def _token_arrays(name: str, value: Any) -> dict[str, Any]:
    """Their names are checked; ``arrays.token_array`` checks each against the number of tokens."""
    named = _named(name, value, "arrays", _filled_text)
    rules.check_token_arrays(named)
    return named


def _attachments(name: str, value: Any) -> dict[str, bytes]:
    attached = _named(name, value, "bytes", _filled_text)
    for key, data in attached.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            finding = f"is a {type(data).__name__}"
            raise InvalidRollout(f"{name}[{key!r}]", data, "give bytes", finding)
        attached[key] = bytes(data)
    size = sum(map(len, attached.values()))
    if size > rules.ATTACHED_BYTES_MAX:
        remedy = "put large files elsewhere and their names in metadata"
        raise RolloutTooLarge(name, size, rules.ATTACHED_BYTES_MAX, remedy)
    return attached


NEEDED = inspect.Parameter.empty
_NOTHING_NAMED: Mapping[str, Any] = MappingProxyType({})
FIELDS: Mapping[str, Field] = {
    "example_id": Field(_filled_name, NEEDED),
    "policy_version": Field(_version, NEEDED),
    "weight_step": Field(_number, UNKNOWN_STEP),
    "policy_epoch": Field(_number, 0),
    "lineage": Field(checked_name, ""),
    "prompt_tokens": Field(arrays.packed_tokens, ()),
    "output_tokens": Field(arrays.packed_tokens, ()),
    "logprobs": Field(arrays.packed_logprobs, None),
    "loss_mask": Field(arrays.packed_mask, None),
    "reward": Field(checked_reward, None),
    "rewards": Field(_rewards, _NOTHING_NAMED),
    "stop_reason": Field(_filled_name, "stop"),
    "metadata": Field(_json_object, _NOTHING_NAMED),
    "old_logprobs": Field(arrays.packed_logprobs, None),
    "old_policy_version": Field(checked_name, ""),
    "ref_logprobs": Field(arrays.packed_logprobs, None),
    "token_rewards": Field(arrays.packed_floats, None),
    "token_arrays": Field(_token_arrays, _NOTHING_NAMED),
    "attachments": Field(_attachments, _NOTHING_NAMED),
    "messages": Field(_messages, ()),
    "rollout_uid": Field(_uid, ""),
    "segment_idx": Field(_number, 0),
    "is_last_segment": Field(checked_flag, True),
    "continuation_of": Field(_text, ""),
    "prefix_hash": Field(_digest, ""),
    "environment": Field(_filled_text, ""),
    "group_uid": Field(_uid, ""),
    "group_size": Field(_number, 0),
    "split": Field(_split, "train"),
    "replica_id": Field(_filled_name, "unknown"),
}
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"actor_logprobs": "logprobs", "actor_policy_version": "policy_version"}
)
"""Arguments that are other names for one: the AIPO papers' for ours."""
POLICY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "version": "policy_version",
        "step": "weight_step",
        "epoch": "policy_epoch",
        "lineage": "lineage",
    }
)
"""What a policy has, and the argument that says the same."""
_CHECKS: Mapping[str, Check] = {
    **{name: field.check for name, field in FIELDS.items()},
    # What other calls than ``publish`` take.
    "worker_id": checked_name,
    "reason": _filled_text,
    "count": _number,
    "group_id": _digest,
    "expect_version": _number,
}
