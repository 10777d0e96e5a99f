"""A caller's arguments to a rollout segment's fields, or ``InvalidRollout``. Pure.

What is right costs one pass over each array; what is wrong is then looked for exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from rollstream.producers.arguments import DEFAULTS
from rollstream.producers.arrays import (
    as_array,
    packed_floats,
    packed_mask,
    packed_steps,
    packed_tokens,
    token_array,
)
from rollstream.producers.errors import RolloutTooLarge
from rollstream.schemas.bounds import INT_MAX, LONG_MAX
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import NAME_CHARS_MAX, VERSION_BYTES_MAX, names_a_folder
from rollstream.schemas.order import UNKNOWN_STEP

# Attachments travel inside the rollout; two large images fit, and a topic's record limit (16 MiB)
# stays out of reach for them.
ATTACHED_BYTES_MAX = 4 * 1024 * 1024
SPLITS = ("train", "eval")
_COUNTED = (("logprobs", 4), ("loss_mask", 1))
_RARELY_COUNTED = (
    ("actor_logprobs", 4),
    ("ref_logprobs", 4),
    ("token_rewards", 4),
    ("weight_steps", 8),
)
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def segment_fields(given: Mapping[str, Any], stamped: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of the ``rollout`` schema.

    Args:
        given: what the caller said (``RolloutArguments``).
        stamped: the fields for a caller who says nothing, with the producer's names in them.

    Raises:
        InvalidRollout: names the field, the value and the remedy.
        TypeError: an argument that nobody knows, or one missing that has no default.
    """
    fields = dict(stamped)
    rare: dict[str, Any] | None = None
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is not None:
            fields[name] = check(name, value)
        elif name in _RARE:
            if value is not DEFAULTS[name]:
                rare = {name: value} if rare is None else {**rare, name: value}
        elif name == "weight_step":
            if value.__class__ is int and UNKNOWN_STEP <= value <= LONG_MAX:
                fields["weight_step"] = value
            else:
                rare = {"weight_step": value, **(rare or {})}
        else:
            raise TypeError(f"publish() got an unexpected keyword argument {name!r}")
    for name in ("example_id", "policy_version"):
        if fields[name] is None:
            raise TypeError(f"publish() missing required keyword argument: {name!r}")
    if not fields["environment"]:
        raise InvalidRollout("environment is empty; name it at the producer or at the call")
    count = len(fields["output_tokens"]) >> 2
    fields["prompt_count"] = len(fields["prompt_tokens"]) >> 2
    fields["token_count"] = count
    if rare is not None:
        fields["extras"] = _extras(rare, fields, count)
    for name, width in _COUNTED:
        packed = fields[name]
        if packed is not None and len(packed) != width * count:
            raise _disagree(name, len(packed) // width, count)
    return fields


def text(name: str, value: Any) -> str:
    """Any string."""
    if not isinstance(value, str):
        raise InvalidRollout(f"{name} is {value!r}; give a string")
    return value


def word(name: str, value: Any) -> str:
    """A string that says something."""
    if not isinstance(value, str) or not value:
        raise InvalidRollout(f"{name} is {value!r}; give a string that is not empty")
    return value


def short_text(name: str, value: Any) -> str:
    """A string that events can repeat."""
    if len(text(name, value)) > NAME_CHARS_MAX:
        raise InvalidRollout(
            f"{name} has {len(value)} characters; give at most {NAME_CHARS_MAX}, and put what is "
            "longer into metadata"
        )
    return str(value)


def short_word(name: str, value: Any) -> str:
    """The same, not empty."""
    return short_text(name, word(name, value))


def version(name: str, value: Any) -> str:
    """A string that can name a folder."""
    if not names_a_folder(word(name, value)):
        raise InvalidRollout(
            f"{name} is {value[:40]!r} of {len(value)} characters and must name a folder: give "
            f"others, at most {VERSION_BYTES_MAX} (no letter, digit, _ . - or ~: each counts for 3)"
        )
    return str(value)


def count_of(name: str, value: Any) -> int:
    """An int of 32 bits, not negative."""
    number = _integer(name, value)
    if not 0 <= number <= INT_MAX:
        raise InvalidRollout(f"{name} is {number}; give a number from 0 to {INT_MAX}")
    return number


def _integer(name: str, value: Any) -> int:
    if value.__class__ is int:
        return int(value)
    try:
        number = int(value.__index__())
    except (AttributeError, TypeError) as error:
        raise InvalidRollout(f"{name} is {value!r}; give a whole number") from error
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRollout(f"{name} is {value!r}; give True or False")
    return value


def _number(name: str, value: Any) -> float:
    try:
        number = value if value.__class__ is float else _float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRollout(f"{name} is {value!r}; give one number") from error
    if not isfinite(number):
        raise InvalidRollout(f"{name} is {number}; give a finite number, or None where none is due")
    return float(number)


def _float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(value)
    return float(value)


def _number_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _number(name, value)


def _rewards(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InvalidRollout(f"{name} is {value!r}; give a mapping of names to numbers")
    return {
        word(f"a name in {name}", key): _number(f"{name}[{key!r}]", number)
        for key, number in value.items()
    }


def split_name(name: str, value: Any) -> str:
    if value not in SPLITS:
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
        return _to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRollout(
            f"{name} cannot be written as JSON: {error}; "
            "give plain numbers, strings, lists and dicts (float(x), x.tolist())"
        ) from error


def _floats_or_none(name: str, value: Any) -> bytes | None:
    return None if value is None else packed_floats(name, value)


def _mask_or_none(name: str, value: Any) -> bytes | None:
    return None if value is None else packed_mask(name, value)


def _messages(name: str, value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRollout(f"{name} is {value!r}; give a list of mappings")
    return _json(name, list(value)) if value else ""


def _attachments(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise InvalidRollout(f"{name} is {value!r}; give a mapping of names to bytes")
    attached = []
    for key, data in value.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRollout(f"{name}[{key!r}] is a {type(data).__name__}; give bytes")
        attached.append({"name": word(f"a name in {name}", key), "data": bytes(data)})
    size = sum(len(one["data"]) for one in attached)
    if size > ATTACHED_BYTES_MAX:
        raise RolloutTooLarge(
            name, size, ATTACHED_BYTES_MAX, "put large files elsewhere and their names in metadata"
        )
    return attached


def _extras(rare: Mapping[str, Any], fields: dict[str, Any], count: int) -> dict[str, Any] | None:
    """The extras of one rollout; also settles ``weight_step`` where it is no plain int."""
    steps = None
    if "weight_step" in rare:
        steps = _weight_steps(rare["weight_step"], fields)
    actor = rare.get("actor_logprobs")
    whole = None
    if actor is not None and as_array("actor_logprobs", actor).ndim == 0:
        actor, whole = None, _number("actor_logprobs", actor)
    arrays = rare.get("token_arrays", {})
    if not isinstance(arrays, Mapping):
        raise InvalidRollout(f"token_arrays is {arrays!r}; give a mapping of names to arrays")
    extras = {
        "actor_logprobs": _floats_or_none("actor_logprobs", actor),
        "actor_logprob_sum": whole,
        "actor_policy_version": text("actor_policy_version", rare.get("actor_policy_version", "")),
        "ref_logprobs": _floats_or_none("ref_logprobs", rare.get("ref_logprobs")),
        "token_rewards": _floats_or_none("token_rewards", rare.get("token_rewards")),
        "weight_steps": steps,
        "token_arrays": [
            token_array(word("a name in token_arrays", name), values, count)
            for name, values in arrays.items()
        ],
        "attachments": _attachments("attachments", rare.get("attachments", {})),
        "messages": _messages("messages", rare.get("messages", ())),
    }
    for name, width in _RARELY_COUNTED:
        packed: Any = extras[name]
        if packed is not None and len(packed) != width * count:
            raise _disagree(name, len(packed) // width, count)
    return extras if any(value not in (None, "", []) for value in extras.values()) else None


def _weight_steps(value: Any, fields: dict[str, Any]) -> bytes | None:
    if as_array("weight_step", value).ndim == 0:
        number = _integer("weight_step", value)
        if not UNKNOWN_STEP <= number <= LONG_MAX:
            raise InvalidRollout(f"weight_step is {number}; steps count from 0; -1: not known")
        fields["weight_step"] = number
        return None
    packed, fields["weight_step"] = packed_steps("weight_step", value)
    return packed


def _disagree(name: str, length: int, count: int) -> InvalidRollout:
    name = "weight_step" if name == "weight_steps" else name
    return InvalidRollout(
        f"{name} has {length} values and output_tokens {count}; give one for each output token"
    )


_Check = Callable[[str, Any], Any]
_CHECKS: Mapping[str, _Check] = {
    "environment": word,
    "example_id": short_word,
    "group_uid": short_text,
    "group_size": count_of,
    "rollout_uid": short_text,
    "segment_idx": count_of,
    "is_last_segment": _flag,
    "continuation_of": text,
    "prefix_hash": text,
    "lineage": short_text,
    "policy_version": version,
    "policy_epoch": count_of,
    "replica_id": short_word,
    "reward": _number_or_none,
    "split": split_name,
    "stop_reason": short_word,
    "prompt_tokens": packed_tokens,
    "output_tokens": packed_tokens,
    "logprobs": _floats_or_none,
    "loss_mask": _mask_or_none,
    "rewards": _rewards,
    "metadata": _json_object,
}
_RARE = frozenset(
    {
        "actor_logprobs",
        "actor_policy_version",
        "ref_logprobs",
        "token_rewards",
        "token_arrays",
        "attachments",
        "messages",
    }
)
